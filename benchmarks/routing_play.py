# SPDX-License-Identifier: Apache-2.0
"""Plays a trace through a router, and says what the engines found of each prompt."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx

from benchmarks.routing_trace import BLOCK, Turn
from cpu_engine.server import MODEL_NAME

_REPLY_TOKENS = 8
_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Sample:
    """What became of one turn.

    Attributes:
        turn: The turn.
        cached: Tokens of its prompt that were in that engine's cache.
        first_token: Seconds from sending to the first token.
        whole: Seconds from sending to the end.
    """

    turn: Turn
    cached: int
    first_token: float
    whole: float


async def in_order(url: str, trace: Sequence[Turn]) -> list[Sample]:
    """One turn after the other, without pauses."""
    async with _client() as client:
        return [await _ask(client, url, turn) for turn in trace]


async def at_once(url: str, trace: Sequence[Turn]) -> list[Sample]:
    """Each turn its pause after its parent's answer, or after the start."""
    async with _client() as client:
        playing: dict[str, asyncio.Task[Sample]] = {}

        async def play(turn: Turn) -> Sample:
            if turn.parent is not None:
                await playing[turn.parent]
            await asyncio.sleep(turn.pause)
            return await _ask(client, url, turn)

        async with asyncio.TaskGroup() as group:
            for turn in trace:
                playing[turn.name] = group.create_task(play(turn))
        return [playing[turn.name].result() for turn in trace]


async def by_lanes(url: str, trace: Sequence[Turn], lanes: int) -> list[Sample]:
    """So many turns at any time, until all were sent."""
    async with _client() as client:
        left = iter(trace)

        async def lane() -> list[Sample]:
            return [await _ask(client, url, turn) for turn in left]

        played = await asyncio.gather(*(lane() for _ in range(lanes)))
        return [sample for samples in played for sample in samples]


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=_TIMEOUT_S, limits=httpx.Limits())


async def _ask(client: httpx.AsyncClient, url: str, turn: Turn) -> Sample:
    body = {
        "model": MODEL_NAME,
        "messages": turn.messages,
        "max_tokens": _REPLY_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        # Goes through every router as it is: a name to find its choice by.
        "user": turn.name,
    }
    first_token: float | None = None
    said: Mapping[str, object] = {}
    sent = time.perf_counter()
    async with client.stream(
        "POST", f"{url}/v1/chat/completions", json=body
    ) as response:
        if response.is_error:
            await response.aread()
            raise RuntimeError(f"{turn.name}: {response.status_code} {response.text}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            said = json.loads(line[len("data: ") :])
            # The chunk that names the role comes with the first token.
            first_token = first_token or time.perf_counter() - sent
    usage = said.get("usage")
    if first_token is None or not isinstance(usage, dict):
        raise RuntimeError(f"{turn.name}: the stream ended early, with {said}")
    if usage["prompt_tokens"] != turn.tokens:
        raise RuntimeError(
            f"{turn.name} has {usage['prompt_tokens']} tokens, not {turn.tokens}"
        )
    return Sample(
        turn,
        usage["prompt_tokens_details"]["cached_tokens"] or 0,
        first_token,
        time.perf_counter() - sent,
    )


@dataclass(frozen=True)
class Summary:
    """A run in figures; all but the last two are of its continuations.

    Attributes:
        continuations: Turns with a parent.
        returned: Those that came to a replica that was warm: that held more of them
            than what all sessions begin with.
        hit: Mean share of the prompt that was cached.
        ceiling: What `hit` is if nothing is evicted and every turn returns.
        first_tokens: Seconds to the first token.
        routed: Requests that the router sent somewhere for a prefix that it expected
            there; None where it expects nothing.
        phantoms: Those of which the engine found less, by a block or more.
    """

    continuations: int
    returned: int
    hit: float
    ceiling: float
    first_tokens: tuple[float, ...]
    routed: int | None
    phantoms: int | None


def summarize(samples: Sequence[Sample], expected: Mapping[str, int] | None) -> Summary:
    """The figures; `expected` as in `Running`, None for who expects nothing."""
    continued = [sample for sample in samples if sample.turn.parent is not None]
    routed = phantoms = None
    if expected is not None:
        # A prefix that the prompt does not have is no prefix that is gone.
        believed = [
            (s, min(expected[s.turn.name], s.turn.ceiling) // BLOCK * BLOCK)
            for s in samples
        ]
        routed = sum(tokens > 0 for _, tokens in believed)
        phantoms = sum(sample.cached < tokens for sample, tokens in believed)
    return Summary(
        len(continued),
        sum(s.cached > s.turn.common for s in continued),
        _mean([s.cached / s.turn.tokens for s in continued]),
        _mean([s.turn.ceiling / s.turn.tokens for s in continued]),
        tuple(round(s.first_token, 4) for s in continued),
        routed,
        phantoms,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
