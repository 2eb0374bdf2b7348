# SPDX-License-Identifier: Apache-2.0
"""Merging removals loses none of them and adds none."""

import hypothesis.strategies as st
from hypothesis import given

from vllm_coordinates.stream.removals import Removals

LOGS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40)), max_size=600)


@given(LOGS, st.integers(0, 2000))
def test_what_came_after_a_stamp_is_exactly_that(
    log: list[tuple[int, int]], since: int
) -> None:
    removals, stamp = Removals(), 0
    truth: set[int] = set()
    for step, start in log:
        stamp += step
        removals.add(stamp, start, start + 2)
        if stamp > since:
            truth |= {start, start + 1}
    found = {p for start, end in removals.since(since) for p in range(start, end)}
    assert found == truth


def test_many_that_overlap_are_few() -> None:
    removals = Removals()
    for stamp in range(5000):
        removals.add(stamp, stamp % 7, stamp % 7 + 2)
    assert len(list(removals.since(1))) < 100
