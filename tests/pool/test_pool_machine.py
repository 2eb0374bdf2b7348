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
from pool.layouts import HYBRID, MIXED_SIZES, PLAIN, Layout
from pool.ledger import Ledger, removals_in, same_removals
from pool.placement import placement
from pool.readers import HashReader, SpanReader, over_the_wire, stretches
from pool.sides import Side
from pool.traffic import CONTINUATIONS, TAILS, Ask, Lineage, Voice, named

MANY = 1 << 16
VOICES = (
    tuple(Voice),
    (Voice.COORDINATES,),
    (Voice.COORDINATES, Voice.STOCK),
    (Voice.COORDINATES, Voice.LABELED, Voice.STOCK),
    (Voice.LABELED, Voice.STOCK),
    (Voice.FULL, Voice.STOCK_FULL, Voice.COORDINATES),
)


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
        self.hash_reader = HashReader()
        self.span_reader = SpanReader(self.lineage, self.sizes)
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
        self.both("start", name, ask, blind=blind, drop=drop, null_head=null_head)
        if name in self.sides[0].live:
            self.lineage.note(continuation, self.sides[0].live[name].request)
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
        batch = over_the_wire(self.pool.take_events())
        self.hash_reader.apply(batch)
        self.span_reader.apply(batch)
        said = removals_in(batch, self.sizes)
        assert same_removals(said, self.ledger.take_removals())

    @invariant()
    def the_twin_without_labels_does_the_same(self) -> None:
        ours, theirs = (placement(side.pool) for side in self.sides)
        assert ours == theirs

    @invariant()
    def readers_believe_what_is_there(self) -> None:
        pending = over_the_wire(self.pool.kv_event_queue)
        cached = self.pool.cached_block_hash_to_block._cache

        reader = self.hash_reader.copy()
        reader.apply(pending)
        there = {named(key) for key in cached}
        said = {named(key) for key in self.ledger.hashed}
        assert reader.believed <= there
        assert reader.believed == said

        spans = self.span_reader.copy()
        spans.apply(pending)
        for name, believed in spans.believed.items():
            group, continuation = name
            size = self.sizes[group]
            resident: set[int] = set()
            for key, end in self.lineage.keys(continuation, group).items():
                if key in cached:
                    start = (end - 1) // size * size
                    resident.update(stretches(start, end))
            assert believed <= resident
        for name in self.ledger.spans:
            assert self.ledger.promised(name) <= spans.believed.get(name, set())

    @invariant()
    def duplicates_are_counted_right_where_nothing_repeats(self) -> None:
        if any(v.mode in ("full", "coordinates") for v in self.voices):
            return
        reader = self.hash_reader.copy()
        reader.apply(over_the_wire(self.pool.kv_event_queue))
        cached = self.pool.cached_block_hash_to_block._cache
        held = {
            named(key): 1 if hasattr(blocks, "block_id") else len(blocks)
            for key, blocks in cached.items()
        }
        assert reader.counted == held

    @invariant()
    def attributions_are_of_cached_hashes_alone(self) -> None:
        admissions = self.pool.admissions
        cached = self.pool.cached_block_hash_to_block._cache
        owned = {k for k, entry in self.ledger.entries.items() if entry.owner}
        assert admissions.attributions.keys() == owned <= cached.keys()
        names = {self.ledger.entries[key].owner for key in owned}
        # One owner may wait for its last removals to be counted off.
        assert len(admissions._owners) <= len(names) * len(self.sizes) + 1
        assert len(admissions._owners) == len(admissions._owner_numbers)
        assert not self.sides[1].pool.admissions.attributions


PoolHistory.TestCase.settings = settings(
    max_examples=int(os.environ.get("POOL_EXAMPLES", "200")),
    stateful_step_count=60,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestPoolHistory = PoolHistory.TestCase
