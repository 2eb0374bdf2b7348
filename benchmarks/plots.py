# SPDX-License-Identifier: Apache-2.0
"""One plot for each benchmark; the same figures make the same file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Found = Mapping[str, Any]

SIDES = ("admission", "eviction")
TITLES = {
    "pool": "Cost per block by mode, stock with events on being 1",
    "wire": "Bytes of a context, by its length",
    "memory": "Memory that the side map takes, by the number of cached blocks",
    "publisher": "CPU time of a context with its publication, stock being 1",
    "serve": "Requests per second, stock being 1",
}

_COLORS = {
    "stock": "#52606d",
    "unlabeled": "#9aa5b1",
    "labeled": "#3e7cb1",
    "coordinates": "#2f7d4f",
    "full": "#8e6bb0",
}
_OTHER, _LIMIT = "#c3cad1", "#c0392b"

mpl.rcParams.update({"svg.hashsalt": "vllm-coordinates", "svg.fonttype": "none"})


def _pool(found: Found, path: Path) -> None:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    both = figure.subplots(1, 2, sharey=True)
    by = {(r["name"], r["side"]): r for r in found["ratios"]}
    names = (
        "stock again",
        "unlabeled",
        "labeled",
        "labeled, mixed",
        "full",
        "coordinates, mixed",
        "coordinates",
    )
    for axes, side in zip(both, SIDES, strict=True):
        _bars(axes, [(name, by[name, side]) for name in names])
        floor = 1 / by["events on, stock", side]["median"]
        axes.axvline(floor, color=_LIMIT, linestyle=":")
        axes.text(floor, -0.75, " events off", color=_LIMIT, va="center")
        axes.set_xlabel(f"{side}, cost per block (stock = 1)")
    _save(figure, path)


def _wire(found: Found, path: Path) -> None:
    figure = Figure(figsize=(9, 4), layout="constrained")
    both = figure.subplots(1, 2, sharey=True)
    for axes, side in zip(both, SIDES, strict=True):
        for mode in ("stock", "labeled", "coordinates"):
            for step, line in (("whole", "-"), ("8192 tokens", "--")):
                points = [
                    (b["tokens"], b[side])
                    for b in found["bytes"]
                    if (b["mode"], b["step"]) == (mode, step)
                ]
                axes.plot(
                    *zip(*points, strict=True),
                    line,
                    color=_COLORS[mode],
                    marker="o",
                    markersize=3,
                    label=f"{mode}, {'one step' if step == 'whole' else step}",
                )
        tokens = sorted({b["tokens"] for b in found["bytes"]})
        axes.set_xscale("log", base=2)
        axes.set_xticks(tokens, [f"{t // 1024}k" for t in tokens])
        axes.set_yscale("log")
        axes.set_xlabel(f"tokens of the context, {side}")
    both[0].set_ylabel("bytes on the wire")
    figure.legend(
        *both[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
    )
    _save(figure, path)


def _memory(found: Found, path: Path) -> None:
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    for mode in ("unlabeled", "labeled", "coordinates"):
        points = [
            (b["blocks"] / 1000, b["more_than_stock"])
            for b in found["bytes_per_block"]
            if b["mode"] == mode
        ]
        axes.plot(*zip(*points, strict=True), color=_COLORS[mode], label=mode)
    axes.axhline(150, color=_LIMIT, linestyle=":")
    axes.text(0, 147, "target", color=_LIMIT, va="top")
    axes.set_xlabel("cached blocks, thousands")
    axes.set_ylabel("bytes per block, over stock's")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(0, 0.75))
    _save(figure, path)


def _publisher(found: Found, path: Path) -> None:
    figure = Figure(figsize=(6, 2.4), layout="constrained")
    axes = figure.subplots()
    _bars(axes, [(r["name"], r) for r in found["ratios"]])
    axes.set_xlabel("CPU time (stock = 1)")
    _save(figure, path)


def _serve(found: Found, path: Path) -> None:
    figure = Figure(figsize=(9, 2.4), layout="constrained")
    labels = {
        "per_second": "requests per second (stock = 1)",
        "cpu_seconds": "the server's CPU time (stock = 1)",
    }
    both = figure.subplots(1, 2, sharey=True)
    for axes, (side, label) in zip(both, labels.items(), strict=True):
        _bars(axes, [(r["name"], r) for r in found["ratios"] if r["side"] == side])
        axes.set_xlabel(label)
    _save(figure, path)


PLOTS: Mapping[str, Callable[[Found, Path], None]] = {
    "pool": _pool,
    "wire": _wire,
    "memory": _memory,
    "publisher": _publisher,
    "serve": _serve,
}


def _bars(axes: Axes, rows: Sequence[tuple[str, Mapping[str, float]]]) -> None:
    """Medians as bars, the middle half of the pairs as whiskers."""
    medians = [r["median"] for _, r in rows]
    axes.barh(
        range(len(rows)),
        medians,
        xerr=[
            [r["median"] - r["low"] for _, r in rows],
            [r["high"] - r["median"] for _, r in rows],
        ],
        color=[_COLORS.get(name.partition(",")[0], _OTHER) for name, _ in rows],
        error_kw={"elinewidth": 1, "capsize": 2},
    )
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -1.1)


def _save(figure: Figure, path: Path) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
