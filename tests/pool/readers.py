# SPDX-License-Identifier: Apache-2.0
"""Two readers of the event stream, as small and exact as the contract allows.

They read what a publisher would send: each event goes through msgpack first, into
the structs of the reader's kit.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec
from pool.traffic import HASH_BLOCK, Lineage

from vllm_coordinates.stream.wire import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    decode_batch,
)

Named = tuple[int | None, object]
"""A group, and a hash or a continuation in it."""

_encode = msgspec.msgpack.Encoder().encode


def over_the_wire(events: Iterable[object]) -> EventBatch:
    """The events as a subscriber decodes them."""
    return decode_batch(_encode([0.0, list(events), 0]))


class HashReader:
    """Knows block hashes alone; labels and spans are nothing to it.

    `believed` holds what it takes for cached if the first removal ends a hash;
    `counted` balances admissions and removals, which is exact for duplicates and
    right only where no reuse is reported.
    """

    def __init__(self) -> None:
        self.believed: set[Named] = set()
        self.counted: Counter[Named] = Counter()

    def copy(self) -> "HashReader":
        twin = HashReader()
        twin.believed = self.believed.copy()
        twin.counted = self.counted.copy()
        return twin

    def apply(self, batch: EventBatch) -> None:
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.believed.clear()
                self.counted.clear()
                continue
            if event.medium != "GPU":
                continue
            named = [(event.group_idx, h) for h in event.block_hashes]
            if isinstance(event, BlockStored):
                self.believed.update(named)
                self.counted.update(named)
            elif isinstance(event, BlockRemoved):
                self.believed.difference_update(named)
                for name in named:
                    if self.counted[name] <= 1:
                        del self.counted[name]
                    else:
                        self.counted[name] -= 1


class SpanReader:
    """Knows spans and the lineage alone; hashes are nothing to it.

    `believed` holds, for each group and continuation, which stretches of
    `HASH_BLOCK` tokens are cached. A removal withdraws its blocks from every
    continuation that has the same tokens up to a block's end.
    """

    def __init__(self, lineage: Lineage, block_sizes: Mapping[int, int]) -> None:
        self.lineage = lineage
        self.block_sizes = block_sizes
        self.believed: dict[Named, set[int]] = {}

    def copy(self) -> "SpanReader":
        twin = SpanReader(self.lineage, self.block_sizes)
        twin.believed = {name: held.copy() for name, held in self.believed.items()}
        return twin

    def apply(self, batch: EventBatch) -> None:
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.believed.clear()
            elif event.token_offset is None or event.medium != "GPU":
                continue
            elif isinstance(event, BlockStored):
                name = (event.group_idx, event.continuation_id)
                held = self.believed.setdefault(name, set())
                held.update(stretches(event.token_offset, event.num_tokens))
            elif isinstance(event, BlockRemoved):
                self._withdraw(event)

    def _withdraw(self, event: BlockRemoved) -> None:
        for (group, name), held in list(self.believed.items()):
            if group != event.group_idx:
                continue
            shared = (
                event.num_tokens
                if name == event.continuation_id
                else self.lineage.common(event.continuation_id, name)
            )
            for start, end in blocks_of(event, self.block_sizes[group]):
                if end <= shared:
                    held.difference_update(stretches(start, end))
            if not held:
                del self.believed[group, name]


def stretches(start: int, end: int) -> range:
    """The numbers of the stretches in [start, end)."""
    return range(start // HASH_BLOCK, end // HASH_BLOCK)


def blocks_of(event: BlockRemoved, block_size: int) -> list[tuple[int, int]]:
    """The blocks of a removed span, as (start, end); the last may be partial."""
    return [
        (start, min(start + block_size, event.num_tokens))
        for start in range(event.token_offset, event.num_tokens, block_size)
    ]
