# SPDX-License-Identifier: Apache-2.0
"""The gateway before two real engines: sessions return, and trust holds."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from cpu_engine.server import MODEL_NAME
from gateways import (
    BLOCK,
    Client,
    cached,
    gateway_before,
    names,
    opening,
    replica,
    reply,
)

pytestmark = pytest.mark.engine

LABELED: dict[str, dict[str, Any]] = {
    "headers": {
        "headers": [
            ("X-Session-ID", "{session_id}"),
            ("x-session-id", "{session_id}"),
            ("X-Continuation-ID", "{continuation_id}"),
        ]
    },
    "fields": {"session_id": "{session_id}", "continuation_id": "{continuation_id}"},
    "vllm_xargs": {
        "vllm_xargs": {
            "session_id": "{session_id}",
            "continuation_id": "{continuation_id}",
            "kv_cache_report_mode": "full",
        }
    },
}


class TestReturning:
    def test_every_turn_returns_to_the_replica_that_holds_the_last(
        self, client: Client
    ) -> None:
        for _ in range(3):
            messages = opening()
            first = client.chat(messages, max_tokens=8)
            second = client.chat(messages + reply(first))
            assert replica(second) == replica(first)
            assert cached(second) == cached_at_best(first)

    def test_new_sessions_take_turns(self, client: Client) -> None:
        assert {replica(client.chat(opening())) for _ in range(2)} == {
            "replica-a",
            "replica-b",
        }

    def test_a_fork_goes_where_the_session_is(self, client: Client) -> None:
        messages = opening()
        first = client.chat(messages)
        forks = [
            client.chat([*messages, *reply(first)[:1], *opening()]) for _ in range(2)
        ]
        assert {replica(fork) for fork in forks} == {replica(first)}

    @pytest.mark.parametrize(
        ("path", "turns", "rest"),
        [
            ("/v1/responses", "input", {"max_output_tokens": 1}),
            ("/v1/messages", "messages", {"max_tokens": 1}),
        ],
    )
    def test_other_apis_return_too(
        self, client: Client, path: str, turns: str, rest: dict[str, Any]
    ) -> None:
        messages = opening()
        first = {"model": MODEL_NAME, turns: messages, **rest}
        served = client.post(path, json=first).raise_for_status().json()["model"]
        more = [{"role": "assistant", "content": "Yes."}, *opening()]
        for _ in range(2):
            second = {**first, turns: messages + more}
            answer = client.post(path, json=second).raise_for_status()
            assert answer.json()["model"] == served

    def test_extents_are_learned_from_streams(self, client: Client) -> None:
        messages = opening()
        with httpx.stream(
            "POST",
            f"{client.url}/v1/chat/completions",
            json={"model": MODEL_NAME, "messages": messages, "stream": True},
            timeout=120,
        ) as response:
            lines = [line for line in response.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        # What the gateway asked for, it keeps to itself.
        assert all(json.loads(line[6:])["choices"] for line in lines[:-1])
        usage = client.chat(messages).json()["usage"]
        extents = {branch["tokens"] for branch in client.sessions()["branches"]}
        assert usage["prompt_tokens"] in extents


class TestStreams:
    def test_a_stream_passes_through_while_it_is_generated(
        self, client: Client
    ) -> None:
        body = {
            "model": MODEL_NAME,
            "messages": opening(),
            "stream": True,
            "max_tokens": 800,
            "ignore_eos": True,
        }
        url = f"{client.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=120) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            # The replica still works on it: it has not been read to its end first.
            assert sum(r["in_flight"] for r in client.sessions()["replicas"]) == 1

    @pytest.mark.parametrize("stream", [True, False])
    def test_a_client_that_leaves_frees_its_replica(
        self, client: Client, stream: bool
    ) -> None:
        body = {
            "model": MODEL_NAME,
            "messages": opening(),
            "stream": stream,
            "max_tokens": 800,
            "ignore_eos": True,
        }

        async def leave() -> None:
            async with httpx.AsyncClient(timeout=120) as person:
                asking = asyncio.create_task(
                    person.post(f"{client.url}/v1/chat/completions", json=body)
                )
                await asyncio.to_thread(client.wait_until, busy)
                asking.cancel()

        def busy(picture: dict[str, Any]) -> bool:
            return any(r["in_flight"] for r in picture["replicas"])

        asyncio.run(leave())
        client.wait_until(lambda picture: not busy(picture))


class TestTrust:
    @pytest.mark.parametrize("said", LABELED.values(), ids=LABELED)
    def test_a_client_cannot_extend_another_s_lineage(
        self, client: Client, said: dict[str, Any]
    ) -> None:
        victim = client.chat(opening())
        before = client.wait_until(lambda picture: picture["branches"])["branches"]
        labels = before[-1]
        spoofed = _filled(said, labels)
        client.chat(opening(), **spoofed).raise_for_status()
        client.chat(opening(), **spoofed).raise_for_status()
        assert labels in client.sessions()["branches"]
        assert victim.is_success

    @pytest.mark.parametrize("said", LABELED.values(), ids=LABELED)
    def test_a_client_cannot_choose_its_replica(
        self, client: Client, said: dict[str, Any]
    ) -> None:
        client.chat(opening()).raise_for_status()
        labels = client.wait_until(lambda picture: picture["branches"])["branches"][-1]
        spoofed = _filled(said, labels)
        served = {replica(client.chat(opening(), **spoofed)) for _ in range(2)}
        assert served == {"replica-a", "replica-b"}

    def test_no_label_of_a_client_reaches_an_engine(self, client: Client) -> None:
        known = client.names()
        mine = {"session_id": "mine", "continuation_id": "mine"}
        for said in LABELED.values():
            client.chat(opening(), **_filled(said, mine)).raise_for_status()
        seen = names(client.wait_until(lambda picture: names(picture) - known))
        assert "mine" not in seen

    def test_another_key_neither_reads_nor_extends_what_was_said(
        self, client: Client
    ) -> None:
        messages = opening()
        key, other = ({"Authorization": f"Bearer {name}"} for name in ("one", "other"))
        mine = client.chat(messages, headers=key)
        more = messages + reply(mine)
        # Not even how much of it is cached can be found out.
        assert cached(client.chat(more, headers=other)) == 0
        assert cached(client.chat(more)) == 0
        assert cached(client.chat(more, headers=key)) > 0

    @pytest.mark.parametrize(
        "path",
        [
            "/metrics",
            "/kv_event_sources",
            "/reset_prefix_cache",
            "/sleep",
            "/collective_rpc",
            "/tokenize",
            "/version",
            "/docs",
            "/openapi.json",
            "/sessions",
            "/sessions.json",
            "/v1/completions",
            "/inference/v1/generate",
            "/v1/models/../../metrics",
            "//metrics",
            "/v1/chat/completions/../../../metrics",
            "/http://127.0.0.1/metrics",
        ],
    )
    def test_nothing_else_of_an_engine_can_be_reached(
        self, client: Client, path: str
    ) -> None:
        url = httpx.URL(client.url).copy_with(raw_path=path.encode())
        with httpx.Client() as person:
            for method in ("GET", "POST", "PUT", "DELETE"):
                answer = person.request(method, url)
                assert answer.status_code in (404, 405)
                assert answer.json()["error"]["type"] == "invalid_request_error"

    def test_what_an_answer_says_of_its_way_is_nothing(self, client: Client) -> None:
        answer = client.chat(opening(), headers={"X-Request-Id": "mine"})
        assert set(answer.headers) == {
            "content-length",
            "content-type",
            "date",
            "server",
        }
        assert not any(name in answer.text for name in client.names())

    def test_trusted_labels_are_kept(self, client: Client) -> None:
        with gateway_before(client.servers, "--trust-labels") as trusting:
            labels = {"session_id": "wé", "continuation_id": "first"}
            messages = opening()
            first = trusting.chat(messages, **labels)
            trusting.wait_until(lambda picture: {"wé", "first"} <= names(picture))
            labels["continuation_id"] = "second"
            second = trusting.chat(messages + reply(first), **labels)
            assert replica(second) == replica(first)


class TestErrors:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"{", "the body is not JSON: Input data was truncated"),
            (b"[]", "the body must be an object"),
            (b'{"model": "tiny"}', "messages must be a list of turns"),
            (b'{"messages": []}', "model must be a string: ids of two models never"),
            (b"[" * 100_000, "the body is not JSON: "),
            (b'{"model": "\xff"}', "the body is not JSON: "),
        ],
    )
    def test_the_gateway_s_own_are_in_openai_s_format(
        self, client: Client, content: bytes, message: str
    ) -> None:
        answer = client.post("/v1/chat/completions", content=content)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["message"].startswith(message)
        assert error["type"] == "invalid_request_error"
        assert error["code"] == 400

    def test_a_request_without_turns_is_the_engine_s_to_refuse(
        self, client: Client
    ) -> None:
        answer = client.chat([])
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]

    def test_an_engine_s_come_through_as_they_are(self, client: Client) -> None:
        answer = client.chat(opening(), temperature=-1)
        assert answer.status_code == 400
        assert "temperature" in answer.json()["error"]["message"]

    def test_models_are_an_engine_s(self, client: Client) -> None:
        answer = httpx.get(f"{client.url}/v1/models")
        assert MODEL_NAME in {model["id"] for model in answer.json()["data"]}


class TestPicture:
    def test_it_shows_each_session_with_what_is_resident(self, client: Client) -> None:
        messages = opening()
        first = client.chat(messages)
        tokens = first.json()["usage"]["prompt_tokens"]
        client.chat(messages + reply(first)).raise_for_status()
        page = httpx.get(f"{client.operator}/sessions")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        picture = client.sessions()
        for branch in picture["branches"]:
            assert branch["session_id"] in page.text
        assert any(
            held["usable"] >= tokens // BLOCK * BLOCK
            for branch in picture["branches"]
            for held in branch["replicas"].values()
        )

    def test_the_page_needs_nothing_from_elsewhere(self, client: Client) -> None:
        page = httpx.get(f"{client.operator}/sessions").text
        assert "src=" not in page
        assert "<link" not in page
        assert "<script" not in page


def cached_at_best(first: httpx.Response) -> int:
    """What the next turn can find of a turn: its whole blocks."""
    return int(first.json()["usage"]["prompt_tokens"]) // BLOCK * BLOCK


def _filled(said: dict[str, Any], labels: dict[str, Any]) -> dict[str, Any]:
    """What a client says, with the labels that it makes up or found out."""
    text = json.dumps(said)
    for name in ("session_id", "continuation_id"):
        text = text.replace(f"{{{name}}}", labels[name])
    filled: dict[str, Any] = json.loads(text)
    if "headers" in filled:
        filled["headers"] = [tuple(pair) for pair in filled["headers"]]
    return filled
