# SPDX-License-Identifier: Apache-2.0
"""Where an HTTP request carries a label: body, header, vllm_xargs, in this order."""

import pytest
from fastapi import Request

from vllm.entrypoints.generate.base.coordinates import (
    asks_for_coordinates,
    check_token_request,
    label_from_headers,
    resolve_continuation_id,
    resolve_label,
)
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.coordinates import without_labels

HEADERS = {"session_id": "X-Session-ID", "continuation_id": "X-Continuation-ID"}
BAD = {
    "\n": "must not be blank",
    "a\x7f": "must not contain control characters",
    "a" * 257: "must have at most 256 characters, not 257",
}

each_label = pytest.mark.parametrize("name", HEADERS)


@pytest.fixture(params=["chat", "completion", "responses"])
def body(request):
    """Makes the parsed body of a request to one of the OpenAI endpoints."""
    kinds = {
        "chat": (ChatCompletionRequest, {"messages": []}),
        "completion": (CompletionRequest, {"prompt": "a"}),
        "responses": (ResponsesRequest, {"input": "a"}),
    }
    kind, needed = kinds[request.param]
    return lambda **fields: kind(**needed, **fields)


def raw(*headers: tuple[str, str]) -> Request:
    """An HTTP request with these headers, encoded as a client encodes them."""
    encoded = [(k.lower().encode(), v.encode("latin-1")) for k, v in headers]
    return Request({"type": "http", "headers": encoded})


@each_label
class TestHeaders:
    @pytest.mark.parametrize("label", ["a", "a b", "\xfc", "a,b", "a" * 256])
    def test_a_label_is_read_as_it_came(self, label, name):
        assert label_from_headers(name, raw((HEADERS[name], label))) == label

    def test_the_case_of_the_name_does_not_matter(self, name):
        assert label_from_headers(name, raw((HEADERS[name].upper(), "a"))) == "a"

    def test_absent_and_empty_are_none(self, name):
        assert label_from_headers(name, None) is None
        assert label_from_headers(name, raw()) is None
        assert label_from_headers(name, raw((HEADERS[name], ""))) is None

    def test_the_other_label_is_another_header(self, name):
        others = [header for header in HEADERS.values() if header != HEADERS[name]]
        assert label_from_headers(name, raw(*((h, "a") for h in others))) is None

    def test_once_and_again_the_same_is_once(self, name):
        header = HEADERS[name]
        twice = raw((header, "a"), (header, ""), (header.lower(), "a"))
        assert label_from_headers(name, twice) == "a"

    def test_two_values_are_refused(self, name):
        header = HEADERS[name]
        with pytest.raises(VLLMValidationError) as caught:
            label_from_headers(name, raw((header, "a"), (header, "b"), (header, "a")))
        assert caught.value.parameter == name
        assert caught.value.args[0] == (
            f"{name} must be given once, but the header {header} came with 2 different"
            " values."
        )

    @pytest.mark.parametrize(("bad", "fault"), BAD.items())
    def test_what_is_no_label_is_refused_by_name(self, bad, fault, name):
        with pytest.raises(VLLMValidationError) as caught:
            label_from_headers(name, raw((HEADERS[name], bad)))
        assert caught.value.parameter == name
        assert caught.value.args[0] == f"{name} {fault}."


@each_label
class TestPrecedence:
    @pytest.mark.parametrize("field", ["field", "", None])
    @pytest.mark.parametrize("header", ["header", "", None])
    @pytest.mark.parametrize("xarg", ["xarg", "", None])
    def test_the_first_that_is_not_empty_wins(self, field, header, xarg, name, body):
        headers = [] if header is None else [(HEADERS[name], header)]
        request = body(
            **{name: field}, vllm_xargs=None if xarg is None else {name: xarg}
        )
        expected = next((label for label in (field, header, xarg) if label), None)
        assert resolve_label(name, request, raw(*headers)) == expected

    def test_without_an_http_request_there_are_no_headers(self, name, body):
        assert resolve_label(name, body(**{name: "a"}), None) == "a"
        assert resolve_label(name, body(vllm_xargs={name: "a"}), None) == "a"
        assert resolve_label(name, body(), None) is None

    @pytest.mark.parametrize(("bad", "fault"), BAD.items())
    @pytest.mark.parametrize("place", ["field", "xarg"])
    def test_what_wins_must_be_a_label(self, place, bad, fault, name, body):
        given = {name: bad} if place == "field" else {"vllm_xargs": {name: bad}}
        with pytest.raises(VLLMValidationError) as caught:
            resolve_label(name, body(**given), None)
        assert caught.value.parameter == name
        assert caught.value.args[0] == f"{name} {fault}."

    @pytest.mark.parametrize("value", [1, 1.5, ["a"]])
    def test_an_xarg_that_is_no_string_is_refused(self, value, name, body):
        with pytest.raises(
            VLLMValidationError, match=f"^{name} must be a string, not "
        ):
            resolve_label(name, body(vllm_xargs={name: value}), None)

    @pytest.mark.parametrize("bad", BAD)
    def test_what_loses_need_not_be_one(self, bad, name, body):
        request = body(**{name: "a"}, vllm_xargs={name: bad})
        assert resolve_label(name, request, raw((HEADERS[name], bad))) == "a"


