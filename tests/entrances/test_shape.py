# SPDX-License-Identifier: Apache-2.0
"""What is no label is refused by every endpoint, and the engine goes on."""

import re
from typing import Any

import httpx
import pytest

from cpu_engine.server import MODEL_NAME
from engine.engine import Engine, fresh_text
from entrances.ways import HEADERS, LABELS, WAYS, Labels, Place, Way, post

# One way for each endpoint, and for each at which an answer may begin at once.
ENDPOINTS = [
    way
    for way in WAYS
    if way.name.removesuffix(", stream").removesuffix(", background")
    in {way.name for way in WAYS if ", " not in way.name} | {"chat, batch"}
    or way.path == "/inference/v1/generate"
]
endpoints = pytest.mark.parametrize("way", ENDPOINTS, ids=lambda way: way.name)
labels = pytest.mark.parametrize("name", LABELS)

NO_SURROGATES = "must be encodable as UTF-8 (it has a lone surrogate)."
NO_CONTROLS = "must not contain control characters."
TOO_LONG = "must have at most 256 characters, not 257."
BLANK = "must not be blank."

IN_JSON = {
    "too long": ("x" * 257, TOO_LONG),
    "blank": (" \u2003\u00a0", BLANK),
    "a control character": ("a\x1bb", NO_CONTROLS),
    "a line break": ("a\n", NO_CONTROLS),
    "a C1 control character": ("a\x85", NO_CONTROLS),
    "a lone surrogate": ("a\ud800", NO_SURROGATES),
    "surrogates in the wrong order": ("\udc00\ud800", NO_SURROGATES),
}
IN_HEADER = {
    "too long": (b"x" * 257, TOO_LONG),
    "blank": (b"\xa0", BLANK),
    "a C1 control character": (b"a\x85", NO_CONTROLS),
    "UTF-8 that ISO-8859-1 reads as a control": ("ß".encode(), NO_CONTROLS),
}
NOT_STRINGS = [5277, 0, 0.5, False, [], ["5277"]]
NOT_EVEN_XARGS = [{}, {"5277": "5277"}, [["5277"]]]


@endpoints
@labels
def test_a_bad_string_is_refused_by_name(engine: Engine, way: Way, name: str) -> None:
    for place in way.places:
        bad = IN_HEADER if place is Place.HEADER else IN_JSON
        for value, fault in bad.values():
            answer = send_beside_a_good_one(engine, way, place, name, value)
            assert error(way, answer) == f"{name} {fault} (parameter={name})"
    assert_serves(engine, way)


@endpoints
@labels
def test_what_is_no_string_is_refused_by_name(
    engine: Engine, way: Way, name: str
) -> None:
    for place in way.places - {Place.HEADER}:
        for value in NOT_STRINGS + NOT_EVEN_XARGS:
            answer = send_beside_a_good_one(engine, way, place, name, value)
            message = error(way, answer)
            assert "5277" not in message
            if way.path == "/v1/messages" and value in NOT_EVEN_XARGS:
                # Upstream's validation of the body as a whole, in its format.
                assert f"vllm_xargs.{name}" in message
                continue
            # A protocol may read JSON's false as a 0.
            kind = "int|bool" if value is False else type(value).__name__
            fault = rf"{name} must be a string, not ({kind})\. \(parameter={name}\)"
            assert re.fullmatch(fault, message)
    assert_serves(engine, way)


@endpoints
def test_an_unknown_report_mode_is_refused_before_an_answer_begins(
    engine: Engine, way: Way
) -> None:
    good: Labels = {Place.HEADER: dict.fromkeys(LABELS, "good")}
    for mode in ("partial", "\ud800", 7, ["full"]):
        asked = {**good, Place.XARGS: {"kv_cache_report_mode": mode}}
        message = error(way, way.send(engine, asked))
        if mode == "\ud800":
            continue  # not every release gets as far as to tell what it is of
        assert message == (
            "kv_cache_report_mode must be one of incremental, full, coordinates."
            " (parameter=kv_cache_report_mode)"
        )


@endpoints
@labels
def test_the_coordinates_mode_without_a_label_is_refused_by_its_name(
    engine: Engine, way: Way, name: str
) -> None:
    [other] = set(LABELS) - {name}
    if way.body().get("store"):
        return  # a stored response has labels of its own
    answer = way.send(
        engine,
        {
            Place.HEADER: {other: "good"},
            Place.XARGS: {"kv_cache_report_mode": "coordinates"},
        },
    )
    assert error(way, answer) == (
        f"kv_cache_report_mode 'coordinates' needs both labels, and {name} is missing;"
        f" send it, or use one of incremental, full. (parameter={name})"
    )


