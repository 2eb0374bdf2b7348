# SPDX-License-Identifier: Apache-2.0
"""Residency by block hash: what default and full mode report of one endpoint.

How stock vLLM publishes duplicates (`BlockPool`, 0.30.0 to 0.33.0): the pool
does not de-duplicate, so one hash may live in several blocks. Each block that
enters the prefix cache is one hash in a `BlockStored`, and each that leaves is
one `BlockRemoved` of one hash, whether or not other blocks hold it still.
Moving a hash between blocks publishes nothing. In full mode a reuse report
repeats the hashes without any new block, in the very shape of an admission.

So a count of stores tells nothing on a stream where full mode may occur: it
only grows, and a hash that is long gone would stay for as many removals as it
had reports. The default rule is therefore that the *first removal wins*: it
ends the hash, whatever was reported before. That never leaves a phantom; it
misses a hash from the first removal of a duplicate until its next report.
`count_duplicates=True` balances stores and removals instead and misses
nothing. It is right only where no request uses full mode, and only for a
reader that can tell a repeated frame (the sequencer does).

A block's position is the length of its chain of parents; it is unknown while
the reader has not seen the chain from its start, and such a block is in no
span. So is one whose event masks some blocks (sliding windows) until another
group's event names its parent. All positions and lengths are tokens.

In full mode every session that reuses a block labels it, and a block that all
of them share may never leave the cache. So a block keeps the last 64 labels
that reported it, and the one reported longest ago gives way. A continuation
finds what it holds by its labels, so that errs to under-coverage, and only
where none of its own blocks is resident behind the shared ones.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from . import spans
from .spans import Spans
from .wire import BlockHash, BlockStored

_MOST_LABELS = 64

_NOBODY: frozenset[str] = frozenset()

Label = tuple[str, str | None]
"""(continuation_id, session_id) as an event named them."""


class Resident(NamedTuple):
    """What is resident of a continuation, and what of that another session uses."""

    held: Spans
    shared: Spans


class _Run(NamedTuple):
    """Resident tokens without a hole, and the run before them on their chain.

    One may reach into another where groups of other block sizes share the chain.
    """

    start: int
    end: int
    before: "_Run | None"


class _Place(NamedTuple):
    """A link's chain: what is resident of it, and which sessions use it.

    Who uses a link uses all that are before it; up to `shared`, others do, too.
    """

    run: _Run | None
    users: frozenset[str]
    shared: int
    end: int

    def used_by_others(self, own: frozenset[str]) -> int:
        """Up to where sessions use the chain that are not among its `own`."""
        return self.shared if self.users == own else self.end


class _Link:
    """A hash's place in its chain, kept while anything builds on it."""

    __slots__ = ("end", "holders", "parent", "placed", "size")

    def __init__(self) -> None:
        self.parent: BlockHash | None = None
        self.placed = False
        self.size = 0
        self.end: int | None = None
        self.holders = 0


class _Block:
    __slots__ = ("count", "labels", "size")

    def __init__(self, size: int) -> None:
        # The group's own: groups of other block sizes share the chain.
        self.size = size
        self.count = 0
        # In the order of their latest report.
        self.labels: dict[Label, None] = {}


_START = _Place(None, _NOBODY, 0, 0)


