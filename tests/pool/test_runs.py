# SPDX-License-Identifier: Apache-2.0
"""Removals in coordinates whose spans touch are one event while still queued."""

from pool.desk import Desk, span
from pool.layouts import HYBRID
from pool.traffic import Voice

from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.request import Request

LONG = "dd"
"""30 tokens: seven full blocks."""


def removed_spans(desk: Desk) -> list[tuple[int | None, int | None]]:
    return [span(event) for event in desk.removed()]


def test_a_context_that_is_evicted_from_its_end_is_one_event():
    desk = Desk()
    desk.finish(desk.admit(LONG))
    desk.side.churn(1 << 16)
    assert removed_spans(desk) == [(0, 28)]


def test_runs_grow_at_either_end():
    desk = Desk()
    desk.evict(desk.admit(LONG), 3, 4, 2, 5, 1)
    assert removed_spans(desk) == [(4, 24)]


def test_spans_that_do_not_touch_are_events_of_their_own():
    desk = Desk()
    desk.evict(desk.admit(LONG), 0, 2, 5, 4)
    assert removed_spans(desk) == [(0, 4), (8, 12), (16, 24)]


def test_a_published_run_is_not_written_on():
    desk = Desk()
    name = desk.admit(LONG)
    desk.evict(name, 4)
    published = desk.pool.take_events()
    desk.evict(name, 3, 2)
    assert span(published[-1]) == (16, 20)
    assert removed_spans(desk) == [(8, 16)]


def test_what_comes_between_is_not_overtaken():
    desk = Desk()
    name = desk.admit(LONG)
    desk.evict(name, 6)
    desk.admit("c", Voice.STOCK)
    desk.evict(name, 5)
    assert removed_spans(desk) == [(24, 28), (20, 24)]


def test_runs_of_continuations_and_of_groups_stay_apart():
    desk = Desk(HYBRID)
    one, two = desk.admit("c"), desk.admit("b")
    for group in (0, 1):
        desk.evict(one, 0, group=group)
        desk.evict(two, 0, group=group)
        desk.evict(two, 1, group=group)
    removals = desk.removed()
    assert [(r.group_idx, r.continuation_id, span(r)) for r in removals] == [
        (0, "c", (0, 4)),
        (0, "b", (0, 8)),
        (1, "c", (0, 4)),
        (1, "b", (0, 8)),
    ]


def test_removals_by_hash_stay_one_hash_each():
    desk = Desk()
    desk.finish(desk.admit(LONG, Voice.LABELED))
    desk.side.churn(1 << 16)
    assert [len(event.block_hashes) for event in desk.removed()] == [1] * 7


def test_evicting_a_context_of_128k_tokens_is_a_handful_of_events():
    block_size, num_blocks = 16, 8192
    request = Request(
        request_id="long",
        prompt_token_ids=[i % 1000 for i in range(block_size * num_blocks)],
        sampling_params=SamplingParams(
            max_tokens=1, extra_args={"kv_cache_report_mode": "coordinates"}
        ),
        pooling_params=None,
        block_hasher=get_request_block_hasher(block_size, sha256),
        session_id="s",
        continuation_id="c",
    )
    pool = BlockPool(num_blocks + 1, True, block_size, enable_kv_cache_events=True)
    blocks = pool.get_new_blocks(num_blocks)
    for first in range(0, num_blocks, 512):  # prefill in chunks
        pool.cache_full_blocks(request, blocks, first, first + 512, block_size, 0)
    assert len(pool.take_events()) == 16
    pool.free_blocks(reversed(blocks))
    removals = []
    for _ in range(4):  # steps of other requests take the room
        pool.get_new_blocks(num_blocks // 4)
        removals += pool.take_events()
    assert [span(event) for event in removals] == [
        (start * block_size, (start + 2048) * block_size)
        for start in (6144, 4096, 2048, 0)
    ]
    assert not pool.admissions.attributions


def test_no_owner_is_left_when_its_last_run_has_been_counted_off():
    desk = Desk()
    for turn in "abcd":
        desk.finish(desk.admit(turn))
    desk.side.churn(1 << 16)
    desk.evict(desk.admit("a"))
    assert not desk.pool.admissions.attributions
    assert len(desk.pool.admissions._owners) <= 1
