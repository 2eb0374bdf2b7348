# SPDX-License-Identifier: Apache-2.0
"""Whatever way a request takes into the engine, its labels are on its events."""

from typing import Any

import pytest

from engine.engine import Engine, fresh_text
from entrances.ways import LABELS, WAYS, Place, Way

ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
labels = pytest.mark.parametrize("name", LABELS)


def published(
    engine: Engine, way: Way, labels: dict[Place, dict[str, str]]
) -> dict[str, Any]:
    """Sends a request; returns the labels that all of its events agree on."""
    engine.stored()
    way.send(engine, labels).raise_for_status()
    [found] = {(e.session_id, e.continuation_id) for e in engine.stored()}
    return dict(zip(LABELS, found, strict=True))


@ways
@labels
@pytest.mark.parametrize("place", Place)
def test_a_label_is_taken_from_exactly_the_documented_places(
    engine: Engine, way: Way, name: str, place: Place
) -> None:
    [other] = set(LABELS) - {name}
    # The other label comes by header, which every way takes.
    sent = {Place.HEADER: {other: "other"}}
    sent.setdefault(place, {})[name] = "label"
    taken = "label" if place in way.places else None
    assert published(engine, way, sent) == {other: "other", name: taken}


@ways
@labels
def test_the_first_of_body_header_and_xargs_wins(
    engine: Engine, way: Way, name: str
) -> None:
    [other] = set(LABELS) - {name}
    order = [place for place in Place if place in way.places]
    for first in range(len(order)):
        sent = {place: {name: place.value} for place in order[first:]}
        sent.setdefault(Place.HEADER, {})[other] = "other"
        assert published(engine, way, sent)[name] == order[first].value


@ways
@labels
def test_an_empty_value_counts_as_absent(engine: Engine, way: Way, name: str) -> None:
    [other] = set(LABELS) - {name}
    sent = {place: {name: ""} for place in way.places}
    sent[Place.HEADER][other] = "other"
    *_, last = (place for place in Place if place in way.places)
    sent[last] = sent[last] | {name: "label"}
    assert published(engine, way, sent)[name] == "label"


@pytest.mark.parametrize(
    "way",
    [way for way in WAYS if not way.body().get("store")],
    ids=lambda way: way.name,
)
def test_a_request_without_labels_publishes_none(engine: Engine, way: Way) -> None:
    assert set(published(engine, way, {}).values()) == {None}


@pytest.mark.parametrize(
    "way",
    [way for way in WAYS if way.xargs != ("vllm_xargs",)],
    ids=lambda way: way.name,
)
def test_extra_args_hold_no_session_unless_they_hold_a_continuation(
    engine: Engine, way: Way
) -> None:
    none = dict.fromkeys(LABELS)
    assert published(engine, way, {Place.XARGS: {"session_id": "s"}}) == none
    both = dict.fromkeys(LABELS, "label")
    assert published(engine, way, {Place.XARGS: both}) == both


def test_what_upstream_gives_no_session_takes_no_label(engine: Engine) -> None:
    scoring = Way(
        "generative scoring",
        "/generative_scoring",
        lambda: {"query": fresh_text(), "items": ["a", "b"], "label_token_ids": [5, 6]},
    )
    sent = {place: dict.fromkeys(LABELS, "label") for place in Place}
    assert published(engine, scoring, sent) == dict.fromkeys(LABELS)
