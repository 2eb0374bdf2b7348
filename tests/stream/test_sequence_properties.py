# SPDX-License-Identifier: Apache-2.0
"""Whatever happens on the way, what is vouched for is true once it can be known."""

from collections import deque

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from stream.model import BLOCK, Engine, Tokens

from vllm_coordinates.stream.index import Index
from vllm_coordinates.stream.sequence import Batch, Delivery, Sequencer
from vllm_coordinates.stream.wire import encode_batch

CONVERSATIONS: dict[str, Tokens] = {
    "a": tuple(range(3 * BLOCK)),
    "b": tuple(range(100, 100 + 5 * BLOCK)),
}


class PublisherAndReader(RuleBasedStateMachine):
    """A publisher with a short memory, a lossy way, and one reader."""

    @initialize(epochs=st.booleans(), replay=st.booleans())
    def start(self, epochs: bool, replay: bool) -> None:
        self.epochs, self.replay = epochs, replay
        self.generation = 0
        self.reader = Sequencer("e", replayable=replay)
        self.index = Index()
        self.now = 0.0
        self.boot()

    def boot(self) -> None:
        self.generation += 1
        self.engine = Engine()
        # Two publishers started in one instant would be one to any reader.
        self.engine.clock = self.generation * 1000.0
        self.seq = 0
        self.memory: deque[tuple[int, bytes]] = deque(maxlen=4)
        self.told = True

    def publish(self, copies: int) -> None:
        epoch = f"epoch {self.generation}" if self.epochs else None
        frame = (self.seq, encode_batch(self.engine.take(epoch)))
        self.memory.append(frame)
        self.seq += 1
        for _ in range(copies):
            self.take(self.reader.frame(*frame, self.now))
        self.told = copies > 0

    def take(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self.index.apply(delivery)
        while self.replay and self.reader.wants is not None:
            since, self.reader.wants = self.reader.wants, None
            frames = [frame for frame in self.memory if frame[0] >= since]
            for delivery in self.reader.replay(frames, None, self.now):
                self.index.apply(delivery)

    @rule(
        name=st.sampled_from(sorted(CONVERSATIONS)),
        copies=st.sampled_from((1, 1, 1, 0, 2)),
    )
    def admission(self, name: str, copies: int) -> None:
        self.engine.request(CONVERSATIONS[name], continuation=name, session=name)
        self.publish(copies)

    @rule(pick=st.integers(0, 1 << 16), copies=st.sampled_from((1, 1, 1, 0, 2)))
    def eviction(self, pick: int, copies: int) -> None:
        if self.engine.blocks:
            self.engine.evict(pick % len(self.engine.blocks))
        self.publish(copies)

    @rule(seconds=st.sampled_from((0.1, 60.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(unheard=st.integers(0, 3))
    def connection_blinks(self, unheard: int) -> None:
        self.take(self.reader.disconnected(self.now))
        for _ in range(unheard):
            self.admission("a", 0)
            self.eviction(0, 0)
        self.take(self.reader.connected(self.now))

    @rule(unheard=st.integers(0, 14))
    def killed_and_started_again(self, unheard: int) -> None:
        self.take(self.reader.disconnected(self.now))
        self.boot()
        for _ in range(unheard):
            self.eviction(0, 0)
        self.take(self.reader.connected(self.now))
        # Whoever has no replay socket hears of it with the next batch.
        self.told = not unheard

    @rule()
    def another_takes_over_unseen(self) -> None:
        """A proxy hides the connection; only epochs tell, at the next batch."""
        if self.epochs:
            self.boot()
            self.told = False

    @rule(junk=st.binary(max_size=20), offset=st.integers(0, 3))
    def a_stray_frame(self, junk: bytes, offset: int) -> None:
        self.take(self.reader.frame(self.seq + offset, junk, self.now))

    @invariant()
    def what_is_vouched_for_is_resident(self) -> None:
        if not self.told:
            return
        for name, tokens in CONVERSATIONS.items():
            truth = self.engine.resident(tokens)
            for start, end in self.index.spans("e", name):
                for offset in range(start, end, BLOCK):
                    assert (offset, offset + BLOCK) in truth


PublisherAndReader.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None
)
TestPublisherAndReader = PublisherAndReader.TestCase


class UndisturbedReader(RuleBasedStateMachine):
    """With a replay socket that remembers all, nothing at all is missed."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = Sequencer("e", replayable=True)
        self.seq = 0
        self.memory: list[tuple[int, bytes]] = []
        self.read: list[int] = []

    @rule(copies=st.integers(0, 2))
    def a_batch(self, copies: int) -> None:
        engine = Engine(clock=float(self.seq))
        self.memory.append((self.seq, encode_batch(engine.take())))
        self.seq += 1
        for _ in range(copies):
            self.take(self.reader.frame(*self.memory[-1], 0.0))
        self.heard = copies > 0

    def take(self, deliveries: list[Delivery]) -> None:
        self.read += [d.seq for d in deliveries if isinstance(d, Batch)]
        while self.reader.wants is not None:
            since, self.reader.wants = self.reader.wants, None
            deliveries = self.reader.replay(self.memory[since:], None, 0.0)
            self.read += [d.seq for d in deliveries if isinstance(d, Batch)]

    @invariant()
    def every_batch_is_read_once_and_in_order(self) -> None:
        assert self.read == list(range(len(self.read)))
        if self.seq and self.heard:
            assert len(self.read) == self.seq


TestUndisturbedReader = UndisturbedReader.TestCase
TestUndisturbedReader.settings = settings(max_examples=100, deadline=None)
