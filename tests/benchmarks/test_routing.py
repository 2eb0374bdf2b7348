# SPDX-License-Identifier: Apache-2.0
"""What the routing benchmark plays, and what it makes of what it measures."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import routing_trace
from benchmarks.routing_model import ensure_model
from benchmarks.routing_page import row
from benchmarks.routing_play import Sample, summarize
from benchmarks.routing_trace import BLOCK, Load, Turn
from sources import CACHE


@pytest.fixture(scope="module")
def model():
    return ensure_model(CACHE / "models")


def turn(name: str = "turn", parent: str | None = "before", **other: Any) -> Turn:
    other = {"tokens": 320, "ceiling": 256, "common": 64, **other}
    return Turn(name, "session", parent, 0.0, (), **other)


def sample(cached: int, of: Turn | None = None) -> Sample:
    return Sample(of or turn(), cached, first_token=0.1, whole=0.2)


class TestPairs:
    def test_are_the_published_ones(self, model):
        continued = [t for t in routing_trace.pairs(model) if t.parent]
        assert [t.tokens for t in continued] == [6653] * 12
        assert {round(t.ceiling / t.tokens, 4) for t in continued} == {0.9908}

    def test_let_taking_turns_bring_half_of_them_back(self, model):
        names = [t.name for t in routing_trace.pairs(model)]
        at = {name: number % 2 for number, name in enumerate(names)}
        same = [at[f"pair-{n}.0"] == at[f"pair-{n}.1"] for n in range(12)]
        assert Counter(same) == {True: 6, False: 6}


class TestAgents:
    def test_are_the_same_at_each_run(self, model):
        load = Load(sessions=3)
        assert routing_trace.agents(model, load) == routing_trace.agents(model, load)

    def test_begin_with_the_same_system_prompt_and_nothing_else(self, model):
        trace = routing_trace.agents(model, Load(sessions=3))
        [common] = {t.common for t in trace}
        assert 1000 - BLOCK < common < 1000 + BLOCK
        assert all(t.common <= t.ceiling < t.tokens for t in trace)

    def test_continue_what_their_parent_was(self, model):
        trace = routing_trace.agents(model, Load(sessions=3))
        by_name = {t.name: t for t in trace}
        assert len(by_name) == len(trace)
        for continued in (t for t in trace if t.parent):
            before = by_name[continued.parent]
            assert continued.messages[: len(before.messages)] == before.messages
            assert before.tokens - BLOCK < continued.ceiling <= before.tokens

    def test_fork_half_way(self, model):
        trace = routing_trace.agents(model, Load(sessions=3, turns=6, forks=3))
        children = Counter(t.parent for t in trace if t.parent)
        assert Counter(children.values())[2] == 1
        assert len(trace) == 3 * 6 + 3


class TestSummary:
    def test_returned_is_what_found_more_than_what_all_begin_with(self):
        found = summarize([sample(64), sample(96), sample(0)], None)
        assert (found.returned, found.continuations) == (1, 3)

    def test_openings_are_no_continuations(self):
        found = summarize([sample(256), sample(0, turn("first", None))], None)
        assert found.hit == 256 / 320

    @pytest.mark.parametrize(
        ("expected", "cached", "phantoms"),
        [
            (256, 256, 0),
            (256, 224, 1),
            (250, 224, 0),  # less than a block is missing
            (300, 256, 0),  # the prompt has no such prefix
            (0, 0, 0),
        ],
    )
    def test_a_phantom_is_a_prefix_that_is_gone(self, expected, cached, phantoms):
        found = summarize([sample(cached)], {"turn": expected})
        assert found.phantoms == phantoms
        assert found.routed == (expected > 0)

    def test_who_expects_nothing_has_no_phantoms(self):
        assert summarize([sample(0)], None).phantoms is None


def test_a_row_adds_up_all_runs():
    samples = [sample(256), replace(sample(0), first_token=0.3)]
    runs = [vars(summarize(samples, {"turn": 256})) for _ in range(2)]
    found = row("estimated", runs)
    assert found.returned == (2, 4)
    assert found.phantoms == (2, 4)
    assert found.hit == 0.4
    assert found.p50 == pytest.approx(0.2)
