# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Which continuation each cached hash is attributed to, and what was said of it.

The map belongs to a `BlockPool` and lives beside its prefix cache. The rules:

- A hash is attributed to the first labeled request that admitted it while it stays
  cached; later admissions, reuse, and moves between blocks change nothing. Hashes
  that only unlabeled requests admitted are not in the map.
- What an event has said of a hash is withdrawn in the same language: a removal
  carries the hash if an event has named the hash, and the span if one has named
  the span.
- When one of several blocks under a hash goes, the removal is labeled and the
  attribution stays; with the last it goes too.

An attribution is one int, and what requests have in common is held once per
continuation and group: a container for each cached block would cost more than the
bookkeeping it serves, in every full garbage collection.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import vllm.envs as envs
from vllm.distributed.kv_events import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockRemoved,
    KVCacheEvent,
)
from vllm.logger import init_logger
from vllm.v1.coordinates import ReportMode
from vllm.v1.core.coordinate_events import (
    external_hash,
    span_removed,
    span_stored,
)
from vllm.v1.core.kv_cache_utils import (
    BlockHashWithGroupId,
    KVCacheBlock,
)

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.request import Request

logger = init_logger(__name__)

# An attribution's int: the number of its owner, the prefix length that the hash
# covers in tokens, and three flags.
_HASHED = 1  # An event has named the hash.
_SPANNED = 2  # An event has named the span.
_SHARED = 4  # Several blocks have held the hash at once.
_LENGTH_SHIFT = 3
_OWNER_SHIFT = 32
_NO_RUN = -1  # No attribution's value.
_LENGTH_MASK = (1 << _OWNER_SHIFT - _LENGTH_SHIFT) - 1


@dataclass(slots=True)
class _Owner:
    """What the attributions to one continuation in one group have in common."""

    number: int
    continuation_id: str
    group_id: int
    block_size: int
    num_hashes: int = 0


