# SPDX-License-Identifier: Apache-2.0
"""A difference in outcome is told, whichever way it goes."""

import pytest
from upstream.compare import differences, summary

STOCK = {"a": "passed", "b": "skipped", "c": "failed"}


def test_equal_lists_differ_in_nothing():
    assert list(differences(STOCK, dict(STOCK), {})) == []


@pytest.mark.parametrize(
    ("patched", "told"),
    [
        ({**STOCK, "a": "failed"}, "a: passed on stock, failed on patched"),
        ({**STOCK, "c": "passed"}, "c: failed on stock, passed on patched"),
        ({**STOCK, "b": "passed"}, "b: skipped on stock, passed on patched"),
        ({**STOCK, "d": "passed"}, "d: not there on stock, passed on patched"),
        ({"a": "passed", "b": "skipped"}, "c: failed on stock, not there on patched"),
    ],
)
def test_a_test_that_ends_another_way_is_told(patched, told):
    assert list(differences(STOCK, patched, {})) == [told]


def test_what_rightly_differs_is_not_told_but_has_to_differ():
    changed = {"a": "because", "not run": "because"}
    assert list(differences(STOCK, {**STOCK, "a": "failed"}, changed)) == []
    (line,) = differences(STOCK, STOCK, changed)
    assert line == "a: is listed as changed, and is not"


def test_outcomes_are_counted():
    assert summary(STOCK) == "1 failed, 1 passed, 1 skipped"
