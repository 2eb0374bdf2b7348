# SPDX-License-Identifier: Apache-2.0
"""The tables and plots of `docs/performance.md`, made of what was last measured.

No figure of that page is written by hand: between `<!-- NAME -->` and
`<!-- end of NAME -->` stands what this module makes of `docs/performance/NAME.json`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import plots, results
from trees import ROOT

PAGE = ROOT / "docs" / "performance.md"

Found = Mapping[str, Any]


def main() -> None:
    """Rewrites the page and its plots."""
    found = {name: results.read(name) for name in SECTIONS}
    text = PAGE.read_text()
    for name, section in SECTIONS.items():
        if (measured := found[name]) is not None:
            parts = [*section(measured)]
            if name in plots.PLOTS:
                plots.PLOTS[name](measured, _plot(name))
                parts.append(_image(name))
            body = "\n\n".join((*parts, _origin(measured)))
            text = fill(text, name, body)
    text = fill(text, "targets", _targets({k: v for k, v in found.items() if v}))
    PAGE.write_text(text)
    print(PAGE)


def fill(text: str, name: str, body: str) -> str:
    """`text` with `body` between the marks of a section.

    Raises:
        ValueError: The marks are not there, or there twice.
    """
    between = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", re.S)
    text, count = between.subn(lambda _: f"{body}\n", text)
    if count != 1:
        raise ValueError(f"{PAGE.name} has {count} places for {name}; it needs one")
    return text


def _pool(found: Found) -> Iterable[str]:
    for step, title in ((512, "8192 tokens a step"), (1, "One block a step")):
        yield f"{title}:"
        ratios = [r for r in found["ratios"] if r["step_blocks"] == step]
        names = dict.fromkeys(r["name"] for r in ratios)
        side = {(r["name"], r["side"]): r for r in ratios}
        yield _table(
            ("", "compared to", "admission", "eviction"),
            (
                (
                    name.partition(", one block")[0],
                    _told(side[name, "admission"]["to"]),
                    _spread(side[name, "admission"]),
                    _spread(side[name, "eviction"]),
                )
                for name in names
            ),
        )


def _wire(found: Found) -> Iterable[str]:
    for step in dict.fromkeys(b["step"] for b in found["bytes"]):
        rows = [b for b in found["bytes"] if b["step"] == step]
        stock = {b["tokens"]: b for b in rows if b["mode"] == "stock"}
        shown = [t for t in stock if t >= 32768] or list(stock)
        yield f"Steps of {step}:" if step != "whole" else "All in one step:"
        yield _table(
            ("", *(f"{_size(t)} {side}" for t in shown for side in plots.SIDES)),
            (
                (
                    mode,
                    *(
                        _bytes(b[side], stock[t][side])
                        for t in shown
                        for b in rows
                        if (b["mode"], b["tokens"]) == (mode, t)
                        for side in plots.SIDES
                    ),
                )
                for mode in dict.fromkeys(b["mode"] for b in rows)
            ),
        )
    yield "CPU time to publish the longest context, until it is sent, stock's being 1:"
    by = {(e["mode"], e["step"], e["side"]): e for e in found["encoding"]}
    steps = dict.fromkeys(e["step"] for e in found["encoding"])
    yield _table(
        ("", *(f"{step}, {side}" for step in steps for side in plots.SIDES)),
        (
            (mode, *(_spread(by[mode, s, side]) for s in steps for side in plots.SIDES))
            for mode in dict.fromkeys(e["mode"] for e in found["encoding"])
        ),
    )


def _memory(found: Found) -> Iterable[str]:
    full = found["settings"]["blocks"]
    yield _table(
        ("", "bytes per cached block", "of them the map's objects", "collection"),
        (
            (
                b["mode"],
                f"{b['more_than_stock']:.0f}",
                f"{found['map_bytes_per_block'][b['mode']]:.0f}",
                _spread(found["collection"][b["mode"]]),
            )
            for b in found["bytes_per_block"]
            if b["blocks"] == full
        ),
    )
    passed = found["passing_through"]
    megabytes = passed["bytes_more_after_all_than_after_a_tenth"] / 1e6
    yield (
        f"{passed['continuations']:,} continuations, each admitted and evicted, left"
        f" {passed['longest_container_left']} entries behind, and the process"
        f" {megabytes:.1f} MB larger than after the first tenth of them."
    )


def _publisher(found: Found) -> Iterable[str]:
    yield _table(
        ("", "CPU time of the process, to stock"),
        ((r["name"], _spread(r)) for r in found["ratios"]),
    )
    yield (
        f"While a replay of {found['settings']['buffered']:,} batches is served, each"
        " the admission of a context in one step:"
    )
    yield _table(
        ("", "bytes of a batch", "`max_queue_size`", "replay", "longest stop"),
        (
            (
                s["mode"],
                f"{s['payload']:,.0f}",
                f"{s['max_queue_size']:,}",
                _milliseconds(s["replay"]),
                _milliseconds(s["longest"]),
            )
            for s in found["stalls"]
        ),
    )


def _serve(found: Found) -> Iterable[str]:
    by = {(r["name"], r["side"]): r for r in found["ratios"]}
    sides = ("per_second", "cpu_seconds")
    yield _table(
        ("", "requests per second, to stock", "the server's CPU time, to stock"),
        (
            (name, *(_spread(by[name, side]) for side in sides))
            for name in dict.fromkeys(r["name"] for r in found["ratios"])
        ),
    )


def _stream(found: Found) -> Iterable[str]:
    yield _table(
        ("", "events per second", "bytes per event on the wire", "held at the end"),
        (
            (
                name,
                f"{s['events_per_second']:,.0f}",
                f"{s['wire_bytes'] / s['events']:,.0f}",
                f"{s['bytes'] / 1e6:,.1f} MB",
            )
            for name, s in found["streams"].items()
        ),
    )


SECTIONS: Mapping[str, Callable[[Found], Iterable[str]]] = {
    "pool": _pool,
    "wire": _wire,
    "memory": _memory,
    "publisher": _publisher,
    "serve": _serve,
    "stream": _stream,
}


def _targets(found: Mapping[str, Found]) -> str:
    rows: list[tuple[str, ...]] = []
    if pool := found.get("pool"):
        by = {(r["name"], r["side"]): r for r in pool["ratios"]}
        for name, what, most in (
            ("unlabeled", "stock", {"admission": 1.0, "eviction": 1.0}),
            ("labeled", "stock", {"admission": 1.05, "eviction": 1.05}),
            (
                "coordinates to events off",
                "stock with events off",
                {"admission": 1.25, "eviction": 1.5},
            ),
        ):
            for side, limit in most.items():
                measured = by[name, side]
                # 1.00 is met within noise: half of the pairs are on either side.
                met = measured["low" if limit == 1 else "median"] <= limit
                mode = name.partition(" to ")[0]
                rows.append(
                    (
                        f"{side}, {mode}",
                        f"{limit:.2f}x {what}",
                        _spread(measured),
                        _met(met),
                    )
                )
    if wire := found.get("wire"):
        longest = max(b["tokens"] for b in wire["bytes"])
        for step in ("whole", "8192 tokens"):
            stock, ours = (
                b
                for mode in ("stock", "coordinates")
                for b in wire["bytes"]
                if (b["mode"], b["tokens"], b["step"]) == (mode, longest, step)
            )
            for side, limit in (("admission", 1000), ("eviction", 100)):
                less = stock[side] / ours[side]
                how = "one step" if step == "whole" else f"steps of {step}"
                rows.append(
                    (
                        f"bytes, {side} of {_size(longest)} in {how}",
                        f"1/{limit} of stock",
                        f"1/{less:,.0f}",
                        _met(less >= limit),
                    )
                )
    if memory := found.get("memory"):
        most = max(
            b["more_than_stock"]
            for b in memory["bytes_per_block"]
            if b["blocks"] == memory["settings"]["blocks"]
        )
        rows.append(
            (
                "side map, per cached block",
                "150 bytes",
                f"{most:.0f}",
                _met(most <= 150),
            )
        )
    if serve := found.get("serve"):
        labeled = next(
            r
            for r in serve["ratios"]
            if (r["name"], r["side"]) == ("labeled", "per_second")
        )
        met = labeled["high"] >= 1.0
        rows.append(
            (
                "`vllm serve`, labeled",
                "stock's requests per second",
                _spread(labeled),
                _met(met),
            )
        )
    return _table(("", "target", "measured", ""), rows)


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _spread(ratio: Mapping[str, float]) -> str:
    digits = 3 if ratio["median"] < 0.1 else 2
    median, low, high = (f"{ratio[k]:.{digits}f}" for k in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


def _bytes(count: int, stock: int) -> str:
    if count * 1.5 < stock:
        return f"{count:,} (1/{stock / count:,.0f})"
    return f"{count:,} ({count / stock:.2f}x)"


def _size(tokens: int) -> str:
    return f"{tokens // 1024}k"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms"


def _told(scene: str) -> str:
    return "events off" if scene.endswith("off") else "events on"


def _met(met: bool) -> str:
    return "met" if met else "**missed**"


def _plot(name: str) -> Path:
    return results.FOLDER / f"{name}.svg"


def _image(name: str) -> str:
    path = _plot(name).relative_to(PAGE.parent).as_posix()
    return f"![{plots.TITLES[name]}]({path})"


def _origin(found: Found) -> str:
    machine = found["machine"]
    ran = ""
    if "releases" in found:  # Where vLLM had a part in it.
        ran = f" vLLM {', '.join(found['releases'])}, series {found['series']},"
    return (
        f"`{found['command']}`, {found['date']},{ran}"
        f" {machine['cpu']} ({machine['cores']} cores),"
        f" Python {machine['python']}:"
        f" [{found['benchmark']}.json](performance/{found['benchmark']}.json)"
    )


if __name__ == "__main__":
    main()
