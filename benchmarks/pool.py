# SPDX-License-Identifier: Apache-2.0
"""Admissions and evictions through the real block pool, stock and patched in turns.

Three processes take turns: stock, patched, and stock once more, whose ratio to the
first is what this machine calls equal. All start anew several times, since where a
process happens to lie in memory costs some percent either way.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks import results
from benchmarks.pairs import Pair, Taken, alternate, ratio
from benchmarks.workers import Worker
from trees import patched_tree, stock_tree

PREFILL, DECODE = 512, 1
"""Blocks of one step: 8192 tokens, or the one block that decoding fills at times."""

# Worker and scene, compared to worker and scene; a scene is a kind of traffic and
# the blocks of a step.
COMPARISONS = {
    f"{name}{suffix}": ((of, kind, step), (to, to_kind, step))
    for step, suffix in ((PREFILL, ""), (DECODE, ", one block a step"))
    for name, (of, kind), (to, to_kind) in (
        ("stock again", ("again", "unlabeled"), ("stock", "unlabeled")),
        ("events on, stock", ("stock", "unlabeled"), ("stock", "off")),
        ("events off", ("patched", "off"), ("stock", "off")),
        ("unlabeled", ("patched", "unlabeled"), ("stock", "unlabeled")),
        ("labeled", ("patched", "labeled"), ("stock", "unlabeled")),
        ("full", ("patched", "full"), ("stock", "unlabeled")),
        ("labeled, mixed", ("patched", "mixed"), ("stock", "unlabeled")),
        ("coordinates", ("patched", "coordinates"), ("stock", "unlabeled")),
        (
            "coordinates, mixed",
            ("patched", "mixed-coordinates"),
            ("stock", "unlabeled"),
        ),
        ("coordinates to events off", ("patched", "coordinates"), ("stock", "off")),
    )
}
SIDES = ("admission", "eviction")


def main(
    release: Annotated[str, typer.Option(help="Of the tested ones.")] = "0.32.0",
    blocks: Annotated[int, typer.Option(help="Of each context.")] = 8192,
    starts: Annotated[int, typer.Option(help="How often processes start anew.")] = 3,
    rounds: Annotated[int, typer.Option(help="Pairs for each start.")] = 15,
    output: Annotated[Path | None, typer.Option(help="The JSON file.")] = None,
) -> None:
    """Measures what admissions and evictions cost, by mode."""
    taken = [_take(release, blocks, rounds) for _ in range(starts)]
    found = {
        "releases": [release],
        "settings": {"blocks": blocks, "starts": starts, "rounds": rounds},
        "ratios": list(_ratios(taken)),
        "microseconds_per_block": _times(taken),
    }
    print(results.write("pool", output, found))


def _take(release: str, blocks: int, rounds: int) -> Taken:
    stock, patched = stock_tree(release), patched_tree(release)
    trees = {"stock": stock, "patched": patched, "again": stock}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(tree, "pool"))
            for name, tree in trees.items()
        }
        sides = [side for sides in COMPARISONS.values() for side in sides]
        for name, worker in workers.items():
            scenes = {
                _scene(kind, step): (kind, _context_blocks(blocks, step), step)
                for of, kind, step in sides
                if of == name
            }
            worker.begin("prepare", scenes=scenes)
        for worker in workers.values():
            worker.end()

        def measure(side: tuple[str, str, int]) -> Any:
            name, kind, step = side
            return workers[name].call("measure", name=_scene(kind, step))

        comparisons = [
            Pair(name, partial(measure, of), partial(measure, to))
            for name, (of, to) in COMPARISONS.items()
        ]
        return alternate(comparisons, rounds)


def _scene(kind: str, step: int) -> str:
    return f"{kind}, {step}"


def _context_blocks(blocks: int, step: int) -> int:
    """A context that grows block by block takes long; a shorter one tells as much."""
    return max(blocks // 8, 1) if step == DECODE else blocks


def _ratios(taken: list[Taken]) -> Iterator[Mapping[str, Any]]:
    for name, ((of, kind, step), (to, to_kind, _)) in COMPARISONS.items():
        for side in SIDES:
            together = ratio([pair for start in taken for pair in start[name]], side)
            yield {
                "name": name,
                "side": side,
                "of": f"{of} {kind}",
                "to": f"{to} {to_kind}",
                "step_blocks": step,
                "median": round(together.median, 3),
                "low": round(together.low, 3),
                "high": round(together.high, 3),
                "pairs": together.pairs,
                "by_start": [round(ratio(s[name], side).median, 3) for s in taken],
            }


def _times(taken: list[Taken]) -> Mapping[str, Mapping[str, float]]:
    """For information: times of one machine in one hour, not to be compared."""
    seen: dict[str, dict[str, list[float]]] = {}
    for name, ends in COMPARISONS.items():
        for index, (worker, kind, step) in enumerate(ends):
            if worker == "again":
                continue
            by_side = seen.setdefault(
                f"{worker} {_scene(kind, step)}", {side: [] for side in SIDES}
            )
            for start in taken:
                for pair in start[name]:
                    for side in SIDES:
                        by_side[side].append(pair[index][side])
    return {
        scene: {
            side: round(median(seconds) * 1e6, 3) for side, seconds in by_side.items()
        }
        for scene, by_side in seen.items()
    }


if __name__ == "__main__":
    typer.run(main)
