# SPDX-License-Identifier: Apache-2.0
"""The publisher's thread: what it adds to a context, and what a full queue stops.

The engine's steps and the publisher's encoder share one interpreter lock, so what
the thread computes the steps wait for.
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

STOCK = ("stock", "unlabeled")
COMPARISONS = {
    "stock again": (("again", "unlabeled"), STOCK),
    "events off": (("stock", "off"), STOCK),
    "unlabeled": (("patched", "unlabeled"), STOCK),
    "labeled": (("patched", "labeled"), STOCK),
    "coordinates": (("patched", "coordinates"), STOCK),
}
STALLS = {"stock": ("stock", "unlabeled"), "coordinates": ("patched", "coordinates")}
QUEUE_SIZES = (2, 64, 100_000)
_STEPS = 200


def main(
    release: Annotated[str, typer.Option(help="Of the tested ones.")] = "0.32.0",
    blocks: Annotated[int, typer.Option(help="Of each context.")] = 8192,
    rounds: Annotated[int, typer.Option(help="Pairs of contexts.")] = 40,
    buffered: Annotated[int, typer.Option(help="Batches to replay.")] = 1000,
    output: Annotated[Path | None, typer.Option(help="The JSON file.")] = None,
) -> None:
    """Measures what publishing costs the engine's process."""
    stock, patched = stock_tree(release), patched_tree(release)
    trees = {"stock": stock, "patched": patched, "again": stock}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(tree, "publisher"))
            for name, tree in trees.items()
        }
        ends = [end for comparison in COMPARISONS.values() for end in comparison]
        for name, worker in workers.items():
            modes = sorted({mode for of, mode in ends if of == name})
            worker.begin("prepare", modes=modes, num_blocks=blocks)
        for worker in workers.values():
            worker.end()
        taken = alternate(
            [
                Pair(
                    name,
                    *(
                        partial(workers[worker].call, "measure", mode=mode)
                        for worker, mode in comparison
                    ),
                )
                for name, comparison in COMPARISONS.items()
            ],
            rounds,
        )
        stalls = [
            {
                "mode": name,
                "max_queue_size": queue_size,
                **workers[worker].call(
                    "stall",
                    mode=mode,
                    num_blocks=blocks,
                    buffered=buffered,
                    queue_size=queue_size,
                    steps=_STEPS,
                ),
            }
            for queue_size in QUEUE_SIZES
            for name, (worker, mode) in STALLS.items()
        ]
    ratios = {name: ratio(pairs, "context") for name, pairs in taken.items()}
    found = {
        "releases": [release],
        "settings": {"blocks": blocks, "rounds": rounds, "buffered": buffered},
        "ratios": [
            {
                "name": name,
                "median": round(found.median, 3),
                "low": round(found.low, 3),
                "high": round(found.high, 3),
                "pairs": found.pairs,
            }
            for name, found in ratios.items()
        ],
        "stalls": stalls,
    }
    print(results.write("publisher", output, found))


if __name__ == "__main__":
    typer.run(main)
