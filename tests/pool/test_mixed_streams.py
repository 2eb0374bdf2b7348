# SPDX-License-Identifier: Apache-2.0
"""Two requests of any two voices share blocks: no reader keeps what is gone."""

from itertools import product

import pytest
from pool.desk import AB, Desk, span
from pool.invariants import Readers
from pool.layouts import HYBRID, PLAIN
from pool.ledger import Ledger
from pool.traffic import Lineage, Voice

PAIRS = list(product(Voice, Voice))


class Watched(Desk):
    """A desk whose stream both readers follow."""

    def __init__(self, layout=PLAIN) -> None:
        super().__init__(layout)
        self.lineage = Lineage()
        self.ledger = Ledger(self.lineage, layout.block_sizes)
        self.ledger.watch(self.pool)
        self.side.on_reuse = self._note_reuse
        self.readers = Readers(self.ledger, self.pool)

    def _note_reuse(self, request, hits) -> None:
        for group, blocks in enumerate(hits):
            self.ledger.reused(self.pool, request, group, blocks)

    def admit(self, continuation, voice=Voice.COORDINATES, **options) -> str:
        name = super().admit(continuation, voice, **options)
        self.lineage.note(continuation, self.side.live[name].request)
        return name

    def check(self) -> None:
        self.readers.check()
        self.readers.take(self.pool.take_events())
        self.readers.check()


@pytest.mark.parametrize("layout", [PLAIN, HYBRID], ids=repr)
@pytest.mark.parametrize("blind", [False, True], ids=["reuse", "duplicate"])
@pytest.mark.parametrize(
    ("first", "second"), PAIRS, ids=[f"{a.name}-then-{b.name}" for a, b in PAIRS]
)
def test_neither_reader_is_left_with_a_phantom(first, second, blind, layout):
    desk = Watched(layout)
    one = desk.admit(AB, first)
    two = desk.admit("abc", second, session="t", blind=blind)
    desk.check()
    desk.evict(one, 1, 3)
    desk.check()
    desk.evict(two, 0, 3)
    desk.check()
    desk.evict_everything()
    desk.check()
    assert not desk.readers.hashes.believed
    assert not desk.readers.spans.believed
    assert not desk.pool.admissions.attributions


def test_unlabeled_blocks_are_withdrawn_in_coordinates_once_reported_in_them():
    desk = Desk()
    desk.admit(AB, Voice.STOCK)
    name = desk.admit("abc", Voice.COORDINATES)
    admitted, reused, rest = desk.stored()
    assert len(admitted.block_hashes) == 4
    assert (reused.block_hashes, span(reused)) == ([], (0, 16))
    assert span(rest) == (16, 20)
    desk.evict(name, 0, 4)
    first, last = desk.removed()
    assert (len(first.block_hashes), first.continuation_id) == (1, "abc")
    assert span(first) == (0, 4)
    assert (last.block_hashes, span(last)) == ([], (16, 20))


def test_blocks_of_coordinates_are_withdrawn_by_hash_once_reported_by_hash():
    desk = Desk()
    desk.admit(AB, Voice.COORDINATES)
    desk.admit("abc", Voice.STOCK_FULL)
    name = desk.admit("abc", Voice.LABELED, blind=True)
    desk.events()
    desk.evict(name, 0)
    (removal,) = desk.removed()
    assert len(removal.block_hashes) == 1
    assert (removal.continuation_id, span(removal)) == (AB, (0, 4))


def test_blocks_of_a_labeled_hash_stream_get_a_span_once_reported_in_coordinates():
    desk = Desk()
    desk.admit(AB, Voice.LABELED)
    name = desk.admit("abc", Voice.COORDINATES)
    desk.events()
    desk.evict(name, 0)
    (removal,) = desk.removed()
    assert len(removal.block_hashes) == 1
    assert (removal.continuation_id, span(removal)) == (AB, (0, 4))
