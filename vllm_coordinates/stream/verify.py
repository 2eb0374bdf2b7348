# SPDX-License-Identifier: Apache-2.0
"""Every rule of the contract that can be seen on a stream (docs/contract.md).

A rule that needs what came before is checked only on history that was read
without a break: from batch 0, or from the last reset of the cache, on. What was
reported is needed for as long as that lasts, since a block may lie in the cache
twice and is withdrawn twice then. So history that takes more than two million
hashes, labels on them and borders of spans to keep is given up, and what comes
after is checked as after a break, up to the next reset or restart. Other tiers'
events are stock's and are not checked.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from . import spans
from .record import CUT_OFF
from .sequence import (
    GONE,
    LATE,
    REACHED,
    UNREACHED,
    Batch,
    Delivery,
    Dropped,
    Reason,
    Trouble,
)
from .spans import Spans
from .wire import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    Event,
    MalformedEvent,
    UnknownEvent,
    count_elements,
)

_MOST_KEPT = 2_000_000
# Troubles that no publisher made.
_HARMLESS = (LATE, GONE, CUT_OFF, UNREACHED, REACHED)


class Rule(StrEnum):
    """What a stream has to keep."""

    SEQUENCE = "sequence"
    """Numbers count up by one; a batch comes once and can be read."""
    EPOCH = "epoch"
    """One publisher has one epoch, and begins to count at 0."""
    RANK = "rank"
    """One publisher is one data-parallel rank."""
    SHAPE = "shape"
    """A batch has three elements, or four with an epoch; events are known ones."""
    LABEL = "label"
    """A label has 1 to 256 characters, is not blank, and has no controls."""
    NAMES = "names"
    """An event names what it is about: hashes, or a span with its labels."""
    ONE_HASH = "one hash"
    """A removal names at most one hash."""
    LANGUAGE = "language"
    """A report in coordinates carries no content; one by hash no span."""
    ALIGNED = "aligned"
    """Blocks have tokens, and spans begin and end at block borders."""
    ADMITTED = "admitted"
    """Only what its continuation reported is withdrawn from it."""
    ATTRIBUTION = "attribution"
    """A removal is labeled by a reporter of its hash, with its length."""
    WITHDRAWN = "withdrawn"
    """What was reported in coordinates is withdrawn in coordinates."""
    RUNS = "runs"
    """A removed block that touches the removal before it is one event with it."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule broken in batch `seq`; `event` counts from 0, None for the batch."""

    endpoint: str
    seq: int | None
    event: int | None
    rule: Rule
    detail: str

    def __str__(self) -> str:
        place = "" if self.seq is None else f" batch {self.seq}"
        place += "" if self.event is None else f" event {self.event}"
        return f"{self.endpoint}{place}: {self.rule}: {self.detail}"


class _Hash:
    """What was said of one hash; `first` admitted it, as long as it stayed."""

    __slots__ = ("end", "first", "removed_as", "reporters", "stays", "unlabeled")

    def __init__(self) -> None:
        self.end: int | None = None
        self.first: str | None = None
        self.reporters: set[str] = set()
        self.unlabeled = False
        self.stays = True
        self.removed_as: str | None = None


_Key = tuple[int | None, str]
"""A group, and a continuation in it."""


