# SPDX-License-Identifier: Apache-2.0
"""How long a prompt was, and how much was cached: all that is asked about tokens.

Each answer's `usage` tells it. A chat completion that is streamed tells it on request
only, so the gateway requests it, and keeps that chunk to itself where the client did
not: whoever did not ask may not expect a chunk without choices.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import msgspec

_ON_REQUEST = "/v1/chat/completions"
# What Anthropic's API calls input are the tokens that no cache took part in.
_CACHED = "cache_read_input_tokens"
_INPUTS = ("input_tokens", _CACHED, "cache_creation_input_tokens")
_DETAILS = ("prompt_tokens_details", "input_tokens_details")


class Usage(NamedTuple):
    """Tokens of a prompt, and how many of them were cached (0 where that is not told).

    vLLM tells the latter with `--enable-prompt-tokens-details`.
    """

    prompt_tokens: int
    cached_tokens: int


def is_asked_for(path: str, body: Mapping[str, Any]) -> bool:
    """Whether the client's own request makes the answer tell its usage."""
    options = body.get("stream_options")
    asked = isinstance(options, dict) and bool(options.get("include_usage"))
    return asked or path != _ON_REQUEST or not body.get("stream")


def asked_for(path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same request, so that the answer tells its usage."""
    options = body.get("stream_options") or {}
    if is_asked_for(path, body) or not isinstance(options, dict):
        return body
    return {**body, "stream_options": {**options, "include_usage": True}}


def read(answer: Mapping[str, Any]) -> Usage | None:
    """The usage that a whole answer tells, or a stream in its last word on it."""
    usage = answer.get("usage")
    if usage is None and isinstance(answer.get("response"), dict):
        usage = answer["response"].get("usage")
    if not isinstance(usage, dict):
        return None
    if (tokens := usage.get("prompt_tokens")) is None:
        tokens = sum(usage.get(name) or 0 for name in _INPUTS)
    cached = usage.get(_CACHED) or 0
    for name in _DETAILS:
        cached = (usage.get(name) or {}).get("cached_tokens") or cached
    return Usage(tokens, cached) if tokens else None


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Server-sent events, each as soon as it is whole, however they were cut."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n\n")
        for event in whole:
            yield event + b"\n\n"
    if rest:
        yield rest


def decode_event(event: bytes) -> dict[str, Any]:
    """The object that a server-sent event carries; empty where it carries none."""
    lines = (line[5:] for line in event.splitlines() if line.startswith(b"data:"))
    return decode(b"\n".join(lines))


def decode(content: bytes) -> dict[str, Any]:
    """The object that an answer is; empty where it is none."""
    try:
        answer = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
