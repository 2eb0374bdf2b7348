# SPDX-License-Identifier: Apache-2.0
"""The ways over HTTP into an engine, and where a request on each carries a label.

The tests send a label in every place of every way, and hold what reaches the
events against `Way.places`; the table in `docs/entrances.md` is made from the same.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx

from cpu_engine.server import MODEL_NAME
from engine.engine import BLOCK, Engine, fresh_text, fresh_tokens

LABELS = ("session_id", "continuation_id")
HEADERS = {"session_id": "X-Session-ID", "continuation_id": "X-Continuation-ID"}

Json = dict[str, Any]


class Place(StrEnum):
    """Where a request carries a label."""

    BODY = "body field"
    HEADER = "header"
    XARGS = "vllm_xargs"


EVERYWHERE = frozenset(Place)
NO_BODY_FIELD = frozenset({Place.HEADER, Place.XARGS})

Labels = Mapping[Place, Mapping[str, Any]]
Headers = Sequence[tuple[str, str | bytes]]


@dataclass(frozen=True)
class Way:
    """One way into the engine: an endpoint, and what is asked of it.

    Attributes:
        name: In words, for the table and the ids of tests.
        path: The endpoint.
        body: Makes a body with a prompt of three blocks that no other request had.
        places: Where a label is taken from.
        xargs: Where in the body `vllm_xargs` are, as a path of keys.
    """

    name: str
    path: str
    body: Callable[[], Json]
    places: frozenset[Place] = EVERYWHERE
    xargs: tuple[str, ...] = ("vllm_xargs",)

    def request(self, labels: Labels) -> tuple[Json, Headers]:
        """A body and headers with labels in the given places."""
        body = self.body() | {"model": MODEL_NAME}
        body |= labels.get(Place.BODY, {})
        headers = [
            (HEADERS[name], label)
            for name, label in labels.get(Place.HEADER, {}).items()
        ]
        if xargs := labels.get(Place.XARGS):
            inner = body
            for key in self.xargs:
                inner = inner.setdefault(key, {})
            inner |= xargs
        return body, headers

    def send(self, engine: Engine, labels: Labels) -> httpx.Response:
        """The answer to such a request, read to its end."""
        body, headers = self.request(labels)
        return post(engine, self.path, body, headers)


def post(
    engine: Engine, path: str, body: Json, headers: Headers = ()
) -> httpx.Response:
    """A POST, which may hold what `json` lets pass: a lone surrogate."""
    response = httpx.post(
        f"{engine.server.url}{path}",
        content=json.dumps(body),
        headers=[(b"Content-Type", b"application/json"), *map(_raw, headers)],
        timeout=120,
    )
    if response.is_success and body.get("background") and not body.get("stream"):
        return _finished(engine, response)
    return response


def _raw(header: tuple[str, str | bytes]) -> tuple[bytes, bytes]:
    name, value = header
    return name.encode(), value.encode("latin-1") if isinstance(value, str) else value


def _finished(engine: Engine, response: httpx.Response) -> httpx.Response:
    url = f"{engine.server.url}/v1/responses/{response.json()['id']}"
    while response.json()["status"] in ("queued", "in_progress"):
        response = httpx.get(url, timeout=60)
    return response


def chat(**asked: Any) -> Callable[[], Json]:
    """Bodies of chat completions and of what takes the same messages."""
    return lambda: {"max_tokens": 1, "messages": message(), **asked}


def message() -> list[Json]:
    """A conversation of one message."""
    return [{"role": "user", "content": fresh_text()}]


def completion(**asked: Any) -> Callable[[], Json]:
    """Bodies of completions."""
    return lambda: {"max_tokens": 1, "prompt": fresh_text(), **asked}


def response(**asked: Any) -> Callable[[], Json]:
    """Bodies of responses; not stored unless they are asked to be."""
    return lambda: {
        "max_output_tokens": 1,
        "store": False,
        "input": fresh_text(),
        **asked,
    }


def tokens(**asked: Any) -> Callable[[], Json]:
    """Bodies of `/inference/v1/generate`."""
    return lambda: {
        "token_ids": fresh_tokens(3 * BLOCK),
        "sampling_params": {"max_tokens": 1},
        **asked,
    }


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}
BEAM = {"use_beam_search": True, "n": 2, "temperature": 0, "max_tokens": 2}

WAYS = [
    Way("chat", "/v1/chat/completions", chat()),
    Way("chat, stream", "/v1/chat/completions", chat(stream=True)),
    Way("chat, n > 1", "/v1/chat/completions", chat(n=3, max_tokens=2)),
    Way("chat, beam search", "/v1/chat/completions", chat(**BEAM)),
    Way(
        "chat, tool choice",
        "/v1/chat/completions",
        chat(
            tools=[WEATHER],
            tool_choice={"type": "function", "function": {"name": "weather"}},
        ),
    ),
    Way(
        "chat, batch",
        "/v1/chat/completions/batch",
        lambda: {"max_tokens": 1, "messages": [message(), message()]},
    ),
    Way("completions", "/v1/completions", completion()),
    Way("completions, stream", "/v1/completions", completion(stream=True)),
    Way(
        "completions, several prompts",
        "/v1/completions",
        lambda: completion(prompt=[fresh_text(), fresh_text()])(),
    ),
    Way("completions, n > 1", "/v1/completions", completion(n=3, max_tokens=2)),
    Way("completions, beam search", "/v1/completions", completion(**BEAM)),
    Way("completions, echo", "/v1/completions", completion(echo=True, logprobs=1)),
    Way("responses", "/v1/responses", response()),
    Way("responses, stream", "/v1/responses", response(stream=True)),
    Way("responses, stored", "/v1/responses", response(store=True)),
    Way(
        "responses, background", "/v1/responses", response(store=True, background=True)
    ),
    Way(
        "responses, background stream",
        "/v1/responses",
        response(store=True, background=True, stream=True),
    ),
    Way(
        "messages",
        "/v1/messages",
        chat(),
        places=NO_BODY_FIELD,
    ),
    Way(
        "messages, stream",
        "/v1/messages",
        chat(stream=True),
        places=NO_BODY_FIELD,
    ),
    Way(
        "tokens in, tokens out",
        "/inference/v1/generate",
        tokens(),
        places=NO_BODY_FIELD,
        xargs=("sampling_params", "extra_args"),
    ),
    Way(
        "tokens in, tokens out, stream",
        "/inference/v1/generate",
        tokens(stream=True),
        places=NO_BODY_FIELD,
        xargs=("sampling_params", "extra_args"),
    ),
    Way("SageMaker's invocations", "/invocations", chat()),
]
