# SPDX-License-Identifier: Apache-2.0
"""Managers that look blocks up in their own way: context parallel, EAGLE, lookahead."""

import inspect

import pytest
from pool.desk import span
from pool.layouts import MAX_MODEL_LEN, PLAIN
from pool.readers import over_the_wire
from pool.traffic import Ask, Voice, request_of

from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm_coordinates.stream.wire import BlockRemoved

TOKENS = 24
"""Of "abab"'s 36: what the first request caches."""


def manager_of(num_blocks: int = 30, hash_block: int = 4, **options) -> KVCacheManager:
    return KVCacheManager(
        PLAIN.config(num_blocks),
        max_model_len=MAX_MODEL_LEN,
        scheduler_block_size=hash_block,
        hash_block_size=hash_block,
        enable_kv_cache_events=True,
        **options,
    )


def admit(manager, name, voice, hasher=None):
    """Look up and allocate as a scheduler does; the events of it."""
    request = request_of(Ask("abab", voice=voice), name)
    if hasher is not None:
        request._block_hasher = hasher
        request.block_hashes.clear()
        request.update_block_hashes()
    blocks, length, *_ = manager.get_computed_blocks(request)
    assert manager.take_events() == []
    # A last token is left to compute, in a block that is not full.
    manager.allocate_slots(request, TOKENS + 1 - length, length, blocks)
    return over_the_wire(manager.take_events()).events


def test_context_parallel_blocks_are_reported_at_their_whole_size():
    hasher = get_request_block_hasher(8, sha256)
    manager = manager_of(hash_block=8, dcp_world_size=2)
    (first,) = admit(manager, "1", Voice.COORDINATES, hasher)
    assert (first.block_size, span(first)) == (8, (0, 24))
    (again,) = admit(manager, "2", Voice.COORDINATES, hasher)
    assert (again.block_size, span(again)) == (8, (0, 24))
    (named,) = admit(manager, "3", Voice.FULL, hasher)
    assert len(named.block_hashes) == 3
    assert len(named.token_ids) == 24


@pytest.mark.parametrize("voice", [Voice.COORDINATES, Voice.FULL], ids=lambda v: v.name)
def test_a_hit_that_lets_its_last_block_go_reports_the_blocks_it_keeps(voice):
    manager = manager_of(use_eagle=True)
    admit(manager, "1", Voice.LABELED)
    report, again = admit(manager, "2", voice)
    # The sixth block is computed again: it is in the cache twice.
    if voice is Voice.COORDINATES:
        assert (span(report), span(again)) == ((0, 20), (20, 24))
    else:
        assert (len(report.block_hashes), len(again.block_hashes)) == (5, 1)


def test_hashes_that_cover_tokens_ahead_are_attributed_all_the_same():
    if "num_hash_lookahead_tokens" not in inspect.signature(KVCacheManager).parameters:
        pytest.skip("block hashes cover their own tokens alone in this release")
    hasher = get_request_block_hasher(4, sha256, num_hash_lookahead_tokens=2)
    manager = manager_of(num_hash_lookahead_tokens=2)
    (first,) = admit(manager, "1", Voice.COORDINATES, hasher)
    assert span(first) == (0, 24)
    (again,) = admit(manager, "2", Voice.COORDINATES, hasher)
    assert span(again) == (0, 24)
    manager.evict_blocks({block.block_id for block in manager.block_pool.blocks})
    removals = over_the_wire(manager.take_events()).events
    assert all(isinstance(event, BlockRemoved) for event in removals)
    assert [span(event) for event in removals] == [(0, 24)]
    assert not manager.block_pool.admissions.attributions