class _Publisher:
    """What one publisher's stream has said so far.

    By continuation: what it `hashed`, that is reported by hash at a known place,
    what it `told` in coordinates, and what of that is `open`, not withdrawn.
    `kept` counts what all of it holds.
    """

    def __init__(self) -> None:
        self.last: int | None = None
        self.late = False
        self.rank: int | None = None
        self.epoch: str | None = None
        self.forget(whole=False)

    def forget(self, *, whole: bool) -> None:
        self.whole = whole
        self.kept = 0
        self.blocks: dict[int | None, int] = {}
        self.hashes: dict[tuple[int | None, BlockHash], _Hash] = {}
        self.ends: dict[BlockHash, int] = {}
        self.hashed: dict[_Key, Spans] = {}
        self.told: dict[_Key, Spans] = {}
        self.open: dict[_Key, Spans] = {}

    def note_block(self, group: int | None, size: int) -> None:
        """The group has blocks of `size` tokens, or the group of another size has."""
        known = self.blocks.get(group)
        self.kept += known is None
        self.blocks[group] = size if known is None else min(size, known)

    def hash(self, group: int | None, block_hash: BlockHash) -> _Hash:
        """What was said of the hash, from now on."""
        known = self.hashes.get((group, block_hash))
        if known is None:
            known = self.hashes[group, block_hash] = _Hash()
            self.kept += 1
        return known

    def report(self, known: _Hash, name: str) -> None:
        """The continuation reported the hash."""
        if name not in known.reporters:
            known.reporters.add(name)
            self.kept += 1
        known.first = known.first or name

    def add(self, kept: dict[_Key, Spans], key: _Key, start: int, end: int) -> None:
        """Add [start, end), which is not empty, to what is kept of `key`."""
        held = kept.setdefault(key, [])
        before = len(held)
        spans.add(held, start, end)
        self.kept += len(held) - before

    def withdraw(self, key: _Key, start: int, end: int) -> None:
        """[start, end) is open no more."""
        held = self.open.get(key)
        if held is None:
            return
        before = len(held)
        spans.remove(held, start, end)
        self.kept += len(held) - before
        if not held:
            del self.open[key]

    def reported(self, key: _Key, start: int, end: int) -> bool:
        """Whether all of [start, end) was reported, in whatever language."""
        told, hashed = self.told.get(key, []), self.hashed.get(key, [])
        return spans.holds(told, start, end) or spans.holds(
            spans.union(told, hashed), start, end
        )


Finding = tuple[Rule, str]


