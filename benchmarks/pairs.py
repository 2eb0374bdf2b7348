# SPDX-License-Identifier: Apache-2.0
"""Paired measurements: two things measured in turns, and the ratio of each pair.

The speed of a machine that others use too changes by the minute. Two measurements
right after one another share most of it, so their ratio holds where neither does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

Measurement = Mapping[str, float]
"""What one measurement found, by name: e.g. seconds of admission and of eviction."""


@dataclass(frozen=True)
class Pair:
    """A comparison of `of` to `to`, each called for one measurement."""

    name: str
    of: Callable[[], Measurement]
    to: Callable[[], Measurement]


@dataclass(frozen=True)
class Ratio:
    """The ratios of all pairs of one comparison, in short.

    Attributes:
        median: Half of the ratios are below it.
        low: A quarter of them are below it.
        high: A quarter of them are above it.
        pairs: How many there are.
    """

    median: float
    low: float
    high: float
    pairs: int


Taken = dict[str, list[tuple[Measurement, Measurement]]]
"""Per comparison, the two measurements of each pair."""


def alternate(comparisons: Sequence[Pair], rounds: int) -> Taken:
    """Measures every comparison once in each round, its two sides in turns.

    Which side goes first changes from round to round.
    """
    taken: Taken = {pair.name: [] for pair in comparisons}
    for number in range(rounds):
        for pair in comparisons:
            if number % 2:
                to, of = pair.to(), pair.of()
            else:
                of, to = pair.of(), pair.to()
            taken[pair.name].append((of, to))
    return taken


def ratio(pairs: Sequence[tuple[Measurement, Measurement]], what: str) -> Ratio:
    """The ratio of what both sides of each pair measured as `what`."""
    ratios = [of[what] / to[what] for of, to in pairs]
    low, _, high = quantiles(ratios, n=4, method="inclusive")
    return Ratio(median(ratios), low, high, len(ratios))
