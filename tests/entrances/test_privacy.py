# SPDX-License-Identifier: Apache-2.0
"""A label is seen by nobody but a consumer of the events."""

import httpx
import pytest

from engine.engine import Engine
from entrances.ways import LABELS, WAYS, Place, Way, post

SECRET = "5ec2e7-label"
ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)


def secrets(way: Way) -> dict[Place, dict[str, str]]:
    """Both labels in every place that the way takes them from."""
    return {place: dict.fromkeys(LABELS, SECRET) for place in way.places}


@ways
def test_no_label_is_in_an_answer(engine: Engine, way: Way) -> None:
    answer = way.send(engine, secrets(way))
    answer.raise_for_status()
    assert SECRET not in answer.text
    assert SECRET not in str(answer.headers)


def test_a_rendered_request_brings_its_labels_along(engine: Engine) -> None:
    # What a render endpoint answers is a request, so it has to carry them on.
    engine.stored()
    [way] = (way for way in WAYS if way.name == "chat")
    body, _ = way.request({Place.XARGS: dict.fromkeys(LABELS, SECRET)})
    rendered = post(engine, f"{way.path}/render", body).raise_for_status().json()
    assert engine.stored() == []
    post(engine, "/inference/v1/generate", rendered).raise_for_status()
    stored = engine.stored()
    assert {e.session_id for e in stored} == {SECRET}
    assert {e.continuation_id for e in stored} == {SECRET}


@ways
def test_no_label_changes_what_the_model_reads(engine: Engine, way: Way) -> None:
    engine.stored()
    body, _ = way.request({})
    stored: list[list[list[int]]] = []
    for labels in ({}, secrets(way)):
        salt = {"cache_salt": f"{way.name} {len(stored)}"}
        labeled, headers = way.request(labels)
        prompt = {
            key: body[key]
            for key in ("messages", "prompt", "input", "token_ids")
            if key in body
        }
        post(engine, way.path, labeled | prompt | salt, headers).raise_for_status()
        # Beams may differ in what they write; all read the same prompt.
        stored.append([e.token_ids for e in engine.stored() if not e.parent_block_hash])
    assert stored[0]
    assert stored[0] == stored[1]


def test_no_label_is_in_the_log(engine: Engine) -> None:
    log = engine.server.log
    before = len(log.read_text())
    for way in WAYS:
        way.send(engine, secrets(way)).raise_for_status()
        bad = {Place.HEADER: dict.fromkeys(LABELS, f"{SECRET}\x85")}
        assert way.send(engine, bad).status_code == 400
    printed = log.read_text()[before:]
    assert "Received request" in printed, "the server logs requests"
    assert SECRET not in printed
    assert "DEBUG" not in printed


def test_both_fields_are_in_the_schema_with_a_description(engine: Engine) -> None:
    schemas = httpx.get(f"{engine.server.url}/openapi.json").json()["components"][
        "schemas"
    ]
    for request in ("ChatCompletionRequest", "CompletionRequest", "ResponsesRequest"):
        for label in LABELS:
            assert schemas[request]["properties"][label]["description"]
