# SPDX-License-Identifier: Apache-2.0
"""The longest resident prefix decides, then load."""

from itertools import count
from typing import Any

import pytest
from starlette.datastructures import Headers

from gateway.labels import Labeled, label
from gateway.lineage import Lineage
from gateway.replicas import Replica
from gateway.routing import ByCoordinates
from vllm_coordinates.stream.sequence import Dropped, Reason, Resumed, Suspended
from vllm_coordinates.stream.wire import BlockRemoved, BlockStored, EventBatch

_times = count(1)


class State:
    """Two idle replicas, an index of what they hold, and the router over it."""

    def __init__(self, lineage: Lineage) -> None:
        self.lineage = lineage
        self.index = self.lineage.index
        self.router = ByCoordinates(self.index)
        self.replicas = [Replica("http://a"), Replica("http://b")]
        for replica, name in zip(self.replicas, "ab", strict=True):
            replica.endpoints = (name,)

    def request(self, *turns: str) -> Labeled:
        messages = [{"role": "user", "content": turn} for turn in turns]
        body = {"model": "m", "messages": messages}
        request = label("/v1/chat/completions", Headers(), body)
        self.lineage.register(request)
        return request

    def stored(self, endpoint: str, request: Labeled, start: int, end: int) -> None:
        self._publish(
            endpoint,
            BlockStored(
                block_hashes=[],
                parent_block_hash=None,
                token_ids=[],
                block_size=32,
                lora_id=None,
                medium="GPU",
                lora_name=None,
                session_id=request.session_id,
                continuation_id=request.continuation_id,
                token_offset=start,
                num_tokens=end,
            ),
        )

    def removed(self, endpoint: str, request: Labeled, start: int, end: int) -> None:
        self._publish(
            endpoint,
            BlockRemoved(
                block_hashes=[],
                medium="GPU",
                continuation_id=request.continuation_id,
                token_offset=start,
                num_tokens=end,
            ),
        )

    def _publish(self, endpoint: str, event: Any) -> None:
        self.index.apply_batch(endpoint, EventBatch(float(next(_times)), [event]))

    def chosen(self, request: Labeled) -> tuple[str, int]:
        """Where the request goes, and what it is expected to find there."""
        choice = self.router.choose(self.replicas, request)
        return choice.replica.endpoints[0], choice.tokens


@pytest.fixture
def state() -> State:
    return State(Lineage())


def test_the_next_turn_goes_where_the_last_one_is(state: State) -> None:
    state.stored("b", state.request("one"), 0, 64)
    assert state.chosen(state.request("one", "two")) == ("b", 64)


def test_generated_tokens_count_too(state: State) -> None:
    first = state.request("one")
    state.lineage.ancestry.learn(first.continuation_id, 64)
    state.stored("b", first, 0, 64)
    state.stored("b", first, 64, 96)
    assert state.chosen(state.request("one", "answer", "two")) == ("b", 96)


def test_the_longer_prefix_wins_over_load(state: State) -> None:
    state.stored("a", state.request("one"), 0, 64)
    state.stored("b", state.request("one", "two"), 0, 128)
    with state.replicas[1].busy(), state.replicas[1].busy():
        assert state.chosen(state.request("one", "two", "three")) == ("b", 128)


def test_a_fork_goes_where_the_forked_position_is(state: State) -> None:
    state.stored("b", state.request("one"), 0, 64)
    state.stored("b", state.request("one", "this"), 0, 128)
    assert state.chosen(state.request("one", "that")) == ("b", 64)


def test_without_its_beginning_a_resident_span_is_no_prefix(state: State) -> None:
    first = state.request("one")
    state.stored("a", first, 32, 128)
    state.stored("b", first, 0, 32)
    assert state.chosen(state.request("one", "two")) == ("b", 32)


def test_what_was_evicted_is_no_reason_to_go_there(state: State) -> None:
    first = state.request("one")
    state.stored("a", first, 0, 96)
    state.stored("b", first, 0, 64)
    state.removed("a", first, 32, 96)
    assert state.chosen(state.request("one", "two")) == ("b", 64)


def test_an_eviction_under_another_continuation_s_name_counts(state: State) -> None:
    first, second = state.request("one"), state.request("one", "two")
    state.lineage.ancestry.learn(first.continuation_id, 64)
    state.stored("a", first, 0, 64)
    state.stored("a", second, 0, 128)
    state.stored("b", second, 0, 64)
    state.removed("a", first, 32, 64)
    assert state.chosen(state.request("one", "two", "three")) == ("b", 64)


def test_equal_prefixes_go_to_the_less_loaded(state: State) -> None:
    first = state.request("one")
    for endpoint in ("a", "b"):
        state.stored(endpoint, first, 0, 64)
    with state.replicas[0].busy():
        assert state.chosen(state.request("one", "two")) == ("b", 64)


def test_new_sessions_take_turns_at_idle_replicas(state: State) -> None:
    chosen = []
    for number in range(4):
        choice = state.router.choose(state.replicas, state.request(str(number)))
        with choice.replica.busy():
            chosen.append(choice.replica.url)
    assert chosen == ["http://a", "http://b"] * 2


def test_a_replica_with_several_ranks_counts_with_its_best(state: State) -> None:
    state.replicas[1].endpoints = ("b", "b-rank-1")
    state.stored("b-rank-1", state.request("one"), 0, 64)
    assert state.chosen(state.request("one", "two")) == ("b", 64)


def test_a_suspended_replica_counts_with_nothing(state: State) -> None:
    first = state.request("one")
    state.stored("a", first, 0, 96)
    state.stored("b", first, 0, 64)
    state.index.apply(Suspended("a", 0, "batches are missing"))
    assert state.chosen(state.request("one", "two")) == ("b", 64)
    state.index.apply(Resumed("a", 0))
    assert state.chosen(state.request("one", "two")) == ("a", 96)


def test_a_restarted_replica_counts_with_nothing(state: State) -> None:
    first = state.request("one")
    state.stored("a", first, 0, 96)
    state.stored("b", first, 0, 64)
    state.index.apply(Dropped("a", 0, Reason.EPOCH, "it restarted"))
    assert state.chosen(state.request("one", "two")) == ("b", 64)


def test_of_another_tenant_nothing_counts(state: State) -> None:
    state.stored("b", state.request("one"), 0, 64)
    body = {"model": "m", "messages": [{"role": "user", "content": "one"}]}
    key = Headers({"authorization": "Bearer another"})
    request = label("/v1/chat/completions", key, body)
    state.lineage.register(request)
    assert state.chosen(request) == ("a", 0)


def test_what_lineage_has_forgotten_is_no_reason_to_go_there() -> None:
    state = State(Lineage(most=3))
    first = state.request("one")
    state.stored("b", first, 0, 64)
    state.request("something", "else", "altogether")
    # Its relatives are unknown now, so that it would outlive their evictions.
    assert not state.index.longest(first.continuation_id, doubtful=True)
