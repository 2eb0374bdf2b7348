# SPDX-License-Identifier: Apache-2.0
"""One block pool, driven from below: any order of what upstream may ask of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pool.layouts import Layout
from pool.traffic import HASH_BLOCK, Ask, key_of, request_of

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

try:
    from vllm.v1.core.coordinate_events import report_reuse
except ImportError:  # a stock tree
    report_reuse = None


@dataclass
class Live:
    """A request that holds blocks: its table and how many are cached, by group."""

    request: Request
    tables: list[list[KVCacheBlock]]
    cached: list[int]


class Side:
    """Twin sides get the same calls; `stripped` drops labels and modes.

    Every operation returns what its caller can see of it. One that the pool has no
    room for, or that upstream would never ask for, is skipped and returns None.
    """

    def __init__(self, layout: Layout, num_blocks: int, *, stripped: bool) -> None:
        self.stripped = stripped
        self.manager = layout.manager(num_blocks)
        self.pool = self.manager.block_pool
        self.sizes = layout.block_sizes
        self.live: dict[str, Live] = {}
        # Called with (request, blocks by group) before a reuse report.
        self.on_reuse: Callable[..., None] = lambda request, hits: None

    def start(
        self,
        request_id: str,
        ask: Ask,
        *,
        blind: bool = False,
        drop: bool = False,
        null_head: int = 0,
    ) -> object:
        """Admit a request and give it blocks, cached ones where it finds them.

        Args:
            request_id: Its id.
            ask: What it asks.
            blind: Find nothing, as one that is computed beside its double.
            drop: Let go of the last hash of the hit, as EAGLE does.
            null_head: How many leading blocks of groups but the first are null.
        """
        request = request_of(ask, request_id, stripped=self.stripped)
        length = 0 if blind else self._hit_length(request)
        length -= HASH_BLOCK if drop and length else 0
        hits = [self._hits(request, group, length, null_head) for group in self.sizes]
        needed = {
            group: -(-len(ask.tokens) // size) - length // size
            for group, size in self.sizes.items()
        }
        held = {b.block_id for blocks in hits for b in blocks if not b.ref_cnt}
        if sum(needed.values()) > self.pool.get_num_free_blocks() - len(held):
            return None
        for blocks in hits:
            self.pool.touch([block for block in blocks if not block.is_null])
        if length and report_reuse is not None:
            self.on_reuse(request, hits)
            report_reuse(self.manager.coordinator, request, hits, length)
        live = Live(request, [], [])
        released: list[KVCacheBlock] = []
        for group, size in self.sizes.items():
            full = length // size
            kept, partial = hits[group][:full], hits[group][full:]
            released += [block for block in partial if not block.is_null]
            fresh = self.pool.get_new_blocks(needed[group])
            if group and not full:
                released += fresh[:null_head]
                fresh[:null_head] = [self.pool.null_block] * len(fresh[:null_head])
            live.tables.append(kept + fresh)
            live.cached.append(full)
        self.pool.free_blocks(released)
        self.live[request_id] = live
        return [[block.block_id for block in table] for table in live.tables]

    def cache(
        self, request_id: str, group: int, count: int, mask: Sequence[bool] | None
    ) -> object:
        """Cache the next `count` full blocks of a request, but for the masked."""
        live = self.live[request_id]
        table, size = live.tables[group], self.sizes[group]
        first = live.cached[group]
        after = min(first + count, len(live.request.all_token_ids) // size)
        if first >= after:
            return None
        kept = [True] * (after - first) if mask is None else list(mask[: after - first])
        kept += [True] * (after - first - len(kept))
        for i, block in enumerate(table[first:after]):
            known = block.block_hash_num_tokens
            if known is not None and known >= (first + i + 1) * size:
                kept[i] = False
        whole = None if all(kept) else kept
        self.pool.cache_full_blocks(
            live.request, table, first, after, size, group, whole
        )
        live.cached[group] = after
        return after

    def cache_partial(
        self, request_id: str, group: int, num_hashes: int, *, replace: bool
    ) -> object:
        """Make a block reachable at a hash inside it."""
        live = self.live[request_id]
        size = self.sizes[group]
        hashes = len(live.request.block_hashes)
        if not hashes:
            return None
        num_tokens = (num_hashes % hashes + 1) * HASH_BLOCK
        if num_tokens % size == 0 and not replace:
            return None
        block = live.tables[group][(num_tokens - 1) // size]
        return self.pool.cache_partial_block(
            live.request, block, num_tokens, group, size, replace
        )

    def finish(self, request_id: str) -> object:
        """A request finishes, is aborted or preempted: all the same to a pool."""
        live = self.live.pop(request_id)
        blocks = [b for table in live.tables for b in table if not b.is_null]
        self.pool.free_blocks(reversed(blocks))
        return None

    def churn(self, count: int) -> object:
        """Take blocks, which evicts what is in them, and give them back."""
        count = min(count, self.pool.get_num_free_blocks())
        blocks = self.pool.get_new_blocks(count)
        self.pool.free_blocks(blocks)
        return [block.block_id for block in blocks]

    def evict(self, block_ids: Sequence[int]) -> object:
        """A connector says that some blocks hold nothing worth having."""
        self.pool.evict_blocks({i % len(self.pool.blocks) for i in block_ids})
        return None

    def move(self, request_id: str, group: int, index: int) -> object:
        """The prefix cache keeps a copy of a block that its request writes on."""
        table = self.live[request_id].tables[group]
        if not table or not self.pool.get_num_free_blocks():
            return None
        source = table[index % len(table)]
        if source.block_hash is None:
            return None
        copy = self.pool.get_new_blocks(1)[0]
        self.pool.move_block_hashes(source, copy)
        self.pool.free_blocks([copy])
        return copy.block_id

    def reset(self) -> object:
        """Granted only when nobody holds a block."""
        return self.pool.reset_prefix_cache()

    def _hit_length(self, request: Request) -> int:
        """How many tokens the first group has, in full blocks and a partial one."""
        cached, size = self.pool.cached_block_hash_to_block, self.sizes[0]
        length = 0
        for end in range(HASH_BLOCK, len(request.all_token_ids), HASH_BLOCK):
            key = key_of(request, end, 0)
            if cached.get_one_block(key) is not None:
                length = end
            elif end % size == 0:
                break
        return length

    def _hits(
        self, request: Request, group: int, length: int, null_head: int
    ) -> list[KVCacheBlock]:
        """The group's blocks for a hit, null where it has none to offer."""
        cached, size = self.pool.cached_block_hash_to_block, self.sizes[group]
        hits: list[KVCacheBlock] = []
        longest = len(request.block_hashes) * HASH_BLOCK
        for start in range(0, length, size):
            found = None
            for end in range(min(start + size, longest), start, -HASH_BLOCK):
                found = found or cached.get_one_block(key_of(request, end, group))
            if group and len(hits) < null_head:
                found = None
            hits.append(found or self.pool.null_block)
        return hits
