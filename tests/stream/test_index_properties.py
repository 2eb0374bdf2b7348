# SPDX-License-Identifier: Apache-2.0
"""What holds for every history of an engine: no phantom coverage, no leak."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from stream.model import BLOCK, Engine, Tokens, render

from vllm_coordinates.stream import mint
from vllm_coordinates.stream.ancestry import Ancestry
from vllm_coordinates.stream.index import Index

TURNS = ("a", "ab", "aaaaaaaa", "aaaaaaab", "aaaaaaaa" * 3)
MODES = ("coordinates", "coordinates", "coordinates", "incremental", "full")
MOSTLY = st.sampled_from((True, True, True, False))


def chain_of(turns: list[str]) -> mint.Chain:
    chain = mint.Chain(mint.mint_root("m"), rooted=True)
    for turn in turns:
        chain = chain.extend(turn)
    return chain


class EngineAndIndex(RuleBasedStateMachine):
    """Any traffic, in any mode, with whatever the control plane happens to know."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine()
        # What this engine's template adds is one mark before a turn's text.
        self.ancestry = Ancestry(template_tokens=1, preamble_tokens=1)
        self.index = Index(self.ancestry)
        self.sequences: dict[str, set[Tokens]] = {}

    def settle(self) -> None:
        self.index.apply_batch("e", self.engine.take())

    @rule(
        turns=st.lists(st.sampled_from(TURNS), min_size=1, max_size=2),
        reply=st.sampled_from(("", "", "aaaaaaaa")),
        mode=st.sampled_from(MODES),
        blind_from=st.none() | st.integers(0, 3),
        registered=MOSTLY,
        usage=MOSTLY,
    )
    def labeled_request(
        self,
        turns: list[str],
        reply: str,
        mode: str,
        blind_from: int | None,
        registered: bool,
        usage: bool,
    ) -> None:
        chain = chain_of(turns)
        name = chain.continuation_id
        prompt = render(turns)
        tokens = (*prompt, *reply.encode())
        if registered:
            chain.register(self.ancestry)
        self.sequences.setdefault(name, set()).add(tokens)
        self.engine.request(
            tokens,
            mode=mode,
            continuation=name,
            session="s",
            blind_from=blind_from,
        )
        self.settle()
        if usage:
            self.ancestry.learn(name, len(prompt))

    @rule(turns=st.lists(st.sampled_from(TURNS), min_size=1, max_size=3))
    def unlabeled_request(self, turns: list[str]) -> None:
        self.engine.request(render(turns), mode="incremental")
        self.settle()

    @rule(picks=st.lists(st.integers(0, 1 << 16), min_size=1, max_size=6))
    def evict_some(self, picks: list[int]) -> None:
        for pick in picks:
            if self.engine.blocks:
                self.engine.evict(pick % len(self.engine.blocks))
        self.settle()

    @rule(count=st.integers(1, 30))
    def evict_a_run(self, count: int) -> None:
        for _ in range(min(count, len(self.engine.blocks))):
            self.engine.evict(len(self.engine.blocks) - 1)
        self.settle()

    @rule()
    def reset(self) -> None:
        self.engine.reset()
        self.settle()

    @invariant()
    def what_is_covered_is_resident(self) -> None:
        for name, sequences in self.sequences.items():
            truth = {
                span for tokens in sequences for span in self.engine.resident(tokens)
            }
            for start, end in self.index.spans("e", name):
                for offset in range(start, end, BLOCK):
                    assert (offset, offset + BLOCK) in truth

    @invariant()
    def all_at_once_is_what_each_is_alone(self) -> None:
        held = {h.continuation_id: h for h in self.index.holdings()}
        for name in self.sequences:
            spans = tuple(self.index.spans("e", name))
            assert spans == (held[name].certain if name in held else ())
            usable = self.index.prefix("e", name)
            assert usable == (held[name].usable if name in held else 0)
            line = [self.index.prefix("e", each) for each in self.ancestry.chain(name)]
            found = [prefix.tokens for prefix in self.index.longest(name)]
            assert found == [max(line)] * (max(line) > 0)

    @invariant()
    def what_is_empty_leaves_nothing(self) -> None:
        if not self.engine.blocks:
            assert not [h for h in self.index.holdings() if h.certain]


EngineAndIndex.TestCase.settings = settings(
    max_examples=500, stateful_step_count=30, deadline=None
)
TestEngineAndIndex = EngineAndIndex.TestCase
