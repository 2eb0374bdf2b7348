# SPDX-License-Identifier: Apache-2.0
"""Bytes on the wire of a context, admitted and evicted, and the time to publish it."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import results
from benchmarks.pairs import Pair, alternate, ratio
from benchmarks.workers import Worker
from trees import patched_tree, stock_tree

BLOCK_SIZE = 16
STEPS = {"whole": 1 << 20, "8192 tokens": 512, "one block": 1}
"""Blocks of a scheduler step: the whole context, `vllm serve`'s default, and what a
decoding request fills at a time."""

MODES = {
    "stock": ("stock", "unlabeled"),
    "unlabeled": ("patched", "unlabeled"),
    "labeled": ("patched", "labeled"),
    "coordinates": ("patched", "coordinates"),
}
"""Mode -> worker and the mode of its requests. Full mode admits as labeled does."""
SIDES = ("admission", "eviction")


def main(
    release: Annotated[str, typer.Option(help="Of the tested ones.")] = "0.32.0",
    contexts: Annotated[
        str, typer.Option(help="Tokens of each, after one another.")
    ] = "2048,8192,32768,131072",
    rounds: Annotated[int, typer.Option(help="Pairs of publications.")] = 9,
    output: Annotated[Path | None, typer.Option(help="The JSON file.")] = None,
) -> None:
    """Measures what is published of a context, by mode."""
    tokens = [int(context) for context in contexts.split(",")]
    with ExitStack() as stack:
        trees = {"stock": stock_tree(release), "patched": patched_tree(release)}
        workers = {
            name: stack.enter_context(Worker(tree, "wire"))
            for name, tree in trees.items()
        }
        for name, worker in workers.items():
            scenes = {
                _scene(mode, count, step): (kind, count // BLOCK_SIZE, STEPS[step])
                for mode, (of, kind) in MODES.items()
                if of == name
                for count in tokens
                for step in STEPS
            }
            worker.begin("prepare", scenes=scenes)
        num_bytes = {
            k: v for worker in workers.values() for k, v in worker.end().items()
        }
        encoding = list(_encoding(workers, max(tokens), rounds))
    found = {
        "releases": [release],
        "settings": {"contexts": tokens, "rounds": rounds},
        "bytes": [
            {"mode": mode, "tokens": count, "step": step, **num_bytes[scene]}
            for mode in MODES
            for count in tokens
            for step in STEPS
            for scene in [_scene(mode, count, step)]
        ],
        "encoding": encoding,
    }
    print(results.write("wire", output, found))


def _encoding(
    workers: Mapping[str, Worker], tokens: int, rounds: int
) -> Iterator[Mapping[str, Any]]:
    """Time to publish the longest context, to stock's."""

    def measure(mode: str, step: str) -> Any:
        name, _ = MODES[mode]
        return workers[name].call("measure", name=_scene(mode, tokens, step))

    compared = [(mode, step) for mode in MODES if mode != "stock" for step in STEPS]
    pairs = [
        Pair(
            _scene(mode, tokens, step),
            partial(measure, mode, step),
            partial(measure, "stock", step),
        )
        for mode, step in compared
    ]
    taken = alternate(pairs, rounds)
    for mode, step in compared:
        for side in SIDES:
            found = ratio(taken[_scene(mode, tokens, step)], side)
            yield {
                "mode": mode,
                "tokens": tokens,
                "step": step,
                "side": side,
                "median": round(found.median, 4),
                "low": round(found.low, 4),
                "high": round(found.high, 4),
                "pairs": found.pairs,
            }


def _scene(mode: str, tokens: int, step: str) -> str:
    return f"{mode}, {tokens} tokens, {step}"


if __name__ == "__main__":
    typer.run(main)
