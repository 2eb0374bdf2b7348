# SPDX-License-Identifier: Apache-2.0
"""What a Python frontend makes of labels, report mode and the server's switch."""

from types import MappingProxyType

import pytest

from vllm.config.kv_events import KVEventsConfig
from vllm.exceptions import VLLMValidationError
from vllm.v1.coordinates import (
    ReportMode,
    accepted_modes,
    check_coordinates,
    check_extra_args,
)

LABELS = ("session", "turn")
MODES = (None, "incremental", "full", "coordinates")
SURROGATE = "must be encodable as UTF-8 (it has a lone surrogate)"


def extra_args(mode: str | None, **labels: object) -> dict[str, object]:
    return labels if mode is None else {"kv_cache_report_mode": mode, **labels}


def refusal(*arguments: object) -> tuple[str | None, str]:
    """The field that a refusal names, and its sentence."""
    with pytest.raises(VLLMValidationError) as caught:
        check_coordinates(*arguments)
    return caught.value.parameter, caught.value.args[0]


def needs(label: str) -> tuple[str, str]:
    return label, (
        f"kv_cache_report_mode 'coordinates' needs both labels, and {label} is missing;"
        " send it, or use one of incremental, full."
    )


class TestWithCoordinatesOn:
    @pytest.mark.parametrize("mode", MODES)
    def test_both_labels_pass_in_every_mode(self, mode, on):
        assert check_coordinates(*LABELS, extra_args(mode), on) == LABELS

    @pytest.mark.parametrize("mode", [None, "incremental", "full"])
    @pytest.mark.parametrize("session", ["session", None])
    @pytest.mark.parametrize("turn", ["turn", None])
    def test_any_label_may_be_absent(self, session, turn, mode, on):
        found = check_coordinates(session, turn, extra_args(mode), on)
        assert found == (session, turn)

    @pytest.mark.parametrize("absent", [None, ""])
    def test_the_coordinates_mode_needs_both(self, absent, on):
        args = extra_args("coordinates")
        assert refusal("session", absent, args, on) == needs("continuation_id")
        assert refusal(absent, "turn", args, on) == needs("session_id")
        assert refusal(absent, absent, args, on) == needs("session_id")

    @pytest.mark.parametrize("nothing", [None, {}, MappingProxyType({})])
    def test_there_may_be_no_extra_args(self, nothing, on):
        assert check_coordinates(*LABELS, nothing, on) == LABELS

    def test_an_empty_label_counts_as_absent(self, on):
        assert check_coordinates("", "", None, on) == (None, None)

    def test_labels_in_extra_args_are_taken_where_there_is_no_other(self, on):
        args = extra_args(None, session_id="s", continuation_id="c")
        assert check_coordinates(None, None, args, on) == ("s", "c")
        assert check_coordinates("session", None, args, on) == ("session", "c")
        assert check_coordinates(None, "turn", args, on) == ("s", "turn")
        assert check_coordinates(*LABELS, args, on) == LABELS

    def test_labels_in_extra_args_meet_the_coordinates_mode(self, on):
        args = extra_args("coordinates", session_id="s", continuation_id="c")
        assert check_coordinates(None, None, args, on) == ("s", "c")

    def test_a_session_in_extra_args_alone_is_left_as_stock_leaves_it(self, on):
        args = extra_args(None, session_id="s")
        assert check_coordinates(None, None, args, on) == (None, None)

    @pytest.mark.parametrize("mode", ["Full", "", "fulll", 1, ["full"], {}, True])
    def test_an_unknown_mode_is_refused(self, mode, on):
        assert refusal(*LABELS, extra_args(mode), on) == (
            "kv_cache_report_mode",
            "kv_cache_report_mode must be one of incremental, full, coordinates.",
        )

    def test_a_mode_of_none_is_refused(self, on):
        args = {"kv_cache_report_mode": None}
        assert refusal(*LABELS, args, on)[0] == "kv_cache_report_mode"

    @pytest.mark.parametrize("place", ["session_id", "continuation_id"])
    @pytest.mark.parametrize("bad", ["\n", "a" * 257, 1, ["a"], {"a": 1}, True])
    def test_what_is_no_label_is_refused_by_name(self, bad, place, on):
        labels = {"session_id": "session", "continuation_id": "turn", place: bad}
        parameter, sentence = refusal(*labels.values(), None, on)
        assert parameter == place
        assert sentence.startswith(f"{place} must ")

    @pytest.mark.parametrize("bad", ["\n", "a" * 257, 1, ["a"]])
    def test_a_bad_label_in_extra_args_is_refused_where_it_would_be_taken(
        self, bad, on
    ):
        args = extra_args(None, continuation_id=bad)
        assert refusal("session", None, args, on)[0] == "continuation_id"
        assert check_coordinates("session", "turn", args, on) == LABELS


class TestWithCoordinatesOff:
    @pytest.mark.parametrize("mode", [None, "incremental", "full"])
    def test_the_continuation_is_ignored_wherever_it_is(self, mode, off):
        args = extra_args(mode, continuation_id="c")
        assert check_coordinates("session", "turn", args, off) == ("session", None)
        assert check_coordinates(None, None, args, off) == (None, None)

    @pytest.mark.parametrize("bad", ["\n", "a" * 257, 1])
    def test_so_its_shape_does_not_matter(self, bad, off):
        assert check_coordinates("session", bad, None, off) == ("session", None)

    def test_the_shape_of_the_session_does(self, off):
        assert refusal("\n", None, None, off)[0] == "session_id"

    def test_the_coordinates_mode_is_refused_and_the_reason_told(self, off):
        assert refusal(*LABELS, extra_args("coordinates"), off) == (
            "kv_cache_report_mode",
            "kv_cache_report_mode must be one of incremental, full (this server has"
            " coordinates switched off).",
        )

    def test_an_unknown_mode_is_refused_without_that_reason(self, off):
        assert refusal(*LABELS, extra_args("some"), off) == (
            "kv_cache_report_mode",
            "kv_cache_report_mode must be one of incremental, full.",
        )


@pytest.mark.parametrize("config", [None, KVEventsConfig(coordinates=False)])
@pytest.mark.parametrize("name", ["session_id", "continuation_id"])
@pytest.mark.parametrize("value", ["\ud800", ["a", "\udfff"]])
def test_what_cannot_be_sent_to_the_engine_is_refused_wherever_it_is(
    value, name, config
):
    args = {name: value}
    assert refusal(*LABELS, args, config) == (name, f"{name} {SURROGATE}.")


@pytest.mark.parametrize("value", [None, 1, "a", ["a", 1], {"a": "\ud800"}])
def test_anything_else_in_extra_args_can_be(value):
    check_extra_args({"session_id": value, "other": "\ud800"})


def test_the_modes_are_three():
    assert [*map(str, ReportMode)] == ["incremental", "full", "coordinates"]
    assert accepted_modes(KVEventsConfig(coordinates=False)) == ["incremental", "full"]
