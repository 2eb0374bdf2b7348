# SPDX-License-Identifier: Apache-2.0
"""What the contract has an engine say, kept beside a real pool.

The ledger watches upstream's own doors: the two calls that cache blocks, the one
that publishes removals, the reset. It knows nothing of how the engine keeps
attributions, and so it is what they are held against.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pool.readers import Named, blocks_of, stretches
from pool.traffic import HASH_BLOCK, Lineage, key_of, named

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    BlockHashWithGroupId,
    KVCacheBlock,
    get_block_hash,
)
from vllm.v1.request import Request
from vllm_coordinates.stream.wire import BlockRemoved, EventBatch

Key = BlockHashWithGroupId


class Removal(NamedTuple):
    """A removal as a reader sees it; merged ones are taken apart."""

    group: int
    block_hash: object
    continuation: str | None
    num_tokens: int | None
    token_offset: int | None


@dataclass
class Entry:
    """What has been said of a key since it was cached."""

    num_tokens: int
    owner: str | None = None
    hashed: bool = False
    spanned: bool = False


@dataclass
class Ledger:
    """Call `watch` on each pool before it is used."""

    lineage: Lineage
    block_sizes: dict[int, int]
    entries: dict[Key, Entry] = field(default_factory=dict)
    removals: list[Removal] = field(default_factory=list)
    hashed: set[Key] = field(default_factory=set)
    """Keys named by an event, and no block under them removed since."""
    spans: dict[Named, dict[Key, tuple[int, int]]] = field(default_factory=dict)
    """Spans reported, and no removal since that may have concerned them."""

    def watch(self, pool: BlockPool) -> None:
        """Take note of everything that happens to the pool."""
        full, partial = pool.cache_full_blocks, pool.cache_partial_block
        emit, reset = pool._emit_block_removed_events, pool.reset_prefix_cache

        def cache_full_blocks(
            request: Request,
            blocks: list[KVCacheBlock],
            num_cached_blocks: int,
            num_full_blocks: int,
            block_size: int,
            kv_cache_group_id: int,
            block_mask: list[bool] | None = None,
        ) -> None:
            full(
                request,
                blocks,
                num_cached_blocks,
                num_full_blocks,
                block_size,
                kv_cache_group_id,
                block_mask,
            )
            for i in range(num_cached_blocks, num_full_blocks):
                masked = block_mask and not block_mask[i - num_cached_blocks]
                if not (blocks[i].is_null or masked):
                    end = (i + 1) * block_size
                    self.admitted(request, kv_cache_group_id, end)

        def cache_partial_block(
            request: Request,
            block: KVCacheBlock,
            num_tokens: int,
            kv_cache_group_id: int,
            block_size: int,
            replace_existing_hashes: bool = False,
        ) -> Key | None:
            key = key_of(request, num_tokens, kv_cache_group_id)
            known = pool.cached_block_hash_to_block.contain(key, block.block_id)
            made = partial(
                request,
                block,
                num_tokens,
                kv_cache_group_id,
                block_size,
                replace_existing_hashes,
            )
            if made is not None and (replace_existing_hashes or not known):
                self.admitted(request, kv_cache_group_id, num_tokens)
            return made

        def emit_block_removed_events(keys: Sequence[Key]) -> None:
            for key in keys:
                left = pool.cached_block_hash_to_block.get_one_block(key)
                self.removed(key, last=left is None)
            emit(keys)

        def reset_prefix_cache() -> bool:
            granted = reset()
            if granted:
                self.cleared()
            return granted

        doors: dict[str, Any] = {
            "cache_full_blocks": cache_full_blocks,
            "cache_partial_block": cache_partial_block,
            "_emit_block_removed_events": emit_block_removed_events,
            "reset_prefix_cache": reset_prefix_cache,
        }
        for name, door in doors.items():
            setattr(pool, name, door)

    def admitted(self, request: Request, group: int, num_tokens: int) -> None:
        """A block entered the cache under the request's hash at `num_tokens`."""
        key = key_of(request, num_tokens, group)
        entry = self.entries.setdefault(key, Entry(num_tokens))
        continuation = request.continuation_id
        if continuation is not None and entry.owner is None:
            entry.owner = continuation
        if continuation is not None and request.kv_cache_report_mode == "coordinates":
            self._span_said(key, entry, group, continuation)
        else:
            entry.hashed = True
            self.hashed.add(key)

    def reused(
        self,
        pool: BlockPool,
        request: Request,
        group: int,
        blocks: Sequence[KVCacheBlock],
    ) -> None:
        """A request was admitted that reuses cached blocks."""
        mode = request.kv_cache_report_mode
        block_size = self.block_sizes[group]
        for i, block in enumerate(blocks):
            num_tokens = resident_end(pool, request, group, block, i, block_size)
            if num_tokens is None:
                continue
            key = key_of(request, num_tokens, group)
            entry = self.entries[key]
            if mode == "full" and num_tokens == (i + 1) * block_size:
                entry.hashed = True
                self.hashed.add(key)
            elif mode == "coordinates":
                if entry.owner is None:
                    entry.owner = request.continuation_id
                assert request.continuation_id is not None
                self._span_said(key, entry, group, request.continuation_id)

    def removed(self, key: Key, *, last: bool) -> None:
        """A block left the cache under the key, and the last one or not."""
        entry = self.entries[key]
        group, block_hash = named(key)
        start = self._start(entry.num_tokens, group)
        labeled = entry.owner is not None
        assert entry.hashed or (labeled and entry.spanned)
        self.removals.append(
            Removal(
                group,
                block_hash if entry.hashed else None,
                entry.owner,
                entry.num_tokens if labeled else None,
                start if entry.spanned else None,
            )
        )
        self.hashed.discard(key)
        self._spans_withdrawn(key, group, start, entry.num_tokens)
        if last:
            del self.entries[key]

    def cleared(self) -> None:
        """The prefix cache was reset."""
        self.entries.clear()
        self.hashed.clear()
        self.spans.clear()

    def promised(self, name: Named) -> set[int]:
        """What a reader of spans must believe, as numbers of stretches."""
        spans = self.spans.get(name, {}).values()
        return {n for start, end in spans for n in stretches(start, end)}

    def _start(self, num_tokens: int, group: int) -> int:
        block_size = self.block_sizes[group]
        return (num_tokens - 1) // block_size * block_size

    def _span_said(self, key: Key, entry: Entry, group: int, continuation: str) -> None:
        entry.spanned = True
        start = self._start(entry.num_tokens, group)
        said = self.spans.setdefault((group, continuation), {})
        said[key] = (start, entry.num_tokens)

    def _spans_withdrawn(self, key: Key, group: int, start: int, end: int) -> None:
        # A duplicate under another key at the same place of a continuation's other
        # sequence, or a shorter entry of the same block, goes with it: a reader of
        # spans cannot tell them apart.
        holders = self.lineage.holders[get_block_hash(key)]
        for (other, continuation), said in self.spans.items():
            if other != group:
                continue
            if continuation in holders or any(
                self.lineage.common(holder, continuation) >= end for holder in holders
            ):
                for k, (first, after) in list(said.items()):
                    if first < end and start < after:
                        del said[k]


def resident_end(
    pool: BlockPool,
    request: Request,
    group: int,
    block: KVCacheBlock,
    index: int,
    block_size: int,
) -> int | None:
    """The longest of the request's prefixes that the block is cached under."""
    cached = pool.cached_block_hash_to_block
    longest = min((index + 1) * block_size, len(request.block_hashes) * HASH_BLOCK)
    for num_tokens in range(longest, index * block_size, -HASH_BLOCK):
        if not block.is_null and cached.contain(
            key_of(request, num_tokens, group), block.block_id
        ):
            return num_tokens
    return None


def removals_in(batch: EventBatch, block_sizes: dict[int, int]) -> list[Removal]:
    """The removals of a batch from the engine's memory, merged ones taken apart."""
    found: list[Removal] = []
    for event in batch.events:
        if not isinstance(event, BlockRemoved) or event.medium != "GPU":
            continue
        group, name = event.group_idx, event.continuation_id
        assert len(event.block_hashes) <= 1
        if event.block_hashes:
            end, start = event.num_tokens, event.token_offset
            found.append(Removal(group, event.block_hashes[0], name, end, start))
            continue
        for start, end in blocks_of(event, block_sizes[group]):
            found.append(Removal(group, None, name, end, start))
    return found
