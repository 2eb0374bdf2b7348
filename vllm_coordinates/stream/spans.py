# SPDX-License-Identifier: Apache-2.0
"""Sets of token positions, as one flat sorted list of borders.

[0, 64, 128, 192] is [0, 64) and [128, 192). Borders are strictly increasing,
so spans that touch are one span. A bisection and a slice replace whole
objects per span: the index applies some hundred thousand of these a second,
which the kept interval libraries are an order of magnitude short of.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Spans = list[int]


def gathered(parts: Iterable[tuple[int, int]]) -> Spans:
    """All positions of `parts`, which may overlap and come in any order."""
    found: Spans = []
    for start, end in sorted(parts):
        if found and start <= found[-1]:
            found[-1] = max(found[-1], end)
        elif start < end:
            found += (start, end)
    return found


def add(spans: Spans, start: int, end: int) -> None:
    """Add [start, end), in place; nothing where it is empty."""
    if start >= end:
        return
    first = bisect_left(spans, start)
    after = bisect_right(spans, end)
    borders = [] if first & 1 else [start]
    if not after & 1:
        borders.append(end)
    spans[first:after] = borders


def remove(spans: Spans, start: int, end: int) -> None:
    """Take [start, end) away, in place; nothing where it is empty."""
    if start >= end or not spans:
        return
    first = bisect_left(spans, start)
    after = bisect_right(spans, end)
    borders = [start] if first & 1 else []
    if after & 1:
        borders.append(end)
    spans[first:after] = borders


def pairs(spans: Spans) -> Iterator[tuple[int, int]]:
    """Each span as (start, end), in order."""
    return zip(spans[::2], spans[1::2], strict=True)


def within(spans: Spans, start: int, end: int) -> Spans:
    """The part of `spans` that lies in [start, end), as a new list."""
    part = spans.copy()
    if part:
        remove(part, part[0], start)
        if part:
            remove(part, end, part[-1])
    return part


def union(spans: Spans, others: Spans) -> Spans:
    """What is in either, as a new list."""
    both = spans.copy()
    for start, end in pairs(others):
        add(both, start, end)
    return both


def common(spans: Spans, others: Spans) -> Spans:
    """What is in both, as a new list."""
    both: Spans = []
    for start, end in pairs(others):
        both += within(spans, start, end)
    return both


def without(spans: Spans, others: Spans) -> Spans:
    """What is in `spans` and not in `others`, as a new list."""
    left = spans.copy()
    for start, end in pairs(others):
        remove(left, start, end)
    return left


def total(spans: Spans) -> int:
    """How many tokens `spans` holds."""
    return sum(spans[1::2]) - sum(spans[::2])


def holds(spans: Spans, start: int, end: int) -> bool:
    """Whether all of [start, end) is in `spans`; an empty one always is."""
    if start >= end:
        return True
    position = bisect_right(spans, start)
    return bool(position & 1) and spans[position] >= end


def prefix(spans: Spans) -> int:
    """The length of the span that begins at position 0; else 0."""
    return spans[1] if spans and spans[0] == 0 else 0
