# SPDX-License-Identifier: Apache-2.0
"""A client of the Responses API that sends no label gets coherent ones."""

from typing import Any

import httpx
import pytest

from cpu_engine.server import MODEL_NAME
from engine.engine import Engine, fresh_text
from entrances.ways import post

HOW = {
    "plain": {},
    "stream": {"stream": True},
    "background": {"background": True},
    "background stream": {"background": True, "stream": True},
}
how = pytest.mark.parametrize("how", HOW.values(), ids=HOW)
conversations = pytest.mark.parametrize(
    "conversation", ["conv_1", {"id": "conv_1"}], ids=["string", "object"]
)
stored = pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])


class Turn:
    """A request to the Responses API, answered.

    Attributes:
        id: The response's id.
        labels: `(session_id, continuation_id)` of all of its events.
    """

    def __init__(self, engine: Engine, headers: Any = (), **asked: Any) -> None:
        engine.stored()
        answer = send(engine, headers, **asked)
        answer.raise_for_status()
        [self.labels] = {(e.session_id, e.continuation_id) for e in engine.stored()}
        text = answer.text
        self.id = text[text.index("resp_") :].split('"')[0]


def send(engine: Engine, headers: Any = (), **asked: Any) -> httpx.Response:
    """The answer to a request for a response of one token."""
    body = {"model": MODEL_NAME, "input": fresh_text(), "max_output_tokens": 1}
    return post(engine, "/v1/responses", body | asked, headers)


@how
def test_a_stored_root_starts_a_session_named_by_its_own_id(
    engine: Engine, how: dict[str, bool]
) -> None:
    turn = Turn(engine, **how)
    assert turn.labels == (turn.id, turn.id)


@how
def test_turns_of_any_number_share_the_session_of_their_root(
    engine: Engine, how: dict[str, bool]
) -> None:
    root = turn = Turn(engine, **how)
    for _ in range(4):
        turn = Turn(engine, previous_response_id=turn.id, **how)
        assert turn.labels == (root.id, turn.id)


def test_forks_share_the_session_and_differ_in_continuation(engine: Engine) -> None:
    root = Turn(engine)
    forks = [Turn(engine, previous_response_id=root.id) for _ in range(2)]
    assert {session for session, _ in (fork.labels for fork in forks)} == {root.id}
    assert len({continuation for _, continuation in (f.labels for f in forks)}) == 2


@conversations
@stored
def test_a_conversation_names_the_session(
    engine: Engine, conversation: Any, store: bool
) -> None:
    turn = Turn(engine, conversation=conversation, store=store)
    assert turn.labels == ("conv_1", turn.id)


def test_what_continues_a_turn_of_a_conversation_is_in_its_session(
    engine: Engine,
) -> None:
    parent = Turn(engine, conversation="conv_1")
    child = Turn(engine, previous_response_id=parent.id)
    assert child.labels == ("conv_1", child.id)


def test_a_request_that_is_not_stored_and_continues_nothing_has_no_labels(
    engine: Engine,
) -> None:
    assert Turn(engine, store=False).labels == (None, None)


def test_a_turn_that_continues_another_has_labels_though_it_is_not_stored(
    engine: Engine,
) -> None:
    root = Turn(engine)
    turn = Turn(engine, previous_response_id=root.id, store=False)
    assert turn.labels == (root.id, turn.id)


def test_nothing_can_continue_what_was_not_stored(engine: Engine) -> None:
    turn = Turn(engine, store=False)
    answer = send(engine, previous_response_id=turn.id)
    assert answer.status_code == 404
    assert f"'{turn.id}' not found" in answer.json()["error"]["message"]


def test_prompt_cache_key_is_no_label(engine: Engine) -> None:
    turn = Turn(engine, prompt_cache_key="key")
    assert turn.labels == (turn.id, turn.id)
    assert Turn(engine, prompt_cache_key="key", store=False).labels == (None, None)


