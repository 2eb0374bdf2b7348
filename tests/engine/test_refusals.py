# SPDX-License-Identifier: Apache-2.0
"""A value that is no label is refused with a 400, and the engine goes on."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cpu_engine.server import MODEL_NAME
from engine.engine import Engine, fresh_text

FIELDS = ["session_id", "continuation_id"]
HEADERS = {"session_id": "X-Session-ID", "continuation_id": "X-Continuation-ID"}

PATHS = [
    pytest.param("/v1/chat/completions", id="chat"),
    pytest.param("/v1/completions", id="completions"),
]
BAD_STRINGS = [
    pytest.param("x" * 257, "must have at most 256 characters, not 257.", id="long"),
    pytest.param(" \u2003 ", "must not be blank.", id="blank"),
    pytest.param("a\x1bb", "must not contain control characters.", id="control"),
    pytest.param(
        "a\ud800",
        "must be encodable as UTF-8 (it has a lone surrogate).",
        id="surrogate",
    ),
]
NOT_STRINGS = [
    pytest.param(7, id="number"),
    pytest.param(["a"], id="list"),
    pytest.param({"a": 1}, id="object"),
    pytest.param(True, id="bool"),
]


def send(
    engine: Engine, path: str, body: dict[str, Any], headers: Any = None
) -> httpx.Response:
    """Posts a body as plain `json` writes it, which lets a lone surrogate pass."""
    text = fresh_text()
    prompt: dict[str, Any] = (
        {"messages": [{"role": "user", "content": text}]}
        if "chat" in path
        else {"prompt": text}
    )
    return httpx.post(
        f"{engine.server.url}{path}",
        content=json.dumps({"model": MODEL_NAME, "max_tokens": 1, **prompt, **body}),
        headers={"Content-Type": "application/json", **(headers or {})},
        timeout=60,
        trust_env=False,
    )


@pytest.fixture(autouse=True)
def _unharmed(engine: Engine) -> Iterator[None]:
    """After each test the engine serves, and publishes only what it accepted."""
    engine.stored()
    yield
    good = {"session_id": "good", "continuation_id": "good"}
    assert send(engine, "/v1/completions", good).status_code == 200
    assert {event.continuation_id for event in engine.stored()} == {"good"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(("value", "fault"), BAD_STRINGS)
def test_a_bad_body_field_is_refused_by_name(
    engine: Engine, path: str, field: str, value: str, fault: str
) -> None:
    assert_refused(send(engine, path, {field: value}), field, fault)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(("value", "fault"), BAD_STRINGS)
def test_a_bad_value_in_vllm_xargs_is_refused_by_name(
    engine: Engine, path: str, field: str, value: str, fault: str
) -> None:
    assert_refused(send(engine, path, {"vllm_xargs": {field: value}}), field, fault)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("field", FIELDS)
def test_a_header_that_is_too_long_is_refused_by_name(
    engine: Engine, path: str, field: str
) -> None:
    response = send(engine, path, {}, headers={HEADERS[field]: "x" * 257})
    assert_refused(response, field, "must have at most 256 characters, not 257.")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", NOT_STRINGS)
def test_a_body_field_that_is_no_string_is_refused_by_name(
    engine: Engine, path: str, field: str, value: Any
) -> None:
    assert_refused(send(engine, path, {field: value}), field, "")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", NOT_STRINGS)
def test_an_xarg_that_is_no_string_is_refused_by_name(
    engine: Engine, path: str, field: str, value: Any
) -> None:
    assert_refused(send(engine, path, {"vllm_xargs": {field: value}}), field, "")


@pytest.mark.parametrize("field", FIELDS)
def test_only_the_value_that_wins_is_looked_at(engine: Engine, field: str) -> None:
    labels = {"session_id": "good", "continuation_id": "good"}
    body = {**labels, "vllm_xargs": {field: " "}}
    assert send(engine, "/v1/completions", body).status_code == 200


def assert_refused(response: httpx.Response, field: str, fault: str) -> None:
    assert response.status_code == 400, response.text
    message = response.json()["error"]["message"]
    assert f"{field} {fault}" in message if fault else field in message
