# SPDX-License-Identifier: Apache-2.0
"""Report the reuse of cached blocks once, when the request is admitted.

Why: a consumer must not believe resident what is not ("no phantom coverage"), and
    a report that is repeated in every step says nothing new.

Upstream: in report mode "full" the report is made at each cache lookup, so a
    request that waits at the head of the queue repeats it; and it names the hashes
    of null blocks, which a sliding-window group's hit list holds, and of a last
    block that is cached only in part (in 0.30.0 and 0.31.0 an IndexError there can
    end the scheduler).

Adds: the report is made where the request's blocks are allocated, for the blocks
    that are there, one event per contiguous run; in mode "coordinates" as spans.
    This mends full mode for unlabeled requests too: it is the one change to the
    events of traffic without labels.

Drop when: vllm-project/vllm#48501 is in the supported release.
"""

from vllm_coordinates.semantic import add_import, add_parameter, insert_after, replace

POOL = "vllm/v1/core/block_pool.py"
MANAGER = "vllm/v1/core/kv_cache_manager.py"
EMIT = "BlockPool.emit_cached_block_events"

EDITS = [
    add_import(MANAGER, "from vllm.v1.core.coordinate_events import report_reuse"),
    replace(
        MANAGER,
        "KVCacheManager.get_computed_blocks",
        "if $CONDITION:\n"
        "    self.coordinator.emit_cached_block_events(request, computed_blocks)",
        "# This is done on admission, in allocate_slots: a lookup is repeated while\n"
        "# the request waits.",
    ),
    insert_after(
        MANAGER,
        "KVCacheManager.allocate_slots",
        "self.coordinator.allocate_new_computed_blocks($$$)",
        """
        if self.enable_kv_cache_events:
            report_reuse(
                self.coordinator,
                request,
                new_computed_block_list,
                num_new_computed_tokens,
            )
        """,
    ),
    add_parameter(POOL, EMIT, "first_block: int = 0"),
    replace(
        POOL,
        EMIT,
        "range(num_cached_blocks)",
        "range(first_block, num_cached_blocks)",
    ),
    replace(
        POOL,
        EMIT,
        "parent_block_hash: $TYPE = None",
        "# A run that starts later, behind null blocks, has one.\n"
        "parent_block_hash: ExternalBlockHash | None = (\n"
        "    maybe_convert_block_hash(block_hashes[first_block - 1])\n"
        "    if first_block\n"
        "    else None\n"
        ")",
    ),
    replace(
        POOL, EMIT, "start_token_idx = 0", "start_token_idx = first_block * block_size"
    ),
]
