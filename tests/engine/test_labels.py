# SPDX-License-Identifier: Apache-2.0
"""Labels that come in over HTTP are on the events of the request."""

from typing import Any

import pytest

from engine.engine import Engine, fresh_text

LABELS = {"session_id": "the session", "continuation_id": "the continuation"}
HEADERS = {"session_id": "X-Session-ID", "continuation_id": "X-Continuation-ID"}

ENTRANCES = [
    pytest.param("chat", id="chat"),
    pytest.param("complete", id="completions"),
]


def in_header(labels: dict[str, str]) -> dict[str, Any]:
    return {"headers": {HEADERS[name]: label for name, label in labels.items()}}


def in_body(labels: dict[str, str]) -> dict[str, Any]:
    return dict(labels)


def in_xargs(labels: dict[str, str]) -> dict[str, Any]:
    return {"vllm_xargs": labels}


def labels_published(engine: Engine, entrance: str, **request: Any) -> dict[str, Any]:
    """Sends a request; returns the labels that all of its events agree on."""
    engine.stored()
    getattr(engine, entrance)(fresh_text(), **request).raise_for_status()
    [labels] = {(e.session_id, e.continuation_id) for e in engine.stored()}
    return dict(zip(LABELS, labels, strict=True))


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("carry", [in_header, in_body, in_xargs])
def test_both_labels_reach_the_admission(
    engine: Engine, entrance: str, carry: Any
) -> None:
    assert labels_published(engine, entrance, **carry(LABELS)) == LABELS


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("name", LABELS)
def test_the_body_field_wins_over_the_header(
    engine: Engine, entrance: str, name: str
) -> None:
    request = in_header({**LABELS, name: "header"}) | in_body({name: "body"})
    assert labels_published(engine, entrance, **request)[name] == "body"


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("name", LABELS)
def test_the_header_wins_over_vllm_xargs(
    engine: Engine, entrance: str, name: str
) -> None:
    request = in_xargs({**LABELS, name: "xargs"}) | in_header({name: "header"})
    assert labels_published(engine, entrance, **request)[name] == "header"


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("name", LABELS)
def test_an_empty_value_counts_as_absent(
    engine: Engine, entrance: str, name: str
) -> None:
    request = in_xargs(LABELS) | in_header({name: ""}) | in_body({name: ""})
    assert labels_published(engine, entrance, **request) == LABELS


def test_a_label_is_published_as_it_came(engine: Engine) -> None:
    opaque = 'q/42?{"a": [1]}; Grüße, \N{SNOWMAN}\N{GRINNING FACE}' + "x" * 200
    labels = dict.fromkeys(LABELS, opaque)
    assert labels_published(engine, "chat", **in_body(labels)) == labels


def test_a_request_without_labels_publishes_none(engine: Engine) -> None:
    assert set(labels_published(engine, "chat").values()) == {None}


def test_generated_blocks_carry_the_labels_too(engine: Engine) -> None:
    engine.stored()
    engine.chat(
        fresh_text(), max_tokens=70, ignore_eos=True, **in_body(LABELS)
    ).raise_for_status()
    events = engine.stored()
    assert len(events) == 3, "one for the prompt, one for each block of the answer"
    assert {e.continuation_id for e in events} == {LABELS["continuation_id"]}
