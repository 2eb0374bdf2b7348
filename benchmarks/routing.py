# SPDX-License-Identifier: Apache-2.0
"""Where the next turn goes: four routers and vLLM's own over the same traces.

Two engines with small pools, in a first case one request at a time, then an agentic
workload whose sessions do not fit, then requests that share nothing. Before each run
both caches are emptied.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console

from benchmarks import results, routing_page, routing_trace
from benchmarks.pairs import Pair, alternate, ratio
from benchmarks.routing_model import MAX_MODEL_LEN, ensure_model
from benchmarks.routing_play import Sample, at_once, by_lanes, in_order, summarize
from benchmarks.routing_routers import (
    BELIEVERS,
    GATEWAYS,
    VLLM_ROUTER,
    Running,
    gateway,
    vllm_router,
)
from benchmarks.routing_trace import BLOCK, Load, Turn
from cpu_engine.server import MODEL_NAME, EngineServer, ServerOptions
from engine import served_trees
from sources import CACHE

_STRANGERS = 32
_LANES = 4

console = Console(highlight=False)

Start = Callable[[], AbstractContextManager[Running]]


def main(
    blocks: Annotated[int, typer.Option(help="Of each engine's pool.")] = 256,
    rounds: Annotated[int, typer.Option(help="Runs of each under load.")] = 3,
    pairs: Annotated[int, typer.Option(help="Comparisons of speed.")] = 7,
    peer: Annotated[bool, typer.Option(help="Whether vLLM's own router runs.")] = True,
    output: Annotated[Path | None, typer.Option(help="The JSON file.")] = None,
) -> None:
    """Measures how often each router finds what it sent a request for."""
    model = ensure_model(CACHE / "models")
    with ExitStack() as stack:
        servers = [stack.enter_context(_server(model, blocks)) for _ in range(2)]
        starts: dict[str, Start] = {
            name: partial(gateway, servers, router) for name, router in GATEWAYS.items()
        }
        if peer:
            log = CACHE / "vllm-router.log"
            starts[VLLM_ROUTER] = partial(vllm_router, servers, CACHE, log)
        bench = Bench(servers, starts)
        found = {
            "releases": [served_trees.SERVED],
            "blocks": blocks,
            "block_size": BLOCK,
            "sequential": bench.sequential(routing_trace.pairs(model)),
            "load": bench.load(Load(), model, rounds),
            "strangers": bench.strangers(model, pairs),
        }
    path = results.write("routing", output, found)
    if output is None:
        routing_page.write(found)
    console.print(f"Wrote {path}")


def _server(model: Path, blocks: int) -> EngineServer:
    return EngineServer(
        ServerOptions(
            model,
            cache=CACHE / "vllm",
            tree=served_trees.patched(),
            block_size=BLOCK,
            num_blocks=blocks,
            max_model_len=MAX_MODEL_LEN,
            # For POST /reset_prefix_cache.
            env={"VLLM_SERVER_DEV_MODE": "1"},
        )
    )


class Bench:
    """The engines, and the routers that can be started in front of them."""

    def __init__(
        self, servers: Sequence[EngineServer], starts: dict[str, Start]
    ) -> None:
        self._servers = servers
        self._starts = starts

    def sequential(self, trace: Sequence[Turn]) -> dict[str, Any]:
        """Pairs of a long turn and its continuation, one request at a time."""
        return {
            name: self._run(name, trace, in_order, "sequential")
            for name in self._starts
        }

    def load(self, load: Load, model: Path, rounds: int) -> dict[str, Any]:
        """Sessions that do not fit, all at once; the order of routers changes."""
        trace = routing_trace.agents(model, load)
        runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
        names = list(self._starts)
        for number in range(rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                runs[name].append(self._run(name, trace, at_once, f"load {number + 1}"))
        shape = {"requests": len(trace), "tokens": sum(t.tokens for t in trace)}
        return {"workload": asdict(load) | shape, "runs": runs}

    def strangers(self, model: Path, pairs: int) -> dict[str, Any]:
        """What choosing costs where there is nothing to choose for."""
        trace = routing_trace.strangers(model, _STRANGERS)

        def seconds(name: str) -> dict[str, float]:
            self._forget()
            with self._starts[name]() as running:
                samples = asyncio.run(by_lanes(running.url, trace, _LANES))
            mean = sum(sample.whole for sample in samples) / len(samples)
            console.print(f"strangers    {name:20} {1000 * mean:.0f} ms")
            return {"seconds": mean}

        of, to = partial(seconds, "coordinates"), partial(seconds, "round robin")
        taken = alternate([Pair("coordinates", of, to)], pairs)["coordinates"]
        return {
            "requests": len(trace),
            "lanes": _LANES,
            "pairs": [[of["seconds"], to["seconds"]] for of, to in taken],
            "ratio": asdict(ratio(taken, "seconds")),
        }

    def _run(
        self,
        name: str,
        trace: Sequence[Turn],
        play: Callable[[str, Sequence[Turn]], Any],
        case: str,
    ) -> dict[str, Any]:
        self._forget()
        with self._starts[name]() as running:
            samples: list[Sample] = asyncio.run(play(running.url, trace))
        expected = running.expected if name in BELIEVERS else None
        summary = summarize(samples, expected)
        console.print(
            f"{case:12} {name:20} returned {summary.returned} of"
            f" {summary.continuations}, hit {summary.hit:.2%} of {summary.ceiling:.2%}",
            soft_wrap=True,
        )
        return asdict(summary)

    def _forget(self) -> None:
        # That a cache was emptied is published with the next step that an engine takes.
        hello = {"model": MODEL_NAME, "prompt": "Hello", "max_tokens": 1}
        for server in self._servers:
            for path, body in (("reset_prefix_cache", None), ("v1/completions", hello)):
                url = f"{server.url}/{path}"
                httpx.post(url, json=body, timeout=60).raise_for_status()


if __name__ == "__main__":
    os.nice(5)
    typer.run(main)