class Hashes:
    """The blocks of one endpoint that were reported by hash.

    Invariants: a link is kept exactly while its hash is resident in a group or
    is the parent of a kept link; a continuation labels exactly the blocks that
    have a label with its name.
    """

    def __init__(self, *, count_duplicates: bool = False) -> None:
        self._count = count_duplicates
        self._links: dict[BlockHash, _Link] = {}
        self._blocks: dict[int | None, dict[BlockHash, _Block]] = {}
        self._labeled: dict[int | None, dict[str, set[BlockHash]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._blocks.values()))

    def continuations(self) -> set[str]:
        """Every continuation that labels a resident block."""
        return {name for group in self._labeled.values() for name in group}

    def store(self, event: BlockStored) -> None:
        """The event's blocks are resident, and its label may find them."""
        blocks = self._blocks.setdefault(event.group_idx, {})
        label: Label | None = None
        labeled: set[BlockHash] = set()
        if event.continuation_id is not None and event.block_hashes:
            label = (event.continuation_id, event.session_id)
            group = self._labeled.setdefault(event.group_idx, {})
            labeled = group.setdefault(event.continuation_id, labeled)
        contiguous = len(event.block_hashes) * event.block_size == len(event.token_ids)
        parent = event.parent_block_hash
        for block_hash in event.block_hashes:
            block = blocks.get(block_hash)
            if block is None:
                block = blocks[block_hash] = _Block(event.block_size)
                self._link(block_hash).holders += 1
            block.count += 1
            if label is not None:
                labeled.add(block_hash)
                labels = block.labels
                if labels:
                    labels.pop(label, None)
                labels[label] = None
                if len(labels) > _MOST_LABELS:
                    self._drop_oldest(event.group_idx, block_hash, labels)
            if contiguous:
                self._place(block_hash, parent, event.block_size)
                parent = block_hash

    def remove(self, group: int | None, block_hash: BlockHash) -> bool:
        """A block with the hash left the group; False if none was known."""
        blocks = self._blocks.get(group, {})
        block = blocks.get(block_hash)
        if block is None:
            return False
        block.count -= 1
        if self._count and block.count > 0:
            return True
        del blocks[block_hash]
        labeled = self._labeled.get(group, {})
        for continuation_id in {label[0] for label in block.labels}:
            _discard(labeled, continuation_id, block_hash)
        self._release(block_hash)
        return True

    def forget(self, continuation_id: str) -> None:
        """Let go of the continuation's labels; its blocks stay, as nobody's."""
        for number, group in self._labeled.items():
            for block_hash in group.pop(continuation_id, ()):
                labels = self._blocks[number][block_hash].labels
                for label in [each for each in labels if each[0] == continuation_id]:
                    del labels[label]

    def resident(self, group: int | None, block_hash: BlockHash) -> bool:
        """Whether a block of the group holds the hash."""
        return block_hash in self._blocks.get(group, {})

    def labels(self, group: int | None, block_hash: BlockHash) -> frozenset[Label]:
        """Who reported the hash since it became resident, the last 64 of them."""
        block = self._blocks.get(group, {}).get(block_hash)
        return frozenset(block.labels) if block else frozenset()

    def spans(self, group: int | None, continuation_id: str) -> Spans:
        """What is resident in the group of the sequences the label appears on.

        A labeled block's chain leads to the blocks before it, whoever reported
        them, so reuse is seen in default mode, too. Once no block of the label
        is left, only an ancestor's label may still find the beginning.
        """
        walk = self._walk(group, continuation_id)
        return spans.gathered((start, end) for start, end, _ in walk)

    def end(self, block_hash: BlockHash) -> int | None:
        """The length of the prefix that a hash covers; None where it is not known."""
        link = self._links.get(block_hash)
        return None if link is None else self._settled_end(link)

    def residency(
        self, group: int | None, sessions: Mapping[str, Collection[str]]
    ) -> dict[str, Resident]:
        """What `spans` answers of each continuation in `sessions`, in one walk.

        These are the sessions of each one, and only they count for what is shared.
        """
        labeled = self._labeled.get(group, {})
        ends: dict[str, set[BlockHash]] = {}
        users: dict[BlockHash, frozenset[str]] = {}
        for name in sessions.keys() & labeled.keys():
            tips = labeled[name]
            # What is before another says nothing that the other does not.
            ends[name] = tips - {self._links[tip].parent for tip in tips}
            for tip in ends[name]:
                users[tip] = users.get(tip, _NOBODY).union(sessions[name])
        places = self._places(self._blocks.get(group, {}), users)
        found = {name: Resident([], []) for name in sessions}
        for name, tips in ends.items():
            held = _gathered(places[tip].run for tip in tips)
            own = frozenset(sessions[name])
            others = (places[tip].used_by_others(own) for tip in tips)
            shared = spans.within(held, 0, max(others, default=0))
            found[name] = Resident(held, shared)
        return found

    def sessions(
        self, group: int | None, continuation_id: str, start: int, end: int
    ) -> set[str]:
        """The sessions that share a block of the continuation in [start, end)."""
        return {
            session
            for first, last, block in self._walk(group, continuation_id)
            if first < end and start < last
            for _, session in block.labels
            if session is not None
        }

    def _walk(
        self, group: int | None, continuation_id: str
    ) -> Iterator[tuple[int, int, _Block]]:
        """The resident blocks on the chains that end in a labeled block."""
        blocks = self._blocks.get(group, {})
        tips = self._labeled.get(group, {}).get(continuation_id, ())
        for block_hash, link in self._chains(tips):
            end = self._settled_end(link)
            block = blocks.get(block_hash)
            if end is not None and block is not None:
                yield end - block.size, end, block

    def _chains(self, tips: Iterable[BlockHash]) -> Iterator[tuple[BlockHash, _Link]]:
        """Every link on the chains that end in `tips`, once, parents first."""
        seen: set[BlockHash] = set()
        for tip in tips:
            path: list[tuple[BlockHash, _Link]] = []
            current: BlockHash | None = tip
            while current is not None and current not in seen:
                seen.add(current)
                link = self._links.get(current)
                if link is None:
                    break
                path.append((current, link))
                current = link.parent
            yield from reversed(path)

    def _places(
        self,
        blocks: Mapping[BlockHash, _Block],
        users: dict[BlockHash, frozenset[str]],
    ) -> Mapping[BlockHash | None, _Place]:
        """What is known of each link on the chains that end in `users`.

        It has the users of each end, and gets those of every link.
        """
        order = list(self._chains(users))
        for block_hash, link in reversed(order):
            if link.parent is not None:
                own = users[block_hash]
                others = users.get(link.parent, own)
                users[link.parent] = others if own <= others else others | own
        places: dict[BlockHash | None, _Place] = {}
        for block_hash, link in order:
            above = places.get(link.parent, _START)
            end, block = self._settled_end(link), blocks.get(block_hash)
            run = above.run
            if end is not None and block is not None:
                start = end - block.size
                if run is not None and run.end == start:
                    run = _Run(run.start, end, run.before)
                else:
                    run = _Run(start, end, run)
            here = users[block_hash]
            shared = above.shared if above.users == here else above.end
            places[block_hash] = _Place(run, here, shared, end or 0)
        return places

    def _settled_end(self, link: _Link) -> int | None:
        """The length of the prefix that the hash covers, once it can be known."""
        if link.end is None and link.parent is not None:
            above = self._links.get(link.parent)
            if above is not None and above.end is not None:
                link.end = above.end + link.size
        return link.end

    def _drop_oldest(
        self, number: int | None, block_hash: BlockHash, labels: dict[Label, None]
    ) -> None:
        oldest = next(iter(labels))
        del labels[oldest]
        if all(label[0] != oldest[0] for label in labels):
            _discard(self._labeled[number], oldest[0], block_hash)

    def _link(self, block_hash: BlockHash) -> _Link:
        link = self._links.get(block_hash)
        if link is None:
            link = self._links[block_hash] = _Link()
        return link

    def _place(
        self, block_hash: BlockHash, parent: BlockHash | None, size: int
    ) -> None:
        link = self._links[block_hash]
        if link.placed or parent == block_hash:
            return
        link.placed, link.parent, link.size = True, parent, size
        if parent is None:
            link.end = size
        else:
            above = self._link(parent)
            above.holders += 1
            if above.end is not None:
                link.end = above.end + size

    def _release(self, block_hash: BlockHash) -> None:
        current: BlockHash | None = block_hash
        while current is not None:
            link = self._links.get(current)
            if link is None:
                return
            link.holders -= 1
            if link.holders:
                return
            del self._links[current]
            current = link.parent


def _discard(
    labeled: dict[str, set[BlockHash]], continuation_id: str, block_hash: BlockHash
) -> None:
    hashes = labeled[continuation_id]
    hashes.discard(block_hash)
    if not hashes:
        del labeled[continuation_id]


def _gathered(runs: Iterable[_Run | None]) -> Spans:
    """What is in any of the chains that end in `runs`."""
    found: dict[int, _Run] = {}
    for last in runs:
        run = last
        while run is not None and id(run) not in found:
            found[id(run)] = run
            run = run.before
    return spans.gathered((run.start, run.end) for run in found.values())
