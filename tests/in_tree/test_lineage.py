# SPDX-License-Identifier: Apache-2.0
"""Where a response's labels come from when its request brings none."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from vllm.config.kv_events import KVEventsConfig
from vllm.entrypoints.openai.responses.lineage import ResponseLineage
from vllm.entrypoints.openai.responses.protocol import (
    ResponsesRequest,
    ResponsesResponse,
)
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams


class Server:
    """A response store and its lineage, as a server of the Responses API has them."""

    def __init__(self, config: KVEventsConfig | None = None) -> None:
        self.store: dict[str, ResponsesResponse] = {}
        self.lineage = ResponseLineage(self.store, config)

    def take(
        self, headers: dict[str, str] | None = None, **body: Any
    ) -> ResponsesRequest:
        """A request that has come in; a stored one's response is in the store."""
        request = ResponsesRequest(input="a", **{"store": True, **body})
        self.lineage.complete(request, http(headers))
        if request.store:
            response = response_to(request)
            self.lineage.remember(request, response)
            self.store[response.id] = response
        return request


def http(headers: dict[str, str] | None) -> Request | None:
    if headers is None:
        return None
    raw = [(k.lower().encode(), v.encode()) for k, v in headers.items()]
    return Request({"type": "http", "headers": raw})


def response_to(request: ResponsesRequest) -> ResponsesResponse:
    return ResponsesResponse.from_request(
        request,
        SamplingParams(),
        model_name="model",
        created_time=0,
        output=[],
        status="completed",
        usage=None,
    )


def labels(request: ResponsesRequest) -> tuple[str | None, str | None]:
    return request.session_id, request.continuation_id


def test_a_chain_is_in_the_session_of_its_root() -> None:
    server = Server()
    root = turn = server.take()
    for _ in range(100):
        turn = server.take(previous_response_id=turn.request_id)
        assert labels(turn) == (root.request_id, turn.request_id)


@pytest.mark.parametrize("conversation", ["v", {"id": "v"}, {"id": "v", "more": 1}])
@pytest.mark.parametrize("store", [True, False])
def test_a_conversation_is_a_session(conversation: Any, store: bool) -> None:
    request = Server().take(conversation=conversation, store=store)
    assert labels(request) == ("v", request.request_id)


@pytest.mark.parametrize("conversation", [None, "", {"id": ""}])
def test_an_empty_conversation_counts_as_absent(conversation: Any) -> None:
    request = Server().take(conversation=conversation)
    assert labels(request) == (request.request_id, request.request_id)


@pytest.mark.parametrize("conversation", [0, False, [], 7, ["v"], {}, {"id": 0}])
def test_what_names_no_conversation_is_refused(conversation: Any) -> None:
    with pytest.raises(VLLMValidationError, match=r"^conversation must be a") as caught:
        Server().take(conversation=conversation)
    assert caught.value.parameter == "conversation"


def test_what_is_stateless_gets_nothing() -> None:
    assert labels(Server().take(store=False)) == (None, None)
    assert labels(Server().take(store=False, prompt_cache_key="k")) == (None, None)


@pytest.mark.parametrize(
    "explicit",
    [
        {"session_id": "s"},
        {"headers": {"X-Session-ID": "s"}},
        {"vllm_xargs": {"session_id": "s"}},
    ],
    ids=["body", "header", "xargs"],
)
def test_an_explicit_session_wins_and_is_inherited(explicit: Any) -> None:
    server = Server()
    root = server.take()
    child = server.take(previous_response_id=root.request_id, **explicit)
    grandchild = server.take(previous_response_id=child.request_id)
    assert labels(child) == ("s", child.request_id)
    assert labels(grandchild) == ("s", grandchild.request_id)


def test_a_continuation_is_never_inherited() -> None:
    server = Server()
    root = server.take(continuation_id="c")
    child = server.take(previous_response_id=root.request_id)
    assert labels(root) == (root.request_id, "c")
    assert labels(child) == (root.request_id, child.request_id)


@pytest.mark.parametrize("status", ["queued", "failed", "cancelled", "incomplete"])
def test_a_response_that_did_not_complete_passes_its_session_on(status: Any) -> None:
    server = Server()
    root = server.take()
    server.store[root.request_id].status = status
    child = server.take(previous_response_id=root.request_id)
    assert labels(child)[0] == root.request_id


def test_a_parent_that_is_gone_gives_no_session() -> None:
    server = Server()
    root = server.take()
    del server.store[root.request_id]
    child = server.take(previous_response_id=root.request_id)
    assert labels(child) == (None, child.request_id)


def test_an_id_that_is_no_label_names_nothing() -> None:
    server = Server()
    root = server.take(request_id="r" * 300)
    child = server.take(previous_response_id=root.request_id)
    assert labels(root) == (None, None)
    assert labels(child) == (None, child.request_id)


def test_a_conversation_and_a_parent_exclude_each_other() -> None:
    server = Server()
    root = server.take()
    with pytest.raises(VLLMValidationError) as caught:
        server.take(conversation="v", previous_response_id=root.request_id)
    assert caught.value.parameter == "conversation"


def test_with_coordinates_off_nothing_is_derived_nor_refused() -> None:
    server = Server(KVEventsConfig(coordinates=False))
    root = server.take(conversation={"id": 7})
    child = server.take(previous_response_id=root.request_id, session_id="s")
    assert labels(root) == (None, None)
    assert labels(child) == ("s", None)


def test_no_response_shows_its_session() -> None:
    server = Server()
    request = server.take(session_id="secret")
    response = server.store[request.request_id]
    assert "secret" not in response.model_dump_json()
    assert "session" not in str(ResponsesResponse.model_json_schema())


def test_the_session_goes_when_the_response_goes() -> None:
    server = Server()
    root = server.take()
    kept = weakref.ref(server.store.pop(root.request_id))
    gc.collect()
    assert kept() is None
    assert vars(server.lineage).keys() == {"_responses", "_config"}


class OneTool:
    """The context of a response whose model asks for a tool, once."""

    request_metrics = None
    request_metrics_cover_all_generation_turns = True

    def __init__(self) -> None:
        self.calls = 0

    def append_output(self, output: Any) -> None: ...

    def append_tool_output(self, output: Any) -> None: ...

    def need_builtin_tool_call(self) -> bool:
        return self.calls == 0

    async def call_tool(self) -> list[Any]:
        self.calls += 1
        return []


def test_a_loop_of_tool_calls_is_one_continuation() -> None:
    sent: list[tuple[str, Any, Any]] = []

    async def generate(
        prompt: Any, params: Any, request_id: str, **given: Any
    ) -> AsyncGenerator[Any, None]:
        sent.append((request_id, given["session_id"], given["continuation_id"]))
        yield SimpleNamespace(metrics=None)

    async def run() -> None:
        loop = OpenAIServingResponses._generate_with_builtin_tools(
            serving,
            "resp_1",
            {"prompt_token_ids": [1]},
            SamplingParams(),
            OneTool(),
            session_id="s",
            continuation_id="c",
        )
        async for _ in loop:
            pass

    serving: Any = object.__new__(OpenAIServingResponses)
    serving.model_config = SimpleNamespace(max_model_len=100)
    serving.engine_client = SimpleNamespace(generate=generate)
    serving.request_logger = None
    asyncio.run(run())
    assert sent == [("resp_1_0", "s", "c"), ("resp_1_1", "s", "c")]
