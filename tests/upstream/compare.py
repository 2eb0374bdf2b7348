# SPDX-License-Identifier: Apache-2.0
"""Two lists of outcomes of the same tests, held against each other."""

from collections import Counter
from collections.abc import Iterator, Mapping

Outcomes = Mapping[str, str]
"""Test -> `passed`, `failed`, `skipped`, `xfailed`, `xpassed` or `error`."""

MISSING = "not there"


def differences(
    stock: Outcomes, patched: Outcomes, changed: Mapping[str, str]
) -> Iterator[str]:
    """A line for each test whose outcome differs, and has no reason to.

    Args:
        stock: On upstream's tree.
        patched: On the patched one.
        changed: Test -> why its outcome rightly differs; where it ran, it has to.
    """
    for test in sorted(stock.keys() | patched.keys()):
        before, after = stock.get(test, MISSING), patched.get(test, MISSING)
        if before != after and test not in changed:
            yield f"{test}: {before} on stock, {after} on patched"
    for test in sorted(changed):
        if test in stock and stock[test] == patched.get(test):
            yield f"{test}: is listed as changed, and is not"


def summary(outcomes: Outcomes) -> str:
    """How many of each outcome, e.g. `"2,934 passed, 5 skipped"`."""
    counts = Counter(outcomes.values())
    return ", ".join(f"{counts[outcome]:,} {outcome}" for outcome in sorted(counts))
