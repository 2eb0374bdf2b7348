# SPDX-License-Identifier: Apache-2.0
"""How many tokens a prompt had: all about tokens that a gateway needs to know.

Each answer's `usage` tells it. A chat completion that is streamed tells it on request
only, so the gateway requests it, and keeps that chunk to itself where the client did
not: whoever did not ask may not expect a chunk without choices.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

_ON_REQUEST = "/v1/chat/completions"
# What Anthropic's API calls input are the tokens that no cache took part in.
_INPUTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


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


def prompt_tokens(answer: Mapping[str, Any]) -> int | None:
    """The prompt's length, of a whole answer or of a stream's last word on it."""
    usage = answer.get("usage")
    if usage is None and isinstance(answer.get("response"), dict):
        usage = answer["response"].get("usage")
    if not isinstance(usage, dict):
        return None
    if (tokens := usage.get("prompt_tokens")) is None:
        tokens = sum(usage.get(name) or 0 for name in _INPUTS)
    return tokens or None


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