class Admissions:
    """The attributions of a block pool's cached hashes.

    No method raises: after a fault of its own the map is empty and stays so, and
    consumers are told to forget what they know.

    Args:
        pool: The pool; its event queue is written to.
    """

    def __init__(self, pool: "BlockPool") -> None:
        self._pool = pool
        self._int_hashes = envs.VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES
        # Off: every event is one of upstream's. Pools of other tiers are left alone.
        self._off = pool.medium != MEDIUM_GPU
        self.attributions: dict[BlockHashWithGroupId, int] = {}
        self._owners: dict[int, _Owner] = {}
        self._owner_numbers: dict[tuple[str, int], int] = {}
        self._next_number = 0
        self._num_cached = 0
        # Touching removals are merged into one event while it is the last queued:
        # that event, its queue, whose it is, and the attribution that would continue
        # the run towards the sequence's start. Evicting a context goes that way, so
        # this is the hot path, and it only moves `_run_next`: `_complete_run` brings
        # the event and the owner's count up to there from `_run_completed`.
        self._run: BlockRemoved | None = None
        self._run_queue: list[KVCacheEvent] = []
        self._run_owner: _Owner | None = None
        self._run_next = _NO_RUN
        self._run_completed = _NO_RUN
        self._run_step = 0

    def begin(self, request: "Request") -> bool:
        """Note the cache's state just before a request's blocks enter it.

        Returns:
            Whether the admission is published by hash.
        """
        if request.continuation_id is None:
            return True
        self._num_cached = len(self._pool.cached_block_hash_to_block)
        return self._off or request.kv_cache_report_mode != ReportMode.COORDINATES

    def admit_full_blocks(
        self,
        request: "Request",
        blocks: Sequence[KVCacheBlock],
        first_block: int,
        block_size: int,
        group_id: int,
        block_mask: Sequence[bool] | None,
    ) -> None:
        """Attribute full blocks that have just entered the cache, and publish spans.

        Args:
            request: The request that admitted them.
            blocks: The blocks; null blocks among them were not cached.
            first_block: Index of the first in the request's sequence.
            block_size: Tokens per block.
            group_id: The KV cache group.
            block_mask: Which of the blocks were cached; None for all.
        """
        if self._has_nothing_to_note(request):
            return
        try:
            keys = [block.block_hash for block in blocks]
            if block_mask is not None:
                keys = [key if kept else None for key, kept in zip(keys, block_mask)]
            runs = [(0, len(keys))] if all(keys) else _runs_of_present(keys)
            new = self._are_new(sum(stop - start for start, stop in runs))
            for start, stop in runs:
                self._admit(
                    request,
                    keys[start:stop],
                    blocks[start:stop],
                    first_block + start,
                    (first_block + stop) * block_size,
                    block_size,
                    group_id,
                    new,
                )
        except Exception:
            self.fail("attribute full blocks")

    def admit_partial_block(
        self,
        request: "Request",
        block: KVCacheBlock,
        key: BlockHashWithGroupId,
        num_tokens: int,
        block_size: int,
        group_id: int,
    ) -> None:
        """Attribute a partial entry that has just entered the cache.

        Args:
            request: The request that admitted it.
            block: The block that the entry points to.
            key: The entry's hash.
            num_tokens: Prefix length that the entry covers; its span starts where
                the block does.
            block_size: Tokens per full block.
            group_id: The KV cache group.
        """
        if self._has_nothing_to_note(request):
            return
        try:
            index = (num_tokens - 1) // block_size
            self._admit(
                request,
                [key],
                [block],
                index,
                num_tokens,
                block_size,
                group_id,
                self._are_new(1),
            )
        except Exception:
            self.fail("attribute a partial block")

    def report_reuse(
        self,
        request: "Request",
        keys: Sequence[BlockHashWithGroupId],
        first_block: int,
        num_tokens: int,
        block_size: int,
        group_id: int,
    ) -> None:
        """Publish a run of cached blocks that a request reuses, in its mode.

        In coordinates mode, hashes that are attributed to nobody become the
        request's: what has been reported in coordinates is always withdrawn in them.

        Args:
            request: The request that reuses them.
            keys: The hashes of the run's blocks.
            first_block: Index of the first block in the request's sequence.
            num_tokens: Prefix length at the run's end.
            block_size: Tokens per block.
            group_id: The KV cache group.
        """
        if request.kv_cache_report_mode == ReportMode.FULL:
            # A tail that is cached in part has no full hash to be told.
            num_blocks = num_tokens // block_size
            if num_blocks > first_block:
                self._say(keys[: num_blocks - first_block], _HASHED)
                self._pool.emit_cached_block_events(
                    request, num_blocks, block_size, group_id, first_block=first_block
                )
            return
        if self._off:
            return  # Stock knows no other mode that reports reuse.
        if not self._say(keys, _SPANNED):
            self._adopt(request, keys, first_block, num_tokens, block_size, group_id)
        self._publish_span(request, first_block, num_tokens, block_size, group_id)

    def withdraw(self, key: BlockHashWithGroupId) -> bool:
        """Publish the removal of a hash if it is attributed to a continuation.

        What continues the event queued last is only noted: that event is completed
        by `settle`, so nobody but `take_events` may read the queue.

        Args:
            key: A hash whose (hash, block) pair has just left the cache.

        Returns:
            Whether it is attributed; if not, the removal is upstream's to publish.
        """
        try:
            value = self.attributions.pop(key, None)
            if value == self._run_next and self._run_queue[-1] is self._run:
                self._run_next = value - self._run_step
                return True
            if value is None:
                return False
            self._withdraw(key, value)
            return True
        except Exception:
            self.fail("withdraw a block")
            return False

    def settle(self) -> None:
        """Complete the event that removals were merged into: the queue is read now."""
        try:
            self._complete_run()
        except Exception:
            self.fail("complete a removal")
        self._end_run()

    def clear(self) -> None:
        """Forget everything: the cache was reset."""
        self.settle()
        self.attributions.clear()
        self._owners.clear()
        self._owner_numbers.clear()

    def fail(self, what: str) -> None:
        """Give up after a fault of this module, without a phantom left behind.

        Called from an exception handler. Consumers are told that nothing is cached,
        which under-covers, and from now on every event is one that upstream makes.

        Args:
            what: What was being done, for the log.
        """
        if self._off:  # Nothing but upstream's events was told: nothing to take back.
            return
        logger.exception(
            "Session coordinates are off until the engine restarts: failed to %s.", what
        )
        self._off = True
        self.clear()
        self._pool.kv_event_queue.append(AllBlocksCleared())

    def _are_new(self, num_hashes: int) -> bool:
        """Whether none of the hashes that were just admitted was cached before."""
        num_cached = len(self._pool.cached_block_hash_to_block)
        return num_cached - self._num_cached == num_hashes

    def _has_nothing_to_note(self, request: "Request") -> bool:
        unlabeled = request.continuation_id is None
        return self._off or (unlabeled and not self.attributions)

    def _admit(
        self,
        request: "Request",
        keys: Sequence[BlockHashWithGroupId],
        blocks: Sequence[KVCacheBlock],
        first_block: int,
        num_tokens: int,
        block_size: int,
        group_id: int,
        new: bool,
    ) -> None:
        """Attribute one contiguous run, which ends at `num_tokens`.

        `new` hashes were not cached before this admission.
        """
        if request.continuation_id is None:
            self._say(keys, _HASHED | _SHARED)
            return
        spans = request.kv_cache_report_mode == ReportMode.COORDINATES
        owner = self._owner(request, group_id, block_size)
        step = block_size << _LENGTH_SHIFT
        last = self._value(owner, num_tokens, _SPANNED if spans else _HASHED)
        values = range(last - (len(keys) - 1) * step, last + step, step)
        if new:
            self.attributions.update(zip(keys, values))
            owner.num_hashes += len(keys)
        else:
            for key, block, value in zip(keys, blocks, values):
                self._attribute(key, block, value, owner)
            self._release(owner, 0)
        if spans:
            self._publish_span(request, first_block, num_tokens, block_size, group_id)

    def _adopt(
        self,
        request: "Request",
        keys: Sequence[BlockHashWithGroupId],
        first_block: int,
        num_tokens: int,
        block_size: int,
        group_id: int,
    ) -> None:
        """Attribute to a request what unlabeled requests admitted and it reuses."""
        owner = self._owner(request, group_id, block_size)
        # Whether several blocks hold a hash is looked up when it is removed.
        flags = _HASHED | _SPANNED | _SHARED
        for index, key in enumerate(keys, first_block + 1):
            if key not in self.attributions:
                length = min(index * block_size, num_tokens)
                self.attributions[key] = self._value(owner, length, flags)
                owner.num_hashes += 1

    def _attribute(
        self, key: BlockHashWithGroupId, block: KVCacheBlock, value: int, owner: _Owner
    ) -> None:
        """Attribute one hash of which it is not known that it is new to the cache."""
        known = self.attributions.get(key)
        if known is not None:
            languages = value & (_HASHED | _SPANNED)
            self.attributions[key] = known | languages | _SHARED
            return
        if self._pool.cached_block_hash_to_block.get_one_block(key) is not block:
            # Unlabeled requests admitted the hash before, and named it.
            value |= _HASHED | _SHARED
        self.attributions[key] = value
        owner.num_hashes += 1

    def _say(self, keys: Sequence[BlockHashWithGroupId], flags: int) -> bool:
        """Note what is said of hashes; whether all of them are attributed."""
        attributions = self.attributions
        complete = True
        for key in keys:
            value = attributions.get(key)
            if value is None:
                complete = False
            elif value & flags != flags:
                attributions[key] = value | flags
        return complete

    def _withdraw(self, key: BlockHashWithGroupId, value: int) -> None:
        """Publish the removal of a hash that was attributed by `value`."""
        owner = self._owners[value >> _OWNER_SHIFT]
        self._publish_removal(key, value, owner)
        if value & _SHARED and (
            self._pool.cached_block_hash_to_block.get_one_block(key) is not None
        ):
            self.attributions[key] = value
        else:
            self._release(owner, 1)

    def _publish_span(
        self,
        request: "Request",
        first_block: int,
        num_tokens: int,
        block_size: int,
        group_id: int,
    ) -> None:
        self._pool.kv_event_queue.append(
            span_stored(
                request,
                first_block * block_size,
                num_tokens,
                block_size=block_size,
                group_id=group_id,
                medium=self._pool.medium,
            )
        )

    def _publish_removal(
        self, key: BlockHashWithGroupId, value: int, owner: _Owner
    ) -> None:
        num_tokens = value >> _LENGTH_SHIFT & _LENGTH_MASK
        token_offset = (num_tokens - 1) // owner.block_size * owner.block_size
        queue = self._pool.kv_event_queue
        if value & _HASHED:
            queue.append(
                BlockRemoved(
                    block_hashes=[external_hash(key, self._int_hashes)],
                    medium=self._pool.medium,
                    group_idx=owner.group_id,
                    continuation_id=owner.continuation_id,
                    num_tokens=num_tokens,
                    token_offset=token_offset if value & _SPANNED else None,
                )
            )
            return
        self._complete_run()
        run = self._run
        if self._run_owner is owner and queue and queue[-1] is run:
            if run.num_tokens == token_offset:
                run.num_tokens = num_tokens
                return
            if run.token_offset == num_tokens:
                run.token_offset = token_offset
                self._start_run(run, owner)
                return
        run = span_removed(
            owner.continuation_id,
            token_offset,
            num_tokens,
            group_id=owner.group_id,
            medium=self._pool.medium,
        )
        queue.append(run)
        self._start_run(run, owner)

    def _start_run(self, run: BlockRemoved, owner: _Owner) -> None:
        """Let the removals to come be merged into `run`, the event queued last."""
        self._run = run
        self._run_queue = self._pool.kv_event_queue
        self._run_owner = owner
        self._run_step = owner.block_size << _LENGTH_SHIFT
        self._run_next = self._run_completed = self._value(
            owner, run.token_offset, _SPANNED
        )

    def _complete_run(self) -> None:
        """Bring the run's event, and its owner's count, up to `_run_next`."""
        run, owner = self._run, self._run_owner
        if run is None or owner is None or self._run_next == self._run_completed:
            return
        merged = (self._run_completed - self._run_next) // self._run_step
        self._run_completed = self._run_next
        run.token_offset -= merged * owner.block_size
        self._release(owner, merged)

    def _end_run(self) -> None:
        self._run = self._run_owner = None
        self._run_queue = []
        self._run_next = self._run_completed = _NO_RUN

    def _value(self, owner: _Owner, num_tokens: int, flags: int) -> int:
        """The attribution of a hash that covers a prefix of `num_tokens`."""
        return owner.number << _OWNER_SHIFT | num_tokens << _LENGTH_SHIFT | flags

    def _owner(self, request: "Request", group_id: int, block_size: int) -> _Owner:
        """The entry that attributions to a request's continuation share."""
        assert request.continuation_id is not None
        name = (request.continuation_id, group_id)
        number = self._owner_numbers.get(name)
        if number is None:
            number = self._next_number
            self._next_number += 1
            self._owner_numbers[name] = number
            self._owners[number] = _Owner(
                number, request.continuation_id, group_id, block_size
            )
        return self._owners[number]

    def _release(self, owner: _Owner, num_hashes: int) -> None:
        """Count hashes off that are attributed to an owner no more."""
        owner.num_hashes -= num_hashes
        if not owner.num_hashes and self._owners.pop(owner.number, None):
            del self._owner_numbers[owner.continuation_id, owner.group_id]


def _runs_of_present(keys: Sequence[object | None]) -> list[tuple[int, int]]:
    """The maximal ranges [start, stop) of `keys` in which none is None."""
    runs = []
    for present, group in groupby(range(len(keys)), lambda i: keys[i] is not None):
        indices = list(group)
        if present:
            runs.append((indices[0], indices[-1] + 1))
    return runs