class TestExplicitLabels:
    """What a request carries wins over what could be derived."""

    def test_win_over_a_conversation(self, engine: Engine) -> None:
        turn = Turn(engine, session_id="s", continuation_id="c", conversation="conv_1")
        assert turn.labels == ("s", "c")

    def test_win_over_a_parent(self, engine: Engine) -> None:
        root = Turn(engine)
        turn = Turn(engine, [("X-Session-ID", "s")], previous_response_id=root.id)
        assert turn.labels == ("s", turn.id)

    @pytest.mark.parametrize(
        "carried",
        [
            {"session_id": "s"},
            {"headers": [("X-Session-ID", "s")]},
            {"vllm_xargs": {"session_id": "s"}},
        ],
        ids=["body", "header", "xargs"],
    )
    def test_are_inherited_from_wherever_the_parent_carried_them(
        self, engine: Engine, carried: Any
    ) -> None:
        root = Turn(engine, **carried)
        assert root.labels == ("s", root.id)
        child = Turn(engine, previous_response_id=root.id)
        grandchild = Turn(engine, previous_response_id=child.id)
        assert grandchild.labels == ("s", grandchild.id)

    def test_of_a_child_are_inherited_by_its_own_children(self, engine: Engine) -> None:
        root = Turn(engine)
        child = Turn(engine, session_id="s", previous_response_id=root.id)
        grandchild = Turn(engine, previous_response_id=child.id)
        assert grandchild.labels == ("s", grandchild.id)
        assert Turn(engine, previous_response_id=root.id).labels[0] == root.id

    def test_session_alone_makes_no_continuation_of_a_stateless_request(
        self, engine: Engine
    ) -> None:
        turn = Turn(engine, session_id="s", store=False)
        assert turn.labels == ("s", None)

    def test_that_are_bad_are_refused_whatever_could_be_derived(
        self, engine: Engine
    ) -> None:
        answer = send(engine, session_id=" ", conversation="conv_1")
        assert_refused(answer, "session_id must not be blank.", "session_id")


def test_derived_labels_meet_the_coordinates_mode(engine: Engine) -> None:
    turn = Turn(engine, vllm_xargs={"kv_cache_report_mode": "coordinates"})
    assert turn.labels == (turn.id, turn.id)


def test_a_response_id_that_is_no_label_derives_none(engine: Engine) -> None:
    engine.stored()
    send(engine, request_id="r" * 300).raise_for_status()
    [labels] = {(e.session_id, e.continuation_id) for e in engine.stored()}
    assert labels == (None, None)


@pytest.mark.parametrize(
    ("conversation", "fault"),
    [
        ("x" * 257, "must have at most 256 characters, not 257."),
        ({"id": " "}, "must not be blank."),
        ("\ud800", "must be encodable as UTF-8 (it has a lone surrogate)."),
        ({"id": 7}, "must be a string, not int."),
        (7, "must be a string, not int."),
        ({}, "must be an id, or an object with the field id."),
    ],
    ids=["long", "blank", "surrogate", "number as id", "number", "no id"],
)
def test_a_conversation_that_could_be_no_label_is_refused(
    engine: Engine, conversation: Any, fault: str
) -> None:
    answer = send(engine, conversation=conversation)
    assert_refused(answer, f"conversation {fault}", "conversation")


@pytest.mark.parametrize("conversation", [None, "", {"id": ""}])
def test_an_empty_conversation_counts_as_absent(
    engine: Engine, conversation: Any
) -> None:
    turn = Turn(engine, conversation=conversation)
    assert turn.labels == (turn.id, turn.id)


def test_a_conversation_and_a_parent_exclude_each_other(engine: Engine) -> None:
    root = Turn(engine)
    answer = send(engine, conversation="conv_1", previous_response_id=root.id)
    assert_refused(
        answer,
        "conversation and previous_response_id exclude each other; send only one of"
        " them.",
        "conversation",
    )


def test_an_unknown_parent_is_not_found(engine: Engine) -> None:
    engine.stored()
    answer = send(engine, previous_response_id="resp_unknown")
    assert answer.status_code == 404
    assert engine.stored() == []


def test_a_response_that_was_cancelled_can_be_continued_in_its_session(
    engine: Engine,
) -> None:
    asked = {"input": fresh_text(), "background": True, "max_output_tokens": 800}
    never_end = {"logit_bias": {"1": -100.0}}
    root = engine.post("/v1/responses", asked | never_end).json()["id"]
    url = f"{engine.server.url}/v1/responses/{root}/cancel"
    assert httpx.post(url, timeout=60).json()["status"] == "cancelled"
    child = Turn(engine, previous_response_id=root)
    assert child.labels == (root, child.id)


def test_no_label_is_in_a_response(engine: Engine) -> None:
    answer = send(engine, session_id="secret-s", conversation="secret-v")
    url = f"{engine.server.url}/v1/responses/{answer.json()['id']}"
    for body in (answer.text, httpx.get(url, timeout=60).text):
        assert "secret" not in body
        assert "session" not in body
        assert "continuation" not in body


def assert_refused(answer: httpx.Response, message: str, field: str) -> None:
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"] == f"{message} (parameter={field})"
    assert answer.json()["error"]["param"] == field
