# SPDX-License-Identifier: Apache-2.0
"""Removals that wait to be applied, merged so that many cost little."""

from bisect import bisect_right
from collections.abc import Iterator

from . import spans
from .spans import Spans

_FAN = 16


class Removals:
    """Spans in the order they were removed, each at a `stamp` that only grows."""

    __slots__ = ("_levels", "_stamps", "_whole")

    def __init__(self) -> None:
        self._stamps: list[int] = []
        # Level 0 has each removal, the next the unions of 16 of the one before.
        self._levels: list[list[Spans]] = [[]]
        self._whole: Spans = []

    def add(self, stamp: int, start: int, end: int) -> None:
        """[start, end) was removed at `stamp`."""
        self._stamps.append(stamp)
        spans.add(self._whole, start, end)
        self._levels[0].append([start, end])
        level, count = 0, len(self._stamps)
        while count % _FAN == 0:
            merged: Spans = []
            for part in self._levels[level][-_FAN:]:
                for first, last in spans.pairs(part):
                    spans.add(merged, first, last)
            level, count = level + 1, count // _FAN
            if level == len(self._levels):
                self._levels.append([])
            self._levels[level].append(merged)

    def since(self, stamp: int) -> Iterator[tuple[int, int]]:
        """Spans that together are what was removed later than `stamp`."""
        place = bisect_right(self._stamps, stamp)
        if place == 0:
            yield from spans.pairs(self._whole)
            return
        size, level, count = 1, 0, len(self._stamps)
        while place < count:
            # Climb to larger unions where one begins here and is complete.
            while place % (size * _FAN) == 0 and place + size * _FAN <= count:
                size, level = size * _FAN, level + 1
            while place + size > count:
                size, level = size // _FAN, level - 1
            yield from spans.pairs(self._levels[level][place // size])
            place += size
