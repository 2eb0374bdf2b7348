# SPDX-License-Identifier: Apache-2.0
"""What the engine core makes of a request, wherever it comes from: it never raises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm.config.kv_events import KVEventsConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.coordinates import ReportMode, admit_coordinates, label_fault
from vllm.v1.request import Request

MODES = [mode.value for mode in ReportMode]
LOST_MODE = (
    "Request r is reported in mode 'incremental': its kv_cache_report_mode is unknown,"
    " switched off, or lacks a label that it needs."
)


def request(
    session: object = None, turn: object = None, **extra_args: object
) -> Request:
    return Request(
        request_id="r",
        prompt_token_ids=[1, 2, 3],
        sampling_params=SamplingParams(extra_args=extra_args or None),
        pooling_params=None,
        session_id=session,
        continuation_id=turn,
    )


def admitted(
    made: Request, config: KVEventsConfig | None
) -> tuple[str | None, str | None, str]:
    admit_coordinates(made, config)
    return made.session_id, made.continuation_id, made.kv_cache_report_mode


@pytest.mark.parametrize("mode", MODES)
def test_labels_and_mode_that_hold_are_kept(mode, on, warnings):
    made = request("s", "c", kv_cache_report_mode=mode)
    assert admitted(made, on) == ("s", "c", mode)
    assert not warnings()


def test_a_request_without_labels_has_none(on, warnings):
    assert admitted(request(), on) == (None, None, "incremental")
    assert not warnings()


def test_an_empty_label_counts_as_absent(on, warnings):
    assert admitted(request("", ""), on) == (None, None, "incremental")
    assert not warnings()


def test_labels_of_a_frontend_that_forwards_extra_args_are_found(on):
    made = request(None, None, continuation_id="c", session_id="s")
    assert admitted(made, on) == ("s", "c", "incremental")
    made = request("session", "turn", continuation_id="c", session_id="s")
    assert admitted(made, on) == ("session", "turn", "incremental")


def test_a_session_in_extra_args_alone_is_left_as_stock_leaves_it(on):
    assert admitted(request(session_id="s"), on) == (None, None, "incremental")


def test_a_pooling_request_has_no_extra_args(on):
    made = request("s", "c")
    made.sampling_params = None
    assert admitted(made, on) == ("s", "c", "incremental")


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        ("\n", "must not be blank"),
        ("a\n", "must not contain control characters"),
        ("a" * 257, "must have at most 256 characters, not 257"),
        ("\ud800", "must be encodable as UTF-8 (it has a lone surrogate)"),
        (1, "must be a string, not int"),
        (["a"], "must be a string, not list"),
    ],
)
def test_a_bad_label_is_dropped_with_a_warning(bad, fault, on, warnings):
    assert admitted(request(bad, "c"), on) == (None, "c", "incremental")
    assert admitted(request("s", bad), on) == ("s", None, "incremental")
    assert warnings() == [
        f"Request r loses its session_id: it {fault}.",
        f"Request r loses its continuation_id: it {fault}.",
    ]


@pytest.mark.parametrize("mode", ["some", "", None, 1, ["full"], {"full": 1}])
def test_an_unknown_mode_is_the_default_with_a_warning(mode, on, warnings):
    made = request("s", "c", kv_cache_report_mode=mode)
    assert admitted(made, on) == ("s", "c", "incremental")
    assert warnings() == [LOST_MODE]


@pytest.mark.parametrize("labels", [(None, None), ("s", None), (None, "c")])
def test_the_coordinates_mode_needs_both_labels(labels, on, warnings):
    made = request(*labels, kv_cache_report_mode="coordinates")
    assert admitted(made, on) == (*labels, "incremental")
    assert warnings() == [LOST_MODE]


def test_a_label_that_is_dropped_takes_the_coordinates_mode_with_it(on, warnings):
    made = request("\n", "c", kv_cache_report_mode="coordinates")
    assert admitted(made, on) == (None, "c", "incremental")
    assert warnings()[-1] == LOST_MODE


class TestWithCoordinatesOff:
    def test_the_continuation_is_ignored_without_a_word(self, off, warnings):
        made = request("s", "c", continuation_id="d")
        assert admitted(made, off) == ("s", None, "incremental")
        assert not warnings()

    def test_full_mode_is_kept(self, off):
        made = request("s", "c", kv_cache_report_mode="full")
        assert admitted(made, off) == ("s", None, "full")

    def test_the_coordinates_mode_is_the_default_with_a_warning(self, off, warnings):
        made = request("s", "c", kv_cache_report_mode="coordinates")
        assert admitted(made, off) == ("s", None, "incremental")
        assert warnings() == [LOST_MODE]


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.binary(max_size=8)
    | st.text(st.characters(), max_size=300)
    | st.sampled_from(MODES),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
)
extra_arguments = st.none() | st.dictionaries(
    st.sampled_from(["session_id", "continuation_id", "kv_cache_report_mode"]), anything
)


@given(
    session=anything,
    turn=anything,
    extra_args=extra_arguments,
    config=st.sampled_from([None, KVEventsConfig(), KVEventsConfig(coordinates=False)]),
)
def test_whatever_comes_in_what_goes_on_holds(session, turn, extra_args, config):
    made = request(session, turn)
    made.sampling_params.extra_args = extra_args

    session, turn, mode = admitted(made, config)

    assert session is None or label_fault(session) is None
    assert turn is None or label_fault(turn) is None
    assert type(mode) is str
    assert mode in MODES
    assert mode != "coordinates" or (session and turn)
    assert config is None or config.coordinates or not turn