class Verifier:
    """Reads deliveries and yields each violation as it is seen.

    `batches` and `events` count what was checked, `kinds` names what of the
    contract occurred at all: a stream without a case proves nothing about it.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.events = 0
        self.kinds: dict[str, int] = {}
        self._publishers: dict[str, _Publisher] = {}

    def apply(self, delivery: Delivery) -> Iterator[Violation]:
        """Check the next delivery of a stream."""
        name = delivery.endpoint
        publisher = self._publishers.setdefault(name, _Publisher())
        if isinstance(delivery, Batch):
            yield from self._batch(name, publisher, delivery)
        elif isinstance(delivery, Dropped):
            publisher.forget(whole=False)
            publisher.last = None
            if delivery.reason in (Reason.GAP, Reason.UNREADABLE):
                yield Violation(name, None, None, Rule.SEQUENCE, delivery.detail)
            else:
                self._seen(f"restart known by {delivery.reason}")
                publisher.rank = None
        elif isinstance(delivery, Trouble) and delivery.what == LATE:
            publisher.late = True
        elif isinstance(delivery, Trouble) and delivery.what not in _HARMLESS:
            yield Violation(name, None, None, Rule.SEQUENCE, delivery.detail)

    def _batch(
        self, name: str, publisher: _Publisher, delivery: Batch
    ) -> Iterator[Violation]:
        self.batches += 1
        for rule, detail in self._envelope(publisher, delivery):
            yield Violation(name, delivery.seq, None, rule, detail)
        previous: Event | None = None
        for number, event in enumerate(delivery.batch.events):
            self.events += 1
            if publisher.kept > _MOST_KEPT:
                self._seen("histories too long to keep")
                publisher.forget(whole=False)
            for rule, detail in self._event(publisher, event, previous):
                yield Violation(name, delivery.seq, number, rule, detail)
            previous = event

    def _envelope(self, publisher: _Publisher, delivery: Batch) -> Iterator[Finding]:
        batch, last = delivery.batch, publisher.last
        elements = count_elements(delivery.payload)
        if elements not in (3, 4):
            yield Rule.SHAPE, f"the batch has {elements} elements"
        elif elements == 4 and batch.publisher_epoch is None:
            yield Rule.SHAPE, "the batch has a fourth element that is no epoch"
        if batch.publisher_epoch is not None:
            self._seen("batches with an epoch")
        changed = publisher.epoch != batch.publisher_epoch
        if last is not None and delivery.seq != last + 1:
            yield Rule.SEQUENCE, f"it follows batch {last}"
            publisher.forget(whole=False)
        elif (
            changed
            and publisher.epoch is not None
            and delivery.seq
            and not publisher.late
        ):
            yield (
                Rule.EPOCH,
                f"epoch {batch.publisher_epoch} follows {publisher.epoch}"
                " and does not count from 0",
            )
        if publisher.rank not in (None, batch.data_parallel_rank):
            yield (
                Rule.RANK,
                f"rank {batch.data_parallel_rank} follows rank {publisher.rank}",
            )
        if delivery.seq == 0:
            publisher.forget(whole=True)
        publisher.last, publisher.late = delivery.seq, False
        publisher.rank = batch.data_parallel_rank
        publisher.epoch = batch.publisher_epoch

    def _event(
        self, publisher: _Publisher, event: Event, previous: Event | None
    ) -> Iterator[Finding]:
        if isinstance(event, UnknownEvent):
            yield Rule.SHAPE, f"an event of type {event.type!r} is none of the contract"
        elif isinstance(event, MalformedEvent):
            publisher.forget(whole=False)
            yield Rule.SHAPE, f"a malformed event ({event.reason})"
        elif isinstance(event, AllBlocksCleared):
            self._seen("resets")
            publisher.forget(whole=True)
        elif event.medium not in (MEDIUM_GPU, None):
            self._seen("events of other tiers")
        elif isinstance(event, BlockStored):
            yield from _labels(event.continuation_id, event.session_id)
            if event.block_hashes:
                yield from self._stored_hashes(publisher, event)
            else:
                yield from self._stored_span(publisher, event)
        else:
            yield from _labels(event.continuation_id, None)
            yield from self._removed(publisher, event)
            # A run that grew may have come to touch the event before it.
            single = _length(event) == publisher.blocks.get(event.group_idx)
            if (
                single
                and isinstance(previous, BlockRemoved)
                and _one_run(previous, event)
            ):
                yield Rule.RUNS, f"{_span(event)} touches the removal before it"

    def _stored_hashes(
        self, publisher: _Publisher, event: BlockStored
    ) -> Iterator[Finding]:
        name, group, size = event.continuation_id, event.group_idx, event.block_size
        self._seen("stores by hash" + (" with a label" if name else ""))
        if event.token_offset is not None or event.num_tokens is not None:
            yield Rule.LANGUAGE, "a store by hash carries a span"
        if size > 0:
            publisher.note_block(group, size)
        else:
            yield Rule.ALIGNED, f"a block of {size} tokens"
        tokens = len(event.token_ids)
        parent: BlockHash | None = event.parent_block_hash
        end: int | None = 0 if parent is None else publisher.ends.get(parent)
        if size <= 0 or tokens != len(event.block_hashes) * size:
            end = None  # some blocks are masked, and nothing says which
        for block_hash in event.block_hashes:
            if end is not None:
                end += size
                publisher.ends[block_hash] = end
            known = publisher.hash(group, block_hash)
            known.end = end if known.end is None else known.end
            known.removed_as = None
            if name is None:
                known.unlabeled = True
                continue
            publisher.report(known, name)
            if end is not None:
                publisher.add(publisher.hashed, (group, name), end - size, end)

    def _stored_span(
        self, publisher: _Publisher, event: BlockStored
    ) -> Iterator[Finding]:
        name, group = event.continuation_id, event.group_idx
        start, end = event.token_offset, event.num_tokens
        if start is None or end is None:
            yield Rule.NAMES, "a store names neither hashes nor a span"
            return
        self._seen("stores in coordinates")
        if event.token_ids or event.parent_block_hash is not None or event.extra_keys:
            yield Rule.LANGUAGE, "a report in coordinates carries content"
        if name is None or event.session_id is None:
            yield Rule.NAMES, "a report in coordinates lacks a label"
            return
        size = event.block_size
        if size > 0:
            publisher.note_block(group, size)
        if size <= 0 or not 0 <= start < end or start % size or end % size:
            yield Rule.ALIGNED, f"{_span(event)} is no run of blocks of {size} tokens"
            return
        for kept in (publisher.told, publisher.open):
            publisher.add(kept, (group, name), start, end)

    def _removed(self, publisher: _Publisher, event: BlockRemoved) -> Iterator[Finding]:
        name, start, end = event.continuation_id, event.token_offset, event.num_tokens
        if len(event.block_hashes) > 1:
            yield Rule.ONE_HASH, f"a removal names {len(event.block_hashes)} hashes"
        if start is not None and (name is None or end is None):
            yield Rule.NAMES, "a removed span lacks its end or its continuation"
        elif (name is None) is not (end is None):
            yield Rule.NAMES, "a removal has one of continuation_id and num_tokens"
        elif start is not None and end is not None and name is not None:
            self._seen("removals in coordinates")
            yield from self._removed_span(publisher, event, name, start, end)
        elif not event.block_hashes:
            yield Rule.NAMES, "a removal names neither a hash nor a span"
        for block_hash in event.block_hashes:
            self._seen("removals by hash" + (" with a label" if name else ""))
            yield from self._removed_hash(publisher, event, block_hash)

    def _removed_span(
        self,
        publisher: _Publisher,
        event: BlockRemoved,
        name: str,
        start: int,
        end: int,
    ) -> Iterator[Finding]:
        size = publisher.blocks.get(event.group_idx, 1)
        key = (event.group_idx, name)
        if not 0 <= start < end or start % size or end % size:
            yield Rule.ALIGNED, f"{_span(event)} is no run of blocks of {size} tokens"
        elif event.block_hashes and end - start != size:
            yield Rule.ALIGNED, f"{_span(event)} is not the one block that its hash is"
        else:
            publisher.withdraw(key, start, end)
        # A block that was admitted by hash may follow ones that never were, and
        # then nothing has told where it is.
        if (
            publisher.whole
            and not event.block_hashes
            and not publisher.reported(key, start, end)
        ):
            yield Rule.ADMITTED, f"{_span(event)} of {name!r} was never reported"

    def _removed_hash(
        self, publisher: _Publisher, event: BlockRemoved, block_hash: BlockHash
    ) -> Iterator[Finding]:
        group, name, end = event.group_idx, event.continuation_id, event.num_tokens
        if not publisher.whole:
            return
        known = publisher.hashes.get((group, block_hash))
        if known is None:
            yield Rule.ADMITTED, f"hash {_short(block_hash)} was never reported"
            return
        size = publisher.blocks.get(group, 1)
        start = max((end or 0) - size, 0)
        told = open_ = False
        if name is not None and end is not None:
            key = (group, name)
            told = spans.holds(publisher.told.get(key, []), start, end)
            open_ = spans.holds(publisher.open.get(key, []), start, end)
        if name is None:
            if known.reporters and not known.unlabeled:
                yield (
                    Rule.ATTRIBUTION,
                    f"the removal of hash {_short(block_hash)}, which"
                    f" {min(known.reporters)!r} reported, has no label",
                )
        elif name not in known.reporters and not told:
            yield (
                Rule.ATTRIBUTION,
                f"hash {_short(block_hash)} is attributed to {name!r}, which never"
                " reported it",
            )
        elif not told and known.stays and not known.unlabeled and name != known.first:
            yield (
                Rule.ATTRIBUTION,
                f"hash {_short(block_hash)} is attributed to {name!r}, though"
                f" {known.first!r} admitted it first",
            )
        elif known.removed_as not in (None, name):
            yield (
                Rule.ATTRIBUTION,
                f"hash {_short(block_hash)} was attributed to {known.removed_as!r}"
                f" and is now to {name!r}",
            )
        known.stays, known.removed_as = False, name
        if end is not None and known.end is not None and known.end != end:
            yield (
                Rule.ATTRIBUTION,
                f"hash {_short(block_hash)} covers {known.end} tokens, not {end}",
            )
        if open_ and event.token_offset is None:
            yield (
                Rule.WITHDRAWN,
                f"{name!r} reported [{start}, {end}) in coordinates, and"
                " the removal has none",
            )

    def _seen(self, kind: str) -> None:
        self.kinds[kind] = self.kinds.get(kind, 0) + 1


def _labels(*labels: str | None) -> Iterator[Finding]:
    for label in labels:
        if label is None:
            continue
        if not 1 <= len(label) <= 256:
            yield Rule.LABEL, f"a label of {len(label)} characters"
        elif not label.strip() or any(map(_is_control, label)):
            yield Rule.LABEL, f"{label!r} is blank or has control characters"


def _is_control(character: str) -> bool:
    return ord(character) < 32 or 127 <= ord(character) < 160


def _one_run(one: BlockRemoved, two: BlockRemoved) -> bool:
    """Whether two removals should have been one."""
    if one.block_hashes or two.block_hashes or one.continuation_id is None:
        return False
    touches = one.token_offset == two.num_tokens or one.num_tokens == two.token_offset
    return (
        touches
        and one.continuation_id == two.continuation_id
        and one.group_idx == two.group_idx
        and one.medium == two.medium
    )


def _length(event: BlockRemoved) -> int:
    return (event.num_tokens or 0) - (event.token_offset or 0)


def _span(event: BlockStored | BlockRemoved) -> str:
    return f"[{event.token_offset}, {event.num_tokens})"


def _short(block_hash: BlockHash) -> str:
    if isinstance(block_hash, int):
        return f"{block_hash:x}"
    return block_hash.hex()[:12]
