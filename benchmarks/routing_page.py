# SPDX-License-Identifier: Apache-2.0
"""The table and the plot of `docs/routing.md`, of what the last run found."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.routing_routers import VLLM_ROUTER
from trees import ROOT

PAGE = ROOT / "docs" / "routing.md"
PLOT = ROOT / "docs" / "routing.svg"

# The same figures make the same file.
mpl.rcParams.update({"svg.hashsalt": "vllm-coordinates", "svg.fonttype": "none"})

_FIGURES = re.compile(r"(?<=<!-- figures -->\n).*?(?=<!-- end of figures -->)", re.S)
_BAR, _BEST, _CEILING, _TEXT = "#9aa5b1", "#2f7d4f", "#c0392b", "#52606d"


@dataclass(frozen=True)
class Row:
    """All runs of one router in one case.

    Attributes:
        name: The router's.
        returned: Continuations that came to a warm replica, and all of them.
        hit: Mean share of a continuation's prompt that was cached.
        ceiling: The most that `hit` can be.
        p50, p95: Seconds to the first token.
        phantoms: Requests sent for a prefix that was gone, and all that were sent for
            one; None for a router that expects nothing.
    """

    name: str
    returned: tuple[int, int]
    hit: float
    ceiling: float
    p50: float
    p95: float
    phantoms: tuple[int, int] | None


def row(name: str, runs: list[dict[str, Any]]) -> Row:
    """The figures of all runs together."""
    seconds = [s for run in runs for s in run["first_tokens"]]
    percent = quantiles(seconds, n=100, method="inclusive")
    believes = runs[0]["routed"] is not None
    return Row(
        name,
        (_sum(runs, "returned"), _sum(runs, "continuations")),
        _sum(runs, "hit") / len(runs),
        _sum(runs, "ceiling") / len(runs),
        percent[49],
        percent[94],
        (_sum(runs, "phantoms"), _sum(runs, "routed")) if believes else None,
    )


def write(found: Mapping[str, Any]) -> None:
    """Puts the figures in the page, and makes the plot that it shows."""
    sequential = [row(name, [run]) for name, run in found["sequential"].items()]
    load = [row(name, runs) for name, runs in found["load"]["runs"].items()]
    figures = "\n\n".join(
        (
            _table(sequential, load),
            _strangers(found["strangers"]),
            f"![Hit rate, phantom routes and time to first token]({PLOT.name})\n",
        )
    )
    page, count = _FIGURES.subn(lambda _: figures, PAGE.read_text())
    assert count == 1, f"{PAGE} has no place for figures"
    PAGE.write_text(page)
    _plot(load, PLOT)


def _table(sequential: list[Row], load: list[Row]) -> str:
    lines = [
        "| | one at a time | | under load | | | | |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        "| router | returned | hit rate | returned | hit rate | first token p50 | p95"
        " | phantom routes |",
    ]
    for one, many in zip(sequential, load, strict=True):
        phantoms = _without(many.name)
        if many.phantoms is not None:
            phantoms = f"{many.phantoms[0]} of {many.phantoms[1]}"
        lines.append(
            f"| {one.name} | {one.returned[0]} of {one.returned[1]} | {one.hit:.2%}"
            f" | {many.returned[0]} of {many.returned[1]} | {many.hit:.1%}"
            f" | {1000 * many.p50:.0f} ms | {1000 * many.p95:.0f} ms | {phantoms} |"
        )
    lines.append(
        f"| *ceiling* | {sequential[0].returned[1]} | {sequential[0].ceiling:.2%}"
        f" | | {load[0].ceiling:.1%} | | | |"
    )
    return "\n".join(lines)


def _without(name: str) -> str:
    return "does not tell" if name == VLLM_ROUTER else "expects nothing"


def _strangers(found: Mapping[str, Any]) -> str:
    ratio = found["ratio"]
    return (
        f"Where nothing is shared, a request takes {ratio['median']:.2f} times as long"
        f" by coordinates\nas by round robin (the middle half of {ratio['pairs']} pairs"
        f" of runs: {ratio['low']:.2f} to {ratio['high']:.2f})."
    )


def _plot(load: list[Row], path: Path) -> None:
    rows = load[::-1]
    places = range(len(rows))
    colors = [_BEST if r.name == "coordinates" else _BAR for r in rows]
    figure = Figure(figsize=(10, 0.5 * len(rows) + 1.2), layout="constrained")
    hit, phantoms, first = figure.subplots(1, 3, sharey=True)
    hit.barh(places, [100 * r.hit for r in rows], color=colors)
    hit.axvline(100 * rows[0].ceiling, color=_CEILING, linestyle=":")
    hit.set(xlabel="mean hit rate, %", xlim=(0, 100))
    hit.set_yticks(places, [r.name for r in rows])
    phantoms.barh(
        places,
        [100 * r.phantoms[0] / r.phantoms[1] if r.phantoms else 0 for r in rows],
        color=colors,
    )
    for place, r in zip(places, rows, strict=True):
        if r.phantoms is None:
            phantoms.text(1, place, _without(r.name), va="center", color=_TEXT)
    phantoms.set(xlabel="phantom routes, %")
    for place, r, color in zip(places, rows, colors, strict=True):
        seconds = [1000 * r.p50, 1000 * r.p95]
        first.plot(seconds, [place, place], color=color, marker="o", linewidth=3)
    first.set(xlabel="time to first token, ms (p50, p95)")
    first.set_xlim(left=0)
    for axes in (hit, phantoms, first):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def _sum(runs: list[dict[str, Any]], what: str) -> Any:
    return sum(run[what] for run in runs)