@labels
class TestTheHeader:
    """A header is bytes, and a request may have several of one name."""

    def send(self, engine: Engine, name: str, *values: bytes) -> httpx.Response:
        """A completion with the header in each of the values."""
        engine.stored()
        body = {"model": MODEL_NAME, "prompt": fresh_text(), "max_tokens": 1}
        headers = [(HEADERS[name], value) for value in values]
        return post(engine, "/v1/completions", body, headers)

    def arrived(self, engine: Engine, name: str, *values: bytes) -> str | None:
        """The label that the request's events carry."""
        self.send(engine, name, *values).raise_for_status()
        [label] = {getattr(event, name) for event in engine.stored()}
        return label if label is None else str(label)

    def test_is_read_as_iso_8859_1(self, engine: Engine, name: str) -> None:
        assert self.arrived(engine, name, "Grün".encode("latin-1")) == "Grün"

    def test_in_utf_8_is_read_as_iso_8859_1_too(
        self, engine: Engine, name: str
    ) -> None:
        assert self.arrived(engine, name, "Grün".encode()) == "GrÃ¼n"

    def test_may_come_twice_with_one_value(self, engine: Engine, name: str) -> None:
        assert self.arrived(engine, name, b"label", b"", b"label") == "label"

    def test_is_refused_when_its_values_differ(self, engine: Engine, name: str) -> None:
        answer = self.send(engine, name, b"one", b"another")
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == (
            f"{name} must be given once, but the header {HEADERS[name]} came with 2"
            f" different values. (parameter={name})"
        )

    def test_is_not_split_at_a_comma(self, engine: Engine, name: str) -> None:
        assert self.arrived(engine, name, b"a, b") == "a, b"


@labels
def test_only_the_value_that_wins_is_held_to_the_shape(
    engine: Engine, name: str
) -> None:
    [way] = (way for way in ENDPOINTS if way.name == "chat")
    good = dict.fromkeys(LABELS, "good")
    way.send(engine, {Place.BODY: good, Place.XARGS: {name: 7}}).raise_for_status()


@labels
@pytest.mark.parametrize("value", ["\ud800", ["a", "\ud800"]], ids=["string", "list"])
def test_what_cannot_be_sent_to_the_engine_is_refused_even_if_it_loses(
    engine: Engine, name: str, value: Any
) -> None:
    [way] = (way for way in ENDPOINTS if way.name == "chat")
    good = dict.fromkeys(LABELS, "good")
    answer = way.send(engine, {Place.BODY: good, Place.XARGS: {name: value}})
    assert error(way, answer) == f"{name} {NO_SURROGATES} (parameter={name})"


@labels
def test_a_surrogate_in_the_bytes_of_the_body_is_refused_too(
    engine: Engine, name: str
) -> None:
    body = b'{"model": "%s", "prompt": "a", "%s": "\xed\xa0\x80"}' % (
        MODEL_NAME.encode(),
        name.encode(),
    )
    answer = httpx.post(
        f"{engine.server.url}/v1/completions",
        content=body,
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == (
        f"{name} {NO_SURROGATES} (parameter={name})"
    )


def send_beside_a_good_one(
    engine: Engine, way: Way, place: Place, name: str, value: Any
) -> httpx.Response:
    """A request with a value in one place, and with the other label."""
    [other] = set(LABELS) - {name}
    labels = {Place.HEADER: {other: "good"}}
    labels.setdefault(place, {})[name] = value
    return way.send(engine, labels)


def error(way: Way, answer: httpx.Response) -> str:
    """The message of a refusal, which has the endpoint's own format."""
    assert answer.status_code == 400, answer.text
    body = answer.json()
    if way.path == "/v1/messages" and "type" in body:
        assert body["type"] == "error"
        return str(body["error"]["message"])
    assert body["error"]["code"] == 400
    return str(body["error"]["message"])


def assert_serves(engine: Engine, way: Way) -> None:
    """The engine is unharmed, and published nothing of what was refused."""
    engine.stored()
    way.send(engine, {Place.HEADER: dict.fromkeys(LABELS, "good")}).raise_for_status()
    assert {event.continuation_id for event in engine.stored()} == {"good"}
