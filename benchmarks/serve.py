# SPDX-License-Identifier: Apache-2.0
"""Requests per second of a real `vllm serve`, stock and patched in turns.

Both servers run, and only one of them has requests at a time. The model is tiny, so
a request is mostly bookkeeping: with a model of use the difference can but shrink.

Requests per second are what counts, and waver with whatever else the machine does; the
CPU time that the server took for each request wavers less.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import psutil
import typer

from benchmarks import results
from benchmarks.pairs import Pair, alternate, ratio
from cpu_engine.server import MODEL_NAME, EngineServer, ServerOptions
from cpu_engine.tiny_model import TinyModel, ensure_model
from engine import served_trees
from sources import CACHE

PROMPT_TOKENS, SHARED_TOKENS = 512, 128
NUM_BLOCKS = 256
"""Of 32 tokens: sixteen prompts, so that each request evicts an older one's blocks."""

COMPARISONS = {
    "stock again": (("stock", "unlabeled"), ("stock", "unlabeled")),
    "unlabeled": (("patched", "unlabeled"), ("stock", "unlabeled")),
    "labeled": (("patched", "labeled"), ("stock", "unlabeled")),
    "coordinates": (("patched", "coordinates"), ("stock", "unlabeled")),
}
_numbers = itertools.count()


def main(
    requests: Annotated[int, typer.Option(help="Of one measurement.")] = 48,
    concurrency: Annotated[int, typer.Option(help="Requests at a time.")] = 8,
    rounds: Annotated[int, typer.Option(help="Pairs of measurements.")] = 15,
    output: Annotated[Path | None, typer.Option(help="The JSON file.")] = None,
) -> None:
    """Measures requests per second, by mode."""
    options = partial(
        ServerOptions,
        model=ensure_model(TinyModel.QWEN2, CACHE / "models"),
        cache=CACHE / "vllm",
        num_blocks=NUM_BLOCKS,
        extra_args=("--disable-uvicorn-access-log",),
    )
    trees = {"stock": served_trees.stock(), "patched": served_trees.patched()}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(EngineServer(options(tree=tree)))
            for name, tree in trees.items()
        }

        def measure(server: str, mode: str) -> dict[str, float]:
            return _measure(servers[server], mode, requests, concurrency)

        for server, mode in {end for pair in COMPARISONS.values() for end in pair}:
            measure(server, mode)
        taken = alternate(
            [
                Pair(name, partial(measure, *of), partial(measure, *to))
                for name, (of, to) in COMPARISONS.items()
            ],
            rounds,
        )
    ratios = [
        (name, side, ratio(pairs, side))
        for name, pairs in taken.items()
        for side in ("per_second", "cpu_seconds")
    ]
    found = {
        "releases": [served_trees.SERVED],
        "settings": {
            "requests": requests,
            "concurrency": concurrency,
            "rounds": rounds,
            "prompt_tokens": PROMPT_TOKENS,
        },
        "ratios": [
            {
                "name": name,
                "side": side,
                "median": round(found.median, 3),
                "low": round(found.low, 3),
                "high": round(found.high, 3),
                "pairs": found.pairs,
            }
            for name, side, found in ratios
        ],
    }
    print(results.write("serve", output, found))


def _measure(
    server: EngineServer, mode: str, requests: int, concurrency: int
) -> dict[str, float]:
    """Sends requests.

    Returns:
        `per_second`: requests in a second of this client's time. `cpu_seconds`: what
        the server's processes took for one.
    """
    bodies = [_request(mode) for _ in range(requests)]
    before, start = _cpu_seconds(server), time.perf_counter()
    asyncio.run(_send(server.url, bodies, concurrency))
    took = time.perf_counter() - start
    return {
        "per_second": requests / took,
        "cpu_seconds": (_cpu_seconds(server) - before) / requests,
    }


def _cpu_seconds(server: EngineServer) -> float:
    """CPU time that the server's processes have taken so far."""
    parent = psutil.Process(server.pid)
    times = [p.cpu_times() for p in (parent, *parent.children(recursive=True))]
    return sum(float(t.user + t.system) for t in times)


async def _send(url: str, bodies: list[dict[str, Any]], concurrency: int) -> None:
    left = iter(bodies)
    async with aiohttp.ClientSession(raise_for_status=True) as session:

        async def client() -> None:
            for request in left:
                async with session.post(f"{url}/v1/completions", **request) as answer:
                    await answer.read()

        await asyncio.gather(*(client() for _ in range(concurrency)))


def _request(mode: str) -> dict[str, Any]:
    number = next(_numbers)
    body: dict[str, Any] = {
        "model": MODEL_NAME,
        "prompt": list(itertools.islice(_prompt(number), PROMPT_TOKENS)),
        "max_tokens": 1,
    }
    if mode == "unlabeled":
        return {"json": body}
    if mode == "coordinates":
        body["vllm_xargs"] = {"kv_cache_report_mode": mode}
    labels = {
        "X-Session-ID": f"{number % 8:032x}",
        "X-Continuation-ID": f"{number:032x}",
    }
    return {"json": body, "headers": labels}


def _prompt(number: int) -> Iterator[int]:
    """Tokens that all prompts start with, and then ones that no other goes on with."""
    yield from itertools.repeat(7, SHARED_TOKENS)
    while True:
        yield 10 + number % 400
        yield 10 + number // 400 % 400


if __name__ == "__main__":
    typer.run(main)
