# SPDX-License-Identifier: Apache-2.0
"""Everything about a pool that a request can notice, and that no label may change."""

from vllm.v1.core.block_pool import BlockPool


def placement(pool: BlockPool) -> tuple[object, ...]:
    """Which hash lies in which blocks, who refers to them, and what goes next."""
    cached = {
        key: [blocks.block_id] if hasattr(blocks, "block_id") else list(blocks)
        for key, blocks in pool.cached_block_hash_to_block._cache.items()
    }
    free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
    return cached, [block.ref_cnt for block in pool.blocks], free
