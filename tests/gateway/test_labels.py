# SPDX-License-Identifier: Apache-2.0
"""What a client says of itself goes; what a replica hears is minted."""

from typing import Any

import pytest
from starlette.datastructures import Headers

from gateway.labels import APIS, Labeled, label

CHAT = "/v1/chat/completions"
OPENING = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is a block?"},
]
REPLY = [
    {"role": "assistant", "content": "Thirty-two tokens."},
    {"role": "user", "content": "And a span?"},
]


def labeled(
    messages: Any = OPENING,
    headers: dict[str, str] | list[tuple[str, str]] | None = None,
    *,
    trusted: bool = False,
    **fields: Any,
) -> Labeled:
    pairs = list(headers.items()) if isinstance(headers, dict) else headers or []
    raw = [(name.lower().encode(), value.encode()) for name, value in pairs]
    body = {"model": "m", "messages": messages, **fields}
    return label(CHAT, Headers(raw=raw), body, trusted=trusted)


CLIENT_LABELS = {
    "a header": {"headers": {"X-Session-ID": "mine", "X-Continuation-ID": "mine"}},
    "a header in another case": {"headers": {"x-sESSION-id": "mine"}},
    "a header given twice": {
        "headers": [("X-Continuation-ID", "mine"), ("x-continuation-id", "mine")]
    },
    "a rank": {"headers": {"X-data-parallel-rank": "1"}},
    "a request id": {"headers": {"X-Request-Id": "mine"}},
    "a cookie": {"headers": {"Cookie": "replica=mine"}},
    "a field": {"session_id": "mine", "continuation_id": "mine"},
    "a field of the request's id": {"request_id": "mine"},
    "blocks to be transferred": {"kv_transfer_params": {"remote_block_ids": "mine"}},
    "an encoding to be transferred": {"ec_transfer_params": {"request": "mine"}},
    "a place in the queue": {"priority": "mine"},
    "extra arguments": {
        "vllm_xargs": {
            "session_id": "mine",
            "continuation_id": "mine",
            "kv_cache_report_mode": "mine",
            "kv_transfer_params": "mine",
        }
    },
}


@pytest.mark.parametrize("said", CLIENT_LABELS.values(), ids=CLIENT_LABELS)
def test_what_a_client_says_changes_nothing(said: dict[str, Any]) -> None:
    assert labeled(**said) == labeled()


@pytest.mark.parametrize("said", CLIENT_LABELS.values(), ids=CLIENT_LABELS)
def test_nothing_that_a_client_says_is_passed_on(said: dict[str, Any]) -> None:
    request = labeled(**said)
    assert "mine" not in str(request.body)


def test_other_extra_arguments_are_passed_on() -> None:
    request = labeled(vllm_xargs={"budget": 3})
    assert request.body["vllm_xargs"]["budget"] == 3


def test_every_request_carries_both_labels_and_the_mode() -> None:
    request = labeled()
    assert request.body["vllm_xargs"] == {
        "session_id": request.session_id,
        "continuation_id": request.continuation_id,
        "kv_cache_report_mode": "coordinates",
    }


def test_a_session_keeps_its_name_from_turn_to_turn() -> None:
    assert labeled(OPENING + REPLY).session_id == labeled().session_id


def test_sessions_are_told_apart_by_what_their_users_open_with() -> None:
    other = [OPENING[0], {"role": "user", "content": "What is a span?"}]
    assert labeled(other).session_id != labeled().session_id


def test_the_next_turn_continues_the_continuation() -> None:
    first, second = labeled(), labeled(OPENING + REPLY)
    assert first.continuation_id in second.chain.ids[:-1]


SPEECHES = {
    "/v1/chat/completions": {"messages": OPENING},
    "/v1/responses": {"instructions": "Be brief.", "input": OPENING[1:]},
    "/v1/messages": {"system": "Be brief.", "messages": OPENING[1:]},
}


@pytest.mark.parametrize("path", APIS)
def test_every_api_s_next_turn_continues_its_session(path: str) -> None:
    body = {"model": "m", **SPEECHES[path]}
    turns = APIS[path].turns
    first = label(path, Headers(), body)
    second = label(path, Headers(), {**body, turns: body[turns] + REPLY})
    assert second.session_id == first.session_id
    assert first.continuation_id in second.chain.ids[:-1]


def test_a_key_has_continuations_of_its_own() -> None:
    one, other = (
        labeled(headers={"Authorization": f"Bearer {key}"}) for key in ("one", "other")
    )
    assert one.continuation_id != other.continuation_id
    assert one.session_id != other.session_id
    assert one.body["cache_salt"] != other.body["cache_salt"]


def test_a_key_is_not_passed_on() -> None:
    request = labeled(headers={"x-api-key": "secret"})
    assert "secret" not in str(request.body)


def test_a_salt_of_another_key_is_another_salt() -> None:
    one = labeled(headers={"x-api-key": "one"}, cache_salt="s")
    other = labeled(headers={"x-api-key": "other"}, cache_salt="s")
    keyless = labeled(cache_salt="s")
    assert len({r.body["cache_salt"] for r in (one, other, keyless)}) == 3


def test_a_key_cannot_be_spelled_with_a_salt() -> None:
    spelled = labeled(headers={"x-api-key": "on"}, cache_salt="e")
    assert spelled.chain.start != labeled(headers={"x-api-key": "one"}).chain.start


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": "hello"}, "messages must be a list of turns"),
        ({"model": None}, "model must be a string"),
        ({"cache_salt": 3}, "cache_salt must be a string or absent"),
        ({"vllm_xargs": [1]}, "vllm_xargs must be an object"),
        (
            {"previous_response_id": "resp_1"},
            "previous_response_id names what one replica stored, and this gateway keeps"
            " no store: send the whole input",
        ),
    ],
)
def test_a_body_that_cannot_be_labeled_is_refused(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        labeled(**fields)


class TestTrusted:
    def test_labels_are_kept_in_the_engine_s_order(self) -> None:
        xargs = {"session_id": "x", "continuation_id": "x"}
        request = labeled(
            trusted=True,
            headers={"X-Continuation-ID": "header"},
            vllm_xargs=xargs,
            session_id="body",
        )
        assert (request.session_id, request.continuation_id) == ("body", "header")

    def test_absent_and_empty_ones_are_minted(self) -> None:
        assert labeled(trusted=True, session_id="") == labeled()

    def test_the_mode_is_still_the_gateway_s(self) -> None:
        xargs = {"kv_cache_report_mode": "full"}
        assert labeled(trusted=True, vllm_xargs=xargs) == labeled()
