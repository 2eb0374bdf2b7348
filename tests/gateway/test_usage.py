# SPDX-License-Identifier: Apache-2.0
"""A prompt's length is read from whatever an answer tells."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import usage

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"usage": {"prompt_tokens": 7, "completion_tokens": 1}}, 7),
        ({"type": "response.completed", "response": {"usage": {"input_tokens": 7}}}, 7),
        ({"usage": {"input_tokens": 2, "cache_read_input_tokens": 5}}, 7),
        ({"usage": None}, None),
        ({"usage": {"output_tokens": 3}}, None),
        ({"type": "message_start", "message": {"usage": {"input_tokens": 0}}}, None),
        ({}, None),
    ],
)
def test_each_api_s_usage_is_understood(
    answer: dict[str, Any], tokens: int | None
) -> None:
    assert usage.prompt_tokens(answer) == tokens


def test_a_stream_of_chat_is_asked_for_its_usage() -> None:
    body = {"stream": True, "stream_options": {"continuous_usage_stats": False}}
    assert usage.asked_for(CHAT, body)["stream_options"] == {
        "continuous_usage_stats": False,
        "include_usage": True,
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {}),
        (CHAT, {"stream": False}),
        (CHAT, {"stream": True, "stream_options": {"include_usage": True}}),
        ("/v1/messages", {"stream": True}),
        ("/v1/responses", {"stream": True}),
        (CHAT, {"stream": True, "stream_options": "the engine says what is wrong"}),
    ],
)
def test_no_other_request_is_changed(path: str, body: dict[str, Any]) -> None:
    assert usage.asked_for(path, body) is body


EVENTS = [
    b'data: {"choices": [1]}\n\n',
    b"event: response.created\ndata: {}\n\n",
    b"data: [DONE]\n\n",
]


@given(st.lists(st.integers(0, sum(map(len, EVENTS)))))
def test_events_are_whole_however_the_stream_was_cut(cuts: list[int]) -> None:
    stream = b"".join(EVENTS)
    borders = [0, *sorted(cuts), len(stream)]

    async def chunks() -> AsyncIterator[bytes]:
        for start, end in itertools.pairwise(borders):
            yield stream[start:end]

    async def read() -> list[bytes]:
        return [event async for event in usage.events(chunks())]

    assert asyncio.run(read()) == EVENTS


def test_an_event_is_passed_on_before_the_next_one_comes() -> None:
    asked: list[bytes] = []

    async def chunks() -> AsyncIterator[bytes]:
        for event in EVENTS:
            asked.append(event)
            yield event

    async def first() -> bytes:
        return await anext(usage.events(chunks()))

    assert asyncio.run(first()) == EVENTS[0]
    assert asked == EVENTS[:1]


@pytest.mark.parametrize("data", [b"[DONE]", b"[" * 100_000, b"3", b'"usage"'])
def test_an_event_without_an_object_says_nothing(data: bytes) -> None:
    assert usage.decode_event(b"data: " + data + b"\n\n") == {}


def test_an_event_s_object_may_be_on_several_lines() -> None:
    event = b'event: x\ndata: {"usage":\ndata: {"prompt_tokens": 3}}\n\n'
    assert json.loads(json.dumps(usage.decode_event(event))) == {
        "usage": {"prompt_tokens": 3}
    }
