# SPDX-License-Identifier: Apache-2.0
"""What holds for every history of a scheduler, in every mix of traffic.

The same as for a block pool, with upstream's own order of things: chunked prefill,
preemption and recompute, sliding windows, Mamba states and their copies, steps in
flight, resets in the middle of it.
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
from pool.engines import Engine, seen_by_workers
from pool.invariants import VOICES, Readers, attributions_hold
from pool.layouts import LAYOUTS, Layout
from pool.ledger import Ledger
from pool.placement import placement
from pool.traffic import CONTINUATIONS, Ask, Lineage, Voice, request_of

from vllm.v1.request import Request

MANY = 1 << 16


class SchedulerHistory(RuleBasedStateMachine):
    @initialize(
        layout=st.sampled_from(LAYOUTS),
        num_blocks=st.integers(24, 60),
        budget=st.sampled_from((8, 16, 64)),
        overlap=st.booleans(),
        extra=st.sampled_from(("none", "none", "eagle", "offload")),
        voices=st.sampled_from(VOICES),
    )
    def begin(
        self,
        layout: Layout,
        num_blocks: int,
        budget: int,
        overlap: bool,
        extra: str,
        voices: tuple[Voice, ...],
    ) -> None:
        self.voices = voices
        self.engines = [
            Engine(
                layout,
                num_blocks,
                max_num_batched_tokens=budget,
                overlap=overlap,
                eagle=extra == "eagle",
                offload=extra == "offload",
            )
            for _ in range(2)
        ]
        self.ours = self.engines[0]
        self.lineage = Lineage()
        self.ledger = Ledger(self.lineage, layout.block_sizes)
        self.ledger.watch(self.ours.pool)
        self.watch_reuse()
        self.readers = Readers(self.ledger, self.ours.pool)
        # Upstream's second tier stands neither a reset nor an eviction under way.
        self.single_tier = extra != "offload"
        self.asks: dict[str, Ask] = {}
        self.alive: dict[str, Request] = {}
        self.started = 0

    def watch_reuse(self) -> None:
        coordinator = self.ours.manager.coordinator
        allocate = coordinator.allocate_new_computed_blocks

        def allocate_new_computed_blocks(request_id, new_computed_blocks, **rest):
            allocate(request_id, new_computed_blocks, **rest)
            for group, blocks in enumerate(new_computed_blocks):
                request = self.ours.requests[request_id]
                self.ledger.reused(self.ours.pool, request, group, blocks)

        coordinator.allocate_new_computed_blocks = allocate_new_computed_blocks

    def next_token(self, request: Request) -> int:
        variant = int(request.request_id) % 3
        return 50 + 10 * variant + request.num_output_tokens % 7

    def note(self) -> None:
        for name, request in list(self.alive.items()):
            self.lineage.note(self.asks[name].continuation, request)
            if name not in self.ours.requests:
                del self.alive[name]

    def anyone(self) -> bool:
        return bool(self.ours.requests)

    @rule(
        continuation=st.sampled_from(CONTINUATIONS),
        voice=st.integers(0, MANY),
        session=st.sampled_from("st"),
        max_tokens=st.integers(1, 12),
    )
    def ask(self, continuation, voice, session, max_tokens) -> None:
        voice = self.voices[voice % len(self.voices)]
        ask = Ask(continuation, voice=voice, session=session)
        name = str(self.started)
        self.started += 1
        requests = [
            request_of(ask, name, stripped=stripped, max_tokens=max_tokens)
            for stripped in (False, True)
        ]
        self.asks[name], self.alive[name] = ask, requests[0]
        for engine, request in zip(self.engines, requests, strict=True):
            engine.add(request)
        self.note()

    @rule(count=st.integers(1, 5))
    def step(self, count) -> None:
        for _ in range(count):
            ours, theirs = (engine.step(self.next_token) for engine in self.engines)
            assert seen_by_workers(ours) == seen_by_workers(theirs)
            self.note()

    @precondition(anyone)
    @rule(who=st.integers(0, MANY))
    def abort(self, who) -> None:
        names = sorted(self.ours.requests, key=int)
        for engine in self.engines:
            engine.abort(names[who % len(names)])
        self.note()

    @precondition(lambda self: self.single_tier)
    @rule(ids=st.lists(st.integers(0, MANY), min_size=1, max_size=3))
    def evict(self, ids) -> None:
        for engine in self.engines:
            engine.manager.evict_blocks({i % len(engine.pool.blocks) for i in ids})

    @rule(preempt=st.booleans())
    def reset(self, preempt) -> None:
        ours, theirs = (
            engine.scheduler.reset_prefix_cache(preempt and self.single_tier)
            for engine in self.engines
        )
        assert ours == theirs

    @rule()
    def drain(self) -> None:
        """Every request comes to its end; one that never fits is aborted."""
        for _ in range(60):
            if self.anyone():
                self.step(1)
        for name in list(self.ours.requests):
            for engine in self.engines:
                engine.abort(name)
        for engine in self.engines:
            engine.settle(self.next_token)
        self.note()

    @invariant()
    def the_twin_without_labels_does_the_same(self) -> None:
        ours, theirs = (placement(engine.pool) for engine in self.engines)
        assert ours == theirs

    @invariant()
    def readers_believe_what_is_there(self) -> None:
        self.readers.take(self.ours.published.take())
        by_hash_once = {Voice.STOCK, Voice.LABELED}
        self.readers.check(nothing_repeats=by_hash_once.issuperset(self.voices))

    @invariant()
    def attributions_are_of_cached_hashes_alone(self) -> None:
        attributions_hold(self.ours.pool, self.ledger)
        assert not self.engines[1].pool.admissions.attributions


SchedulerHistory.TestCase.settings = settings(
    max_examples=int(os.environ.get("POOL_EXAMPLES", "200")) // 2,
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestSchedulerHistory = SchedulerHistory.TestCase
