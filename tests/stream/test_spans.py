# SPDX-License-Identifier: Apache-2.0
"""Spans behave as the sets of positions that they stand for."""

import hypothesis.strategies as st
from hypothesis import given

from vllm_coordinates.stream import spans

BORDERS = st.tuples(st.integers(0, 20), st.integers(0, 20))
EDITS = st.lists(st.tuples(st.booleans(), BORDERS), max_size=12)


def build(edits: list[tuple[bool, tuple[int, int]]]) -> tuple[list[int], set[int]]:
    found: list[int] = []
    truth: set[int] = set()
    for adds, (start, end) in edits:
        if adds:
            spans.add(found, start, end)
            truth.update(range(start, end))
        else:
            spans.remove(found, start, end)
            truth.difference_update(range(start, end))
    return found, truth


def positions(found: list[int]) -> set[int]:
    return {p for start, end in spans.pairs(found) for p in range(start, end)}


@given(EDITS)
def test_adding_and_removing_is_what_it_is_for_sets(
    edits: list[tuple[bool, tuple[int, int]]],
) -> None:
    found, truth = build(edits)
    assert positions(found) == truth
    assert spans.total(found) == len(truth)


@given(EDITS)
def test_borders_are_strictly_increasing(
    edits: list[tuple[bool, tuple[int, int]]],
) -> None:
    found, _ = build(edits)
    assert found == sorted(set(found)) and not len(found) % 2


@given(EDITS, EDITS, BORDERS)
def test_parts_and_unions_are_what_they_are_for_sets(
    one: list[tuple[bool, tuple[int, int]]],
    other: list[tuple[bool, tuple[int, int]]],
    borders: tuple[int, int],
) -> None:
    (mine, my_truth), (theirs, their_truth) = build(one), build(other)
    span = set(range(*borders))
    assert positions(spans.within(mine, *borders)) == my_truth & span
    assert positions(spans.union(mine, theirs)) == my_truth | their_truth
    assert positions(spans.common(mine, theirs)) == my_truth & their_truth
    assert positions(spans.without(mine, theirs)) == my_truth - their_truth


@given(st.lists(BORDERS, max_size=8))
def test_parts_in_any_order_are_gathered(parts: list[tuple[int, int]]) -> None:
    found = spans.gathered(parts)
    assert positions(found) == {p for start, end in parts for p in range(start, end)}
    assert found == sorted(set(found))


@given(EDITS)
def test_the_prefix_is_what_is_there_without_a_hole(
    edits: list[tuple[bool, tuple[int, int]]],
) -> None:
    found, truth = build(edits)
    length = next(p for p in range(30) if p not in truth)
    assert spans.prefix(found) == length
