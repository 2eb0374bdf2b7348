# SPDX-License-Identifier: Apache-2.0
"""The shape of a label: 1 to 256 characters, not blank, UTF-8, no controls."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm.exceptions import VLLMValidationError
from vllm.v1.coordinates import MAX_LABEL_LENGTH, check_label, label_fault

CONTROL = "must not contain control characters"
SURROGATE = "must be encodable as UTF-8 (it has a lone surrogate)"
FAULT_OF_CATEGORY = {"Cc": CONTROL, "Cs": SURROGATE}

characters = st.characters(categories=["L", "M", "N", "P", "S", "Z", "C"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def test_every_character_is_allowed_but_controls_and_surrogates():
    for point in range(sys.maxunicode + 1):
        character = chr(point)
        fault = FAULT_OF_CATEGORY.get(unicodedata.category(character))
        assert label_fault(f"a{character}b") == fault, hex(point)


@given(st.text(characters, max_size=300))
def test_a_string_is_a_label_exactly_if_it_has_the_shape(text):
    categories = {unicodedata.category(character) for character in text}
    has_the_shape = (
        1 <= len(text) <= 256
        and not text.isspace()
        and not categories & FAULT_OF_CATEGORY.keys()
    )
    assert (label_fault(text) is None) == has_the_shape


@given(anything)
def test_whatever_is_no_string_is_no_label(value):
    if not isinstance(value, str):
        assert label_fault(value) == f"must be a string, not {type(value).__name__}"


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        pytest.param("", "must not be blank", id="empty"),
        pytest.param(" \u00a0\u3000", "must not be blank", id="blank"),
        pytest.param("a" * 256, None, id="the longest"),
        pytest.param("🎈" * 256, None, id="characters are counted, not bytes"),
        pytest.param(
            "a" * 257, "must have at most 256 characters, not 257", id="too long"
        ),
        pytest.param(
            "\n" * 2**20,
            "must have at most 256 characters, not 1048576",
            id="a megabyte",
        ),
        pytest.param("a\n", CONTROL, id="a line end"),
        pytest.param("a\x00", CONTROL, id="a null"),
        pytest.param("a\x7f", CONTROL, id="a delete"),
        pytest.param("a\x85", CONTROL, id="a control of the second block"),
        pytest.param("\ud83c", SURROGATE, id="half a balloon"),
        pytest.param("\udc80", SURROGATE, id="a byte that was not UTF-8"),
        pytest.param(" a b ", None, id="with spaces around"),
        pytest.param("a/b?c=d&e#f", None, id="like an address"),
        pytest.param('{"a": 1}', None, id="like JSON"),
    ],
)
def test_a_fault_is_named(value, fault):
    assert label_fault(value) == fault


def test_the_longest_label_has_256_characters():
    assert MAX_LABEL_LENGTH == 256


def test_no_label_passes():
    check_label("session_id", None)


def test_what_is_no_label_is_refused_by_name_and_never_repeated():
    secret = "secret\n"
    with pytest.raises(VLLMValidationError) as caught:
        check_label("continuation_id", secret)
    assert str(caught.value) == (
        f"continuation_id {CONTROL}. (parameter=continuation_id)"
    )
    assert caught.value.parameter == "continuation_id"
    assert caught.value.value is None


@given(anything)
def test_whatever_is_refused_the_message_can_be_sent(value):
    if value is None or label_fault(value) is None:
        check_label("session_id", value)
        return
    with pytest.raises(VLLMValidationError) as caught:
        check_label("session_id", value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200
