# SPDX-License-Identifier: Apache-2.0
"""Requests per second of a real `vllm serve`, stock and patched in turns.

Both servers run, and only one of them has requests at a time. The model is tiny, so
a request is mostly bookkeeping: with a model of use the difference can but shrink.
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
    requests: Annotated[int, typer.Option(help="Of one measurement.")] = 80,
    concurrency: Annotated[int, typer.Option(help="Requests at a time.")] = 8,
    rounds: Annotated[int, typer.Option(help="Pairs of measurements.")] = 10,
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
        urls = {
            name: stack.enter_context(EngineServer(options(tree=tree))).url
            for name, tree in trees.items()
        }

        def measure(server: str, mode: str) -> dict[str, float]:
            return asyncio.run(_measure(urls[server], mode, requests, concurrency))

        for server, mode in {end for pair in COMPARISONS.values() for end in pair}:
            measure(server, mode)
        taken = alternate(
            [
                Pair(name, partial(measure, *of), partial(measure, *to))
                for name, (of, to) in COMPARISONS.items()
            ],
            rounds,
        )
    ratios = {name: ratio(pairs, "per_second") for name, pairs in taken.items()}
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
                "median": round(found.median, 3),
                "low": round(found.low, 3),
                "high": round(found.high, 3),
                "pairs": found.pairs,
            }
            for name, found in ratios.items()
        ],
    }
    print(results.write("serve", output, found))


async def _measure(
    url: str, mode: str, requests: int, concurrency: int
) -> dict[str, float]:
    """Requests per second of this client's time, as `per_second`."""
    left = iter([_request(mode) for _ in range(requests)])
    async with aiohttp.ClientSession(raise_for_status=True) as session:

        async def client() -> None:
            for request in left:
                async with session.post(f"{url}/v1/completions", **request) as answer:
                    await answer.read()

        start = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(concurrency)))
        return {"per_second": requests / (time.perf_counter() - start)}


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