def test_of_a_request_that_asks_for_nothing_no_more_is_looked_at(body):
    assert not asks_for_coordinates(body(), None)
    assert not asks_for_coordinates(body(session_id="", vllm_xargs={}), raw())
    assert not asks_for_coordinates(body(), raw(("X-Other", "c")))


@pytest.mark.parametrize("name", HEADERS)
def test_whatever_names_a_label_or_a_mode_asks(name, body):
    assert asks_for_coordinates(body(**{name: "c"}), None)
    assert asks_for_coordinates(body(), raw((HEADERS[name].lower(), "\n")))
    assert asks_for_coordinates(body(vllm_xargs={name: 1}), None)
    assert asks_for_coordinates(body(vllm_xargs={"kv_cache_report_mode": "a"}), None)


class TestContinuation:
    def test_is_resolved_where_coordinates_are_on(self, on, body):
        assert resolve_continuation_id(body(continuation_id="c"), None, on) == "c"
        header = raw(("X-Continuation-ID", "c"))
        assert resolve_continuation_id(body(), header, on) == "c"
        xargs = body(vllm_xargs={"continuation_id": "c"})
        assert resolve_continuation_id(xargs, None, on) == "c"
        assert resolve_continuation_id(body(), None, on) is None

    @pytest.mark.parametrize("label", ["c", "\n", "a" * 257])
    def test_is_ignored_where_they_are_off(self, label, off, body):
        request = body(continuation_id=label, vllm_xargs={"continuation_id": label})
        headers = raw(("X-Continuation-ID", label), ("X-Continuation-ID", "d"))
        assert resolve_continuation_id(request, headers, off) is None

    def test_mode_and_labels_are_checked_before_an_answer_begins(self, on, body):
        coordinates = {"kv_cache_report_mode": "coordinates"}
        request = body(continuation_id="c", vllm_xargs=coordinates)
        with pytest.raises(VLLMValidationError) as caught:
            resolve_continuation_id(request, None, on)
        assert caught.value.parameter == "session_id"
        session = raw(("X-Session-ID", "s"))
        assert resolve_continuation_id(request, session, on) == "c"

    def test_an_unknown_mode_is_refused(self, on, body):
        request = body(vllm_xargs={"kv_cache_report_mode": "some"})
        with pytest.raises(VLLMValidationError) as caught:
            resolve_continuation_id(request, None, on)
        assert caught.value.parameter == "kv_cache_report_mode"

    def test_the_coordinates_mode_is_refused_where_they_are_off(self, off, body):
        coordinates = {"kv_cache_report_mode": "coordinates"}
        request = body(session_id="s", continuation_id="c", vllm_xargs=coordinates)
        with pytest.raises(VLLMValidationError, match="coordinates switched off"):
            resolve_continuation_id(request, None, off)


class TestTokenRequest:
    @each_label
    def test_a_label_that_cannot_be_encoded_is_refused(self, name):
        body = {"sampling_params": {"extra_args": {name: "\ud800"}}}
        with pytest.raises(VLLMValidationError) as caught:
            check_token_request(body)
        assert caught.value.parameter == name

    @pytest.mark.parametrize(
        "data",
        [
            None,
            [],
            "a",
            1,
            {},
            {"sampling_params": None},
            {"sampling_params": [1]},
            {"sampling_params": {"extra_args": None}},
            {"sampling_params": {"extra_args": ["\ud800"]}},
            {"sampling_params": {"extra_args": {"continuation_id": "c", "a": 1}}},
            {"extra_args": {"continuation_id": "\ud800"}},
        ],
    )
    def test_any_other_body_is_left_to_its_parser(self, data):
        check_token_request(data)


class TestLoggedParameters:
    def test_no_label_is_among_them(self):
        labels = {"session_id": "s", "continuation_id": "c"}
        params = SamplingParams(temperature=0.5, extra_args={**labels, "a": 1})
        shown = without_labels(params)
        assert shown.extra_args == {"a": 1}
        assert shown.temperature == 0.5
        assert params.extra_args == {**labels, "a": 1}

    @pytest.mark.parametrize("extra_args", [None, {}, {"a": 1}])
    def test_without_labels_they_are_the_same(self, extra_args):
        params = SamplingParams(extra_args=extra_args)
        assert without_labels(params) is params
        assert without_labels(None) is None
