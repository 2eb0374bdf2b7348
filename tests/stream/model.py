# SPDX-License-Identifier: Apache-2.0
"""A small engine: a prefix cache that reports as the contract says.

Tokens are what the tiny chat template makes of a turn: a mark for the role,
one token per byte, a mark for the end. The truth is plain: which hash, that is
which prefix of tokens, lies in how many blocks.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm_coordinates.stream.wire import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
)

BLOCK = 4
Tokens = tuple[int, ...]

ROLE_MARK, END_MARK = 1000, 1001


def render(turns: Sequence[str]) -> Tokens:
    """A conversation's prompt: its turns, and the mark that asks for a reply."""
    tokens: list[int] = []
    for turn in turns:
        tokens += [ROLE_MARK, *turn.encode(), END_MARK]
    return (*tokens, ROLE_MARK)


def block_hash(prefix: Tokens) -> bytes:
    """A name for a prefix of whole blocks, 32 bytes as the engine's."""
    return hashlib.sha256(repr(prefix).encode()).digest()


@dataclass
class Record:
    """Who admitted a hash first, and what its reports have told."""

    continuation: str | None = None
    in_hashes: bool = False
    in_coordinates: bool = False


@dataclass
class Engine:
    """One KV-cache group, full attention, of `capacity` blocks or more."""

    medium: str = "GPU"
    blocks: list[Tokens] = field(default_factory=list)
    records: dict[Tokens, Record] = field(default_factory=dict)
    queue: list[Event] = field(default_factory=list)
    clock: float = 0.0

    def request(
        self,
        tokens: Tokens,
        *,
        mode: str = "coordinates",
        continuation: str | None = None,
        session: str | None = None,
        blind_from: int | None = None,
    ) -> None:
        """Admit a request whose blocks are all computed at once.

        `blind_from` is the first block, if any, that its lookup does not find
        though it may be cached: computed side by side, or the last one again.
        """
        count = len(tokens) // BLOCK
        prefixes = [tokens[: (n + 1) * BLOCK] for n in range(count)]
        hits = 0
        while hits < count and prefixes[hits] in self.records:
            hits += 1
        if blind_from is not None:
            hits = min(hits, blind_from)
        label = (mode, continuation, session)
        if mode in ("full", "coordinates") and hits:
            self._report(prefixes[:hits], tokens, 0, label)
        if hits < count:
            for prefix in prefixes[hits:]:
                self.blocks.append(prefix)
            self._report(prefixes[hits:], tokens, hits, label)

    def _report(
        self,
        prefixes: Sequence[Tokens],
        tokens: Tokens,
        first: int,
        label: tuple[str, str | None, str | None],
    ) -> None:
        mode, continuation, session = label
        for prefix in prefixes:
            record = self.records.setdefault(prefix, Record())
            if record.continuation is None:
                record.continuation = continuation
            if mode == "coordinates":
                record.in_coordinates = True
            else:
                record.in_hashes = True
        hashes: list[BlockHash]
        span: tuple[int, int] | tuple[None, None]
        start, end = first * BLOCK, (first + len(prefixes)) * BLOCK
        if mode == "coordinates":
            hashes, ids, parent = [], [], None
            span = (start, end)
        else:
            hashes = [block_hash(prefix) for prefix in prefixes]
            ids, span = list(tokens[start:end]), (None, None)
            parent = block_hash(tokens[:start]) if start else None
        self.queue.append(
            BlockStored(
                block_hashes=hashes,
                parent_block_hash=parent,
                token_ids=ids,
                block_size=BLOCK,
                lora_id=None,
                medium=self.medium,
                lora_name=None,
                group_idx=0,
                kv_cache_spec_kind="full_attention",
                session_id=session,
                continuation_id=continuation,
                token_offset=span[0],
                num_tokens=span[1],
            )
        )

    def evict(self, position: int) -> None:
        """The block at `position` of the list leaves the cache."""
        prefix = self.blocks.pop(position)
        record = self.records[prefix]
        if prefix not in self.blocks:
            del self.records[prefix]
        start, end = len(prefix) - BLOCK, len(prefix)
        labeled = record.continuation is not None
        removal = BlockRemoved(
            block_hashes=[block_hash(prefix)] if record.in_hashes else [],
            medium=self.medium,
            group_idx=0,
            continuation_id=record.continuation,
            num_tokens=end if labeled else None,
            token_offset=start if record.in_coordinates else None,
        )
        if not (self.queue and self._merge(self.queue[-1], removal)):
            self.queue.append(removal)

    @staticmethod
    def _merge(last: Event, removal: BlockRemoved) -> bool:
        if (
            not isinstance(last, BlockRemoved)
            or last.block_hashes
            or removal.block_hashes
            or last.continuation_id != removal.continuation_id
        ):
            return False
        if last.token_offset == removal.num_tokens:
            last.token_offset = removal.token_offset
        elif last.num_tokens == removal.token_offset:
            last.num_tokens = removal.num_tokens
        else:
            return False
        return True

    def reset(self) -> None:
        """The prefix cache is emptied on request."""
        self.blocks.clear()
        self.records.clear()
        self.queue.append(AllBlocksCleared())

    def take(self, epoch: str | None = None) -> EventBatch:
        """The events since the last batch."""
        events, self.queue = self.queue, []
        self.clock += 1
        return EventBatch(self.clock, events, 0, epoch)

    def resident(self, tokens: Tokens) -> list[tuple[int, int]]:
        """The truth: the blocks of `tokens` that are in the cache."""
        return [
            (end - BLOCK, end)
            for end in range(BLOCK, len(tokens) + 1, BLOCK)
            if tokens[:end] in self.records
        ]
