# SPDX-License-Identifier: Apache-2.0
"""What holds for every history of a block pool, in every mix of traffic.

After each step, readers that have applied every event so far are held against the
pool: they believe nothing that is not there, they miss nothing that the contract
promises, and a twin pool without labels and modes has done exactly the same.
"""

import os

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from pool.invariants import VOICES, Readers, attributions_hold
from pool.layouts import HYBRID, MIXED_SIZES, PLAIN, Layout
from pool.ledger import Ledger
from pool.placement import placement
from pool.sides import Side
from pool.traffic import CONTINUATIONS, TAILS, Ask, Lineage, Voice, request_of

MANY = 1 << 16


class PoolHistory(RuleBasedStateMachine):
    @initialize(
        layout=st.sampled_from((PLAIN, HYBRID, MIXED_SIZES, MIXED_SIZES)),
        num_blocks=st.integers(8, 40),
        voices=st.sampled_from(VOICES),
    )
    def begin(self, layout: Layout, num_blocks: int, voices: tuple[Voice, ...]) -> None:
        self.voices = voices
        self.sides = [Side(layout, num_blocks, stripped=s) for s in (False, True)]
        self.sizes = layout.block_sizes
        self.pool = self.sides[0].pool
        self.lineage = Lineage()
        self.ledger = Ledger(self.lineage, self.sizes)
        self.ledger.watch(self.pool)
        self.sides[0].on_reuse = self.note_reuse
        self.readers = Readers(self.ledger, self.pool)
        self.started = 0

    def note_reuse(self, request, hits) -> None:
        for group, blocks in enumerate(hits):
            self.ledger.reused(self.pool, request, group, blocks)

    def both(self, operation: str, *args, **options) -> None:
        ours, theirs = (
            getattr(side, operation)(*args, **options) for side in self.sides
        )
        assert ours == theirs

    def pick(self, number: int) -> str:
        live = sorted(self.sides[0].live, key=int)
        return live[number % len(live)]

    def anyone(self) -> bool:
        return bool(self.sides[0].live)

    @rule(
        continuation=st.sampled_from(CONTINUATIONS),
        tail=st.sampled_from(TAILS),
        voice=st.integers(0, MANY),
        session=st.sampled_from("st"),
        blind=st.booleans(),
        drop=st.sampled_from((False, False, True)),
        null_head=st.integers(0, 3),
        groups=st.integers(0, 7),
    )
    def admit(
        self, continuation, tail, voice, session, blind, drop, null_head, groups
    ) -> None:
        """A request comes in; each group caches all its blocks now, or later."""
        voice = self.voices[voice % len(self.voices)]
        ask = Ask(continuation, tail, voice, session)
        name = str(self.started)
        self.started += 1
        self.lineage.note(continuation, request_of(ask, name))
        self.both("start", name, ask, blind=blind, drop=drop, null_head=null_head)
        if name in self.sides[0].live:
            for group in self.sizes:
                if groups >> group & 1:
                    self.both("cache", name, group, MANY, None)

    @precondition(anyone)
    @rule(
        who=st.integers(0, MANY),
        group=st.integers(0, 2),
        count=st.integers(1, 4),
        mask=st.none() | st.lists(st.booleans(), min_size=4, max_size=4),
    )
    def cache_full(self, who, group, count, mask) -> None:
        self.both("cache", self.pick(who), group % len(self.sizes), count, mask)

    @precondition(anyone)
    @rule(
        who=st.integers(0, MANY),
        group=st.integers(0, 2),
        num_hashes=st.integers(0, MANY),
        replace=st.sampled_from((False, False, False, True)),
    )
    def cache_partial(self, who, group, num_hashes, replace) -> None:
        group %= len(self.sizes)
        self.both("cache_partial", self.pick(who), group, num_hashes, replace=replace)

    @precondition(anyone)
    @rule(who=st.integers(0, MANY))
    def finish(self, who) -> None:
        self.both("finish", self.pick(who))

    @rule(count=st.integers(1, 16))
    def churn(self, count) -> None:
        self.both("churn", count)

    @rule(ids=st.lists(st.integers(0, MANY), min_size=1, max_size=4))
    def evict(self, ids) -> None:
        self.both("evict", ids)

    @precondition(anyone)
    @rule(who=st.integers(0, MANY), group=st.integers(0, 2), index=st.integers(0, 9))
    def move(self, who, group, index) -> None:
        self.both("move", self.pick(who), group % len(self.sizes), index)

    @rule(finish_first=st.booleans())
    def reset(self, finish_first) -> None:
        if finish_first:
            for name in list(self.sides[0].live):
                self.both("finish", name)
        self.both("reset")

    @rule()
    def publish(self) -> None:
        """The engine's step ends; what follows is in another batch."""
        self.readers.take(self.pool.take_events())

    @invariant()
    def the_twin_without_labels_does_the_same(self) -> None:
        ours, theirs = (placement(side.pool) for side in self.sides)
        assert ours == theirs

    @invariant()
    def readers_believe_what_is_there(self) -> None:
        by_hash_once = {Voice.STOCK, Voice.STOCK_SESSION, Voice.LABELED}
        self.readers.check(nothing_repeats=by_hash_once.issuperset(self.voices))

    @invariant()
    def attributions_are_of_cached_hashes_alone(self) -> None:
        attributions_hold(self.pool, self.ledger)
        assert not self.sides[1].pool.admissions.attributions


PoolHistory.TestCase.settings = settings(
    max_examples=int(os.environ.get("POOL_EXAMPLES", "200")),
    stateful_step_count=60,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestPoolHistory = PoolHistory.TestCase
