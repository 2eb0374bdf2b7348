# SPDX-License-Identifier: Apache-2.0
"""What the side map takes: memory per cached block, and time of garbage collections.

Each mode has a fresh process whose pool is filled in steps; what the process has
more in memory than stock's at the same fill is the mode's. Then all of them collect
garbage in turns. Last, a million continuations pass through a small pool, which must
not leave anything behind.
"""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import results
from benchmarks.pairs import Pair, alternate, ratio
from benchmarks.workers import Worker
from trees import patched_tree, stock_tree

MODES = {
    "stock": ("stock", "unlabeled"),
    "unlabeled": ("patched", "unlabeled"),
    "labeled": ("patched", "labeled"),
    "coordinates": ("patched", "coordinates"),
}
"""Mode -> tree, and the mode of the requests."""
_MEASURED_AT = 10
"""Fills that are measured; a dict grows in leaps, which one fill would not show."""


def main(
    release: Annotated[str, typer.Option(help="Of the tested ones.")] = "0.32.0",
    blocks: Annotated[int, typer.Option(help="Cached in the end.")] = 1_000_000,
    continuations: Annotated[int, typer.Option(help="Passing through.")] = 1_000_000,
    rounds: Annotated[int, typer.Option(help="Pairs of collections.")] = 10,
    output: Annotated[Path | None, typer.Option(help="The JSON file.")] = None,
) -> None:
    """Measures what attributions cost while they are kept."""
    trees = {"stock": stock_tree(release), "patched": patched_tree(release)}
    fills = [blocks * step // _MEASURED_AT for step in range(1, _MEASURED_AT + 1)]
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(trees[tree], "memory"))
            for name, (tree, _) in MODES.items()
        }
        for name, (_, mode) in MODES.items():
            workers[name].begin("start", num_blocks=blocks, mode=mode)
        for worker in workers.values():
            worker.end()
        empty = {name: worker.call("resident") for name, worker in workers.items()}
        grown: dict[str, list[int]] = {name: [] for name in MODES}
        for first, stop in zip([0, *fills], fills, strict=False):
            for name, (_, mode) in MODES.items():
                workers[name].begin("grow", first=first, stop=stop, mode=mode)
            for name, worker in workers.items():
                grown[name].append(worker.end() - empty[name])
        by_size = {name: worker.call("map_bytes") for name, worker in workers.items()}
        collections = alternate(
            [
                Pair(
                    name,
                    partial(workers[name].call, "collect"),
                    partial(workers["stock"].call, "collect"),
                )
                for name in MODES
                if name != "stock"
            ],
            rounds,
        )
    collected = {
        name: ratio(pairs, "collection") for name, pairs in collections.items()
    }
    found = {
        "releases": [release],
        "settings": {"blocks": blocks, "continuations": continuations},
        "bytes_per_block": [
            {
                "mode": name,
                "blocks": fill,
                "more_than_stock": round((mine - stock) / fill, 1) + 0.0,
            }
            for name in MODES
            if name != "stock"
            for fill, mine, stock in zip(
                fills, grown[name], grown["stock"], strict=True
            )
        ],
        "stock_bytes_per_block": round(grown["stock"][-1] / blocks, 1),
        "map_bytes_per_block": {
            name: round(size / blocks, 1) for name, size in by_size.items()
        },
        "collection": {
            name: {
                "median": round(found.median, 3),
                "low": round(found.low, 3),
                "high": round(found.high, 3),
                "pairs": found.pairs,
            }
            for name, found in collected.items()
        },
        "passing_through": _pass_through(trees["patched"], continuations),
    }
    print(results.write("memory", output, found))


def _pass_through(tree: Path, continuations: int) -> dict[str, int]:
    """What a tenth of the continuations leave behind, and what all of them do."""
    tenth = continuations // 10
    with Worker(tree, "memory") as worker:
        first, last = (
            worker.call(
                "pass_through", num_contexts=count, first=start, mode="coordinates"
            )
            for start, count in ((0, tenth), (tenth, continuations - tenth))
        )
    return {
        "continuations": continuations,
        "bytes_more_after_all_than_after_a_tenth": last["resident"] - first["resident"],
        "longest_container_left": last["containers"],
    }


if __name__ == "__main__":
    typer.run(main)
