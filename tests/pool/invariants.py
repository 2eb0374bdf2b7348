# SPDX-License-Identifier: Apache-2.0
"""What the contract promises of the events of a pool, at every moment."""

from collections import Counter
from collections.abc import Callable, Iterable

from pool.ledger import Ledger, Removal, removals_in
from pool.readers import HashReader, SpanReader, over_the_wire, stretches
from pool.traffic import Voice, named

from vllm.v1.core.block_pool import BlockPool
from vllm_coordinates.stream.wire import BlockRemoved, EventBatch

VOICES: tuple[tuple[Voice, ...], ...] = (
    tuple(Voice),
    (Voice.COORDINATES,),
    (Voice.COORDINATES, Voice.STOCK),
    (Voice.COORDINATES, Voice.LABELED, Voice.STOCK),
    (Voice.LABELED, Voice.STOCK),
    (Voice.FULL, Voice.STOCK_FULL, Voice.COORDINATES),
)
"""Mixes of traffic; a history's requests are all of one."""


class Readers:
    """Both readers of a pool's stream, held against the pool and its ledger."""

    def __init__(self, ledger: Ledger, pool: BlockPool) -> None:
        self._ledger = ledger
        self._pool = pool
        self.hashes = HashReader()
        self.spans = SpanReader(ledger.lineage, ledger.block_sizes)
        self._removals: list[Removal] = []
        self.followers: list[Callable[[EventBatch], None]] = []

    def take(self, events: Iterable[object]) -> None:
        """The events of batches that were published."""
        batch = over_the_wire(events)
        self.hashes.apply(batch)
        self.spans.apply(batch)
        for follow in self.followers:
            follow(batch)
        self._removals += removals_in(batch, self._ledger.block_sizes)
        for event in batch.events:
            if isinstance(event, BlockRemoved) and event.medium != "GPU":
                assert event.continuation_id is event.num_tokens is None

    def check(self, *, nothing_repeats: bool = False) -> None:
        """Hold what is believed, once the pool's queue is read too, against it.

        Args:
            nothing_repeats: Every event so far is of an admission by hash, so that
                admissions and removals can be counted.
        """
        pending = self._queued()
        self._check_removals(removals_in(pending, self._ledger.block_sizes))
        hashes, spans = self._read(pending)
        self._check_hashes(hashes)
        self._check_spans(spans)
        assert hashes.believed == {named(key) for key in self._ledger.hashed}
        for name in self._ledger.spans:
            assert self._ledger.promised(name) <= spans.believed.get(name, set())
        if nothing_repeats:
            cached = self._pool.cached_block_hash_to_block._cache
            assert hashes.counted == {
                named(key): 1 if hasattr(blocks, "block_id") else len(blocks)
                for key, blocks in cached.items()
            }

    def check_no_phantom(self) -> None:
        """Hold what is believed against the pool alone."""
        hashes, spans = self._read(self._queued())
        self._check_hashes(hashes)
        self._check_spans(spans)

    def _queued(self) -> EventBatch:
        self._pool.admissions._complete_run()
        return over_the_wire(self._pool.kv_event_queue)

    def _read(self, pending: EventBatch) -> tuple[HashReader, SpanReader]:
        hashes, spans = self.hashes.copy(), self.spans.copy()
        hashes.apply(pending)
        spans.apply(pending)
        return hashes, spans

    def _check_removals(self, pending: list[Removal]) -> None:
        # In no order: those of one block that is under several hashes have none.
        assert Counter(self._removals + pending) == Counter(self._ledger.removals)
        if not pending:
            self._removals.clear()
            self._ledger.removals.clear()

    def _check_hashes(self, reader: HashReader) -> None:
        cached = self._pool.cached_block_hash_to_block._cache
        assert reader.believed <= {named(key) for key in cached}

    def _check_spans(self, reader: SpanReader) -> None:
        for (group, continuation), believed in reader.believed.items():
            assert believed <= self.resident(group, continuation)

    def resident(self, group: int, continuation: str) -> set[int]:
        """The truth: which stretches of the continuation the group has cached."""
        cached = self._pool.cached_block_hash_to_block._cache
        size = self._ledger.block_sizes[group]
        found: set[int] = set()
        for key, end in self._ledger.lineage.keys(continuation, group).items():
            if key in cached:
                found.update(stretches((end - 1) // size * size, end))
        return found


def attributions_hold(pool: BlockPool, ledger: Ledger) -> None:
    """They are of cached hashes alone, and nothing beside them outlives them."""
    admissions = pool.admissions
    cached = pool.cached_block_hash_to_block._cache
    owned = {key for key, entry in ledger.entries.items() if entry.owner}
    assert admissions.attributions.keys() == owned <= cached.keys()
    owners = {(ledger.entries[key].owner, named(key)[0]) for key in owned}
    # One may wait for its last removals to be counted off.
    assert len(admissions._owners) <= len(owners) + 1
    assert len(admissions._owners) == len(admissions._owner_numbers)
