# SPDX-License-Identifier: Apache-2.0
"""Attribute each cached hash to the continuation that first admitted it.

Why: a removal that names the position tells a control plane which session lost
    what, without a mirror of the engine's hashing (the contract's BlockRemoved).

Upstream: a removal carries one hash; whose block it was is forgotten.

Adds: `Admissions`, a map beside the pool's prefix cache, told of every admission
    and asked at every removal. In report mode "coordinates" it also publishes the
    admission, as a span, and upstream's hash-bearing event is not built. With
    events off, and for unlabeled requests, nothing is recorded.

Drop when: vllm-project/vllm#48501 is in the supported release.
"""

from vllm_coordinates.semantic import (
    add_import,
    append_to,
    insert_after,
    insert_before,
    prepend_to,
    replace,
    replace_condition,
)

POOL = "vllm/v1/core/block_pool.py"
FULL = "BlockPool.cache_full_blocks"
PARTIAL = "BlockPool.cache_partial_block"

BEGIN = """
publishes_hashes = (
    self.enable_kv_cache_events and self.admissions.begin(request)
)
"""

EDITS = [
    add_import(POOL, "from vllm.v1.core.admissions import Admissions"),
    insert_after(
        POOL,
        "BlockPool.__init__",
        "self.kv_event_queue: $TYPE = []",
        "self.admissions = Admissions(self)",
    ),
    prepend_to(POOL, FULL, BEGIN),
    replace(
        POOL,
        FULL,
        "[] if self.enable_kv_cache_events else None",
        "[] if publishes_hashes else None",
    ),
    replace_condition(POOL, FULL, "self.enable_kv_cache_events", "publishes_hashes"),
    append_to(
        POOL,
        FULL,
        """
        if self.enable_kv_cache_events:
            self.admissions.admit_full_blocks(
                request,
                new_full_blocks,
                num_cached_blocks,
                block_size,
                kv_cache_group_id,
                block_mask,
            )
        """,
    ),
    prepend_to(POOL, PARTIAL, BEGIN),
    replace_condition(
        POOL,
        PARTIAL,
        "self.enable_kv_cache_events and not already_cached",
        "publishes_hashes and not already_cached",
    ),
    insert_before(
        POOL,
        PARTIAL,
        "return block_hash_with_group_id",
        """
        if self.enable_kv_cache_events and not already_cached:
            self.admissions.admit_partial_block(
                request,
                block,
                block_hash_with_group_id,
                num_tokens,
                block_size,
                kv_cache_group_id,
            )
        """,
    ),
    insert_before(
        POOL,
        "BlockPool._emit_block_removed_events",
        "self.kv_event_queue.append($$$)",
        """
        if self.admissions.attributions and self.admissions.withdraw(block_hash):
            continue
        """,
    ),
    insert_before(
        POOL,
        "BlockPool.take_events",
        "events = self.kv_event_queue",
        "self.admissions.settle()",
    ),
    insert_after(
        POOL,
        "BlockPool.reset_prefix_cache",
        "self.cached_block_hash_to_block = BlockHashToBlockMap()",
        "self.admissions.clear()",
    ),
]
