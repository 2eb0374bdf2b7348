# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""KV events in coordinate language, and the report of what a request reuses.

A span [token_offset, num_tokens) counts tokens of a request's sequence. Events in
report mode "coordinates" carry spans and labels, no hashes and no token ids.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.logger import init_logger
from vllm.v1.coordinates import ReportMode
from vllm.v1.core.kv_cache_utils import (
    BlockHashWithGroupId,
    ExternalBlockHash,
    KVCacheBlock,
    make_block_hash_with_group_id,
)

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
    from vllm.v1.request import Request

logger = init_logger(__name__)


def span_stored(
    request: "Request",
    token_offset: int,
    num_tokens: int,
    *,
    block_size: int,
    group_id: int,
    medium: str,
) -> BlockStored:
    """The admission, or the reuse, of a contiguous run of blocks, as a span."""
    lora = request.lora_request
    return BlockStored(
        block_hashes=[],
        parent_block_hash=None,
        token_ids=[],
        block_size=block_size,
        lora_id=lora.adapter_id if lora else None,
        medium=medium,
        lora_name=lora.name if lora else None,
        group_idx=group_id,
        session_id=request.session_id,
        continuation_id=request.continuation_id,
        token_offset=token_offset,
        num_tokens=num_tokens,
    )


def span_removed(
    continuation_id: str,
    token_offset: int,
    num_tokens: int,
    *,
    group_id: int,
    medium: str,
) -> BlockRemoved:
    """The removal of one block that was reported in coordinates only, as a span."""
    return BlockRemoved(
        block_hashes=[],
        medium=medium,
        group_idx=group_id,
        continuation_id=continuation_id,
        num_tokens=num_tokens,
        token_offset=token_offset,
    )


def external_hash(key: BlockHashWithGroupId, as_int: bool) -> ExternalBlockHash:
    """The block hash that events name for a key of the prefix cache.

    What `maybe_convert_block_hash` makes of it, which asks the environment each
    time: too much for what is done once per evicted block.

    Args:
        key: A block hash, and four bytes of group id after it.
        as_int: `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES`.
    """
    return int.from_bytes(key[-12:-4], "big") if as_int else key[:-4]


def report_reuse(
    coordinator: "KVCacheCoordinator",
    request: "Request",
    computed_blocks: Sequence[Sequence[KVCacheBlock]],
    num_computed_tokens: int,
) -> None:
    """Report the blocks that a request reuses, where its mode asks for that.

    Called once for each admission, when the blocks have been taken: the cache
    lookup, which comes before, is repeated while a request waits.

    Args:
        coordinator: Owner of the groups' managers and pools.
        request: The request that was admitted.
        computed_blocks: For each group, the blocks it hit; null blocks where the
            group needs none.
        num_computed_tokens: The length of the hit, in tokens.
    """
    mode = request.kv_cache_report_mode
    labeled = request.continuation_id is not None
    if mode != ReportMode.FULL and not (mode == ReportMode.COORDINATES and labeled):
        return
    for manager, blocks in zip(coordinator.single_type_managers, computed_blocks):
        pool = manager.block_pool
        try:
            runs = _resident_runs(
                pool,
                request,
                blocks,
                manager.block_size,
                manager.kv_cache_group_id,
                num_computed_tokens,
            )
            for first_block, keys, num_tokens in runs:
                pool.admissions.report_reuse(
                    request,
                    keys,
                    first_block,
                    num_tokens,
                    manager.block_size,
                    manager.kv_cache_group_id,
                )
        except Exception:
            pool.admissions.fail("report reused blocks")


def _resident_runs(
    pool: "BlockPool",
    request: "Request",
    blocks: Sequence[KVCacheBlock],
    block_size: int,
    group_id: int,
    num_computed_tokens: int,
) -> Iterator[tuple[int, list[BlockHashWithGroupId], int]]:
    """The contiguous runs of blocks that are cached under the request's own hashes.

    Yields:
        The index of a run's first block, the hashes of its blocks, and the prefix
        length at its end: in the middle of a block that is cached in part.
    """
    keys: list[BlockHashWithGroupId] = []
    num_tokens = 0
    for index, block in enumerate(blocks):
        end = (index + 1) * block_size
        key = None
        if block.is_null:
            pass
        elif end <= num_computed_tokens and block.block_hash_num_tokens == end:
            key = block.block_hash
        else:
            key, end = _longest_entry(pool, request, block, group_id, end, block_size)
        if key is not None:
            keys.append(key)
            num_tokens = end
        if keys and (key is None or end % block_size):
            yield _first_block(keys, num_tokens, block_size), keys, num_tokens
            keys = []
    if keys:
        yield _first_block(keys, num_tokens, block_size), keys, num_tokens


def _first_block(
    keys: Sequence[BlockHashWithGroupId], num_tokens: int, block_size: int
) -> int:
    """The index of the first block of a run that ends at `num_tokens`."""
    return (num_tokens - 1) // block_size + 1 - len(keys)


def _longest_entry(
    pool: "BlockPool",
    request: "Request",
    block: KVCacheBlock,
    group_id: int,
    end: int,
    block_size: int,
) -> tuple[BlockHashWithGroupId | None, int]:
    """The longest of a request's prefixes that end in a block it hit.

    A hit may end before the entry that it was found by: a lookup for speculative
    decoding lets go of the last hash it found.
    """
    hash_block_size = pool.hash_block_size
    longest = min(end, len(request.block_hashes) * hash_block_size)
    for num_tokens in range(longest, end - block_size, -hash_block_size):
        block_hash = request.block_hashes[num_tokens // hash_block_size - 1]
        key = make_block_hash_with_group_id(block_hash, group_id)
        if pool.cached_block_hash_to_block.contain(key, block.block_id):
            return key, num_tokens
    return None, 0
