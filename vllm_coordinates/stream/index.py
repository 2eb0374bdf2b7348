# SPDX-License-Identifier: Apache-2.0
"""Who holds what: residency of continuations, from the deliveries of a stream.

One index serves both languages of the contract: hash-keyed reports (`hashes`)
and reports in coordinates (`claims`). What an endpoint holds of a continuation
is what either says. All positions are tokens of the continuation's sequence,
spans are half-open.

*Certain* coverage is phantom-free: whatever a reader that applied every event
so far is told resident, is resident, save for what is on the wire still. With
`doubtful=True` an answer includes what a removal may or may not have concerned
(see `claims`); good for guessing where a prefix probably is.

KV-cache groups. A hybrid model has several, and a token is usable only where
every group holds what it needs of it: full attention all of the prefix, a
sliding window its last `window - 1` tokens, Mamba the block that ends it. The
answers that name no group combine all groups seen at the endpoint that way.
A group of any other or of an unknown kind is taken to need all of the prefix,
which errs to under-coverage.

Tiers. Only the engine's own memory counts: medium GPU (or none), not REMOTE.
Events of other tiers (CPU offload, storage) are counted and skipped.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from . import spans
from .ancestry import Ancestry
from .claims import Claims
from .hashes import Hashes
from .sequence import Batch, Delivery, Dropped, Resumed, Suspended
from .spans import Spans
from .wire import (
    MEDIUM_GPU,
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    EventBatch,
    MalformedEvent,
    UnknownEvent,
)

Covered = Mapping[int | None, Spans]
"""What is resident of one continuation, by KV-cache group."""

_OWN_MEMORY = frozenset((MEDIUM_GPU, None))
_WINDOWED = frozenset(("sliding_window", "sliding_window_mla"))
_FORGET_EVERY = 4096


@dataclass(frozen=True, slots=True)
class Prefix:
    """`endpoint` holds the first `tokens` tokens of `continuation_id`."""

    endpoint: str
    continuation_id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Holding:
    """What one endpoint holds of one continuation.

    `certain` and `doubtful` as `Index.spans` answers; `usable` is the longest
    certain prefix; `shared` is how many certain tokens another session holds,
    too, as far as hashes or the ancestry tell. `seen` is the time of the latest
    report, in seconds on the publisher's clock.
    """

    endpoint: str
    continuation_id: str
    sessions: tuple[str, ...]
    certain: tuple[tuple[int, int], ...]
    doubtful: tuple[tuple[int, int], ...]
    usable: int
    shared: int
    seen: float

    @property
    def tokens(self) -> int:
        """How many tokens are resident for certain."""
        return sum(end - start for start, end in self.certain)


class _Group:
    """One KV-cache group at one endpoint."""

    __slots__ = ("block", "claims", "kind", "window")

    def __init__(self, ancestry: Ancestry) -> None:
        self.claims = Claims(ancestry)
        self.kind: str | None = None
        self.window: int | None = None
        self.block = 1

    @property
    def needs_all(self) -> bool:
        """Whether a prefix is only usable with all of its tokens."""
        windowed = self.kind in _WINDOWED and self.window is not None
        return not windowed and self.kind != "mamba"

    def usable(self, covered: Spans, length: int) -> int:
        """The longest prefix of at most `length` tokens that can be served."""
        if self.needs_all:
            return min(spans.prefix(covered), length)
        tail = 1 if self.window is None else self.window - 1
        # The engine looks for whole blocks.
        need = max(-(-tail // self.block), 1) * self.block
        for start, end in reversed(list(spans.pairs(covered))):
            reach = min(end, length)
            if reach > start and reach - start >= min(need, reach):
                return reach
        return 0


class _Endpoint:
    __slots__ = (
        "_ancestry",
        "_count",
        "clock",
        "groups",
        "hashes",
        "seen",
        "suspended",
    )

    def __init__(self, ancestry: Ancestry, *, count_duplicates: bool) -> None:
        self._ancestry = ancestry
        self._count = count_duplicates
        self.suspended = False
        self.clock = 0.0
        self.clear()

    def clear(self) -> None:
        self.groups: dict[int | None, _Group] = {}
        self.hashes = Hashes(count_duplicates=self._count)
        self.seen: dict[str, dict[str, float]] = {}

    def group(self, number: int | None) -> _Group:
        group = self.groups.get(number)
        if group is None:
            group = self.groups[number] = _Group(self._ancestry)
        return group

    def continuations(self) -> set[str]:
        found = self.hashes.continuations()
        for group in self.groups.values():
            found.update(group.claims)
        return found

    def covered(self, name: str, *, doubtful: bool) -> Covered:
        by_hash = {number: self.hashes.spans(number, name) for number in self.groups}
        return self.with_claims(name, by_hash, doubtful=doubtful)

    def covered_of(
        self, names: Collection[str], *, doubtful: bool
    ) -> Iterator[tuple[str, Covered]]:
        """What `covered` answers of each, in one walk over the blocks."""
        nobody = dict.fromkeys(names, ())
        by_hash = {n: self.hashes.residency(n, nobody) for n in self.groups}
        for name in names:
            held = {number: group[name].held for number, group in by_hash.items()}
            yield name, self.with_claims(name, held, doubtful=doubtful)

    def with_claims(self, name: str, by_hash: Covered, *, doubtful: bool) -> Covered:
        """What hashes tell of a continuation, and what coordinates do, too."""
        found: dict[int | None, Spans] = {}
        for number, held in by_hash.items():
            claim = self.groups[number].claims.get(name)
            if claim is not None:
                held = spans.union(held, claim.certain)
                if doubtful:
                    held = spans.union(held, claim.doubtful)
            found[number] = held
        return found

    def combined(self, covered: Covered) -> Spans:
        groups = self.groups
        telling = [n for n, g in groups.items() if g.needs_all] or list(groups)
        found: Spans | None = None
        for number in telling:
            held = covered[number]
            found = held if found is None else spans.common(found, held)
        return found or []

    def usable(self, covered: Covered) -> int:
        length = min((held[-1] if held else 0 for held in covered.values()), default=0)
        while True:
            shorter = length
            for number, held in covered.items():
                shorter = self.groups[number].usable(held, shorter)
            if shorter == length:
                return length
            length = shorter

    def sessions(self, name: str) -> dict[str, float]:
        found = dict(self.seen.get(name, {}))
        for group in self.groups.values():
            claim = group.claims.get(name)
            if claim is not None:
                found.update(claim.sessions)
        return found


class Index:
    """Residency at every endpoint, in both languages.

    `ancestry` is the control plane's; without one, an eviction puts every
    other continuation's coverage at that position in doubt. For
    `count_duplicates` see `hashes`. Doubts that nothing settles end after
    `doubt_seconds`.

    `counts` says what was applied (`stored`, `removed`, `cleared`), skipped
    (`other tier`, `unknown`, `no span`) and lost (`malformed`, and `dropped:`
    with the reason, each time an endpoint's coverage went).
    """

    def __init__(
        self,
        ancestry: Ancestry | None = None,
        *,
        count_duplicates: bool = False,
        doubt_seconds: float = 3600.0,
    ) -> None:
        self.ancestry = Ancestry() if ancestry is None else ancestry
        self.counts: Counter[str] = Counter()
        self._count_duplicates = count_duplicates
        self._doubt_seconds = doubt_seconds
        self._endpoints: dict[str, _Endpoint] = {}
        self._batches = 0

    def apply(self, delivery: Delivery) -> None:
        """Take the next delivery of a stream into account."""
        if isinstance(delivery, Batch):
            self.apply_batch(delivery.endpoint, delivery.batch)
        elif isinstance(delivery, Suspended):
            self._endpoint(delivery.endpoint).suspended = True
        elif isinstance(delivery, Resumed):
            self._endpoint(delivery.endpoint).suspended = False
        elif isinstance(delivery, Dropped):
            self.counts[f"dropped: {delivery.reason}"] += 1
            endpoint = self._endpoint(delivery.endpoint)
            endpoint.suspended = False
            endpoint.clear()
        else:
            self.counts[f"trouble: {delivery.what}"] += 1

    def apply_batch(self, endpoint: str, batch: EventBatch) -> None:
        """Apply the next batch of the publisher named `endpoint`."""
        state = self._endpoint(endpoint)
        state.clock = batch.ts
        stored = removed = 0
        for event in batch.events:
            if isinstance(event, BlockStored):
                stored += 1
                self._store(state, event, batch.ts)
            elif isinstance(event, BlockRemoved):
                removed += 1
                self._remove(state, event)
            elif isinstance(event, AllBlocksCleared):
                self.counts["cleared"] += 1
                state.clear()
            elif isinstance(event, MalformedEvent):
                # It may have been a removal: nothing before it can be vouched for.
                self.counts["malformed"] += 1
                state.clear()
            elif isinstance(event, UnknownEvent):
                self.counts["unknown"] += 1
        self.counts["stored"] += stored
        self.counts["removed"] += removed
        self._batches += 1
        if not self._batches % _FORGET_EVERY:
            for each in self._endpoints.values():
                self._forget(each, batch.ts - self._doubt_seconds)

    def forget(self, continuation_id: str) -> None:
        """Let go of a continuation that nobody will ask for again.

        What it reported is forgotten at every endpoint, and so is its place in the
        ancestry, unless something continues it: claims of a
        continuation without kin would outlive the evictions of its relatives.
        """
        for state in self._endpoints.values():
            state.hashes.forget(continuation_id)
            state.seen.pop(continuation_id, None)
            for group in state.groups.values():
                group.claims.forget(continuation_id)
        self.ancestry.forget(continuation_id)

    def end(self, endpoint: str, block_hash: BlockHash) -> int | None:
        """The length of the prefix that a hash covers there; None if it is unknown."""
        state = self._endpoints.get(endpoint)
        return None if state is None else state.hashes.end(block_hash)

    def endpoints(self) -> list[str]:
        """The endpoints heard of, by name."""
        return sorted(self._endpoints)

    def suspended(self, endpoint: str) -> bool:
        """Whether the endpoint is not vouched for; no answer counts it then."""
        state = self._endpoints.get(endpoint)
        return state is not None and state.suspended

    def spans(
        self,
        endpoint: str,
        continuation_id: str,
        *,
        group: int | None = None,
        doubtful: bool = False,
    ) -> list[tuple[int, int]]:
        """The spans of the continuation that are resident at the endpoint.

        Those of one `group`; else those that every group holds which needs
        all of a prefix (or every group, where none does).
        """
        state = self._vouched(endpoint)
        if state is None:
            return []
        if group is None:
            covered = state.covered(continuation_id, doubtful=doubtful)
            return list(spans.pairs(state.combined(covered)))
        if group not in state.groups:
            return []
        by_hash: Covered = {group: state.hashes.spans(group, continuation_id)}
        covered = state.with_claims(continuation_id, by_hash, doubtful=doubtful)
        return list(spans.pairs(covered[group]))

    def prefix(
        self, endpoint: str, continuation_id: str, *, doubtful: bool = False
    ) -> int:
        """How many leading tokens of the continuation can be served there."""
        state = self._vouched(endpoint)
        if state is None:
            return 0
        return state.usable(state.covered(continuation_id, doubtful=doubtful))

    def longest(self, continuation_id: str, *, doubtful: bool = False) -> list[Prefix]:
        """Each endpoint's longest prefix of the continuation, longest first.

        Of the continuation itself or of the ancestor of which it holds most;
        `Prefix.continuation_id` says which. Endpoints that hold nothing are
        left out.
        """
        chain = list(self.ancestry.chain(continuation_id))
        found: list[Prefix] = []
        for name in self._endpoints:
            state = self._vouched(name)
            if state is None:
                continue
            best: Prefix | None = None
            for ancestor, covered in state.covered_of(chain, doubtful=doubtful):
                tokens = state.usable(covered)
                if tokens > (best.tokens if best else 0):
                    best = Prefix(name, ancestor, tokens)
            if best is not None:
                found.append(best)
        return sorted(found, key=lambda prefix: (-prefix.tokens, prefix.endpoint))

    def sharing(
        self, endpoint: str, continuation_id: str, start: int, end: int
    ) -> set[str]:
        """The sessions that hold [start, end) of the continuation, or a part.

        By hash: those that reported one of its blocks. In coordinates: those
        that reported a part of the span, of the continuation itself or, up to
        the extent that they are sure to share, of a relative.
        """
        state = self._vouched(endpoint)
        if state is None:
            return set()
        found: set[str] = set()
        line = set(self.ancestry.chain(continuation_id))
        for number, group in state.groups.items():
            found |= state.hashes.sessions(number, continuation_id, start, end)
            for name in group.claims:
                until = end if name == continuation_id else self._shared(line, name)
                claim = group.claims.get(name)
                if claim and spans.within(claim.certain, start, min(end, until)):
                    found.update(claim.sessions)
        return found

    def holdings(self, endpoint: str | None = None) -> list[Holding]:
        """What each vouched-for endpoint (or one) holds, the largest first."""
        names = self.endpoints() if endpoint is None else [endpoint]
        found: list[Holding] = []
        for name in names:
            state = self._vouched(name)
            if state is not None:
                found += self._holdings(name, state)
        return sorted(found, key=lambda h: (-h.tokens, h.endpoint, h.continuation_id))

    def sessions(self) -> list[tuple[str, int]]:
        """Sessions by resident tokens, the largest first.

        A session counts with its largest continuation at each endpoint: the
        others of one conversation are prefixes of it.
        """
        largest: dict[tuple[str, str], int] = {}
        for holding in self.holdings():
            for session in holding.sessions:
                key = (session, holding.endpoint)
                largest[key] = max(largest.get(key, 0), holding.tokens)
        tokens: Counter[str] = Counter()
        for (session, _), most in largest.items():
            tokens[session] += most
        return sorted(tokens.items(), key=lambda item: (-item[1], item[0]))

    def _shared(self, line: set[str], name: str) -> int:
        """How much a continuation shares for sure with the one of the `line`."""
        for ancestor in self.ancestry.chain(name):
            if ancestor in line:
                return self.ancestry.extent(ancestor) or 0
        return 0

    def _endpoint(self, name: str) -> _Endpoint:
        state = self._endpoints.get(name)
        if state is None:
            state = _Endpoint(self.ancestry, count_duplicates=self._count_duplicates)
            self._endpoints[name] = state
        return state

    def _vouched(self, name: str) -> _Endpoint | None:
        state = self._endpoints.get(name)
        return None if state is None or state.suspended else state

    def _store(self, state: _Endpoint, event: BlockStored, ts: float) -> None:
        if event.medium not in _OWN_MEMORY or event.locality == "REMOTE":
            self.counts["other tier"] += 1
            return
        group = state.groups.get(event.group_idx) or state.group(event.group_idx)
        if event.kv_cache_spec_kind is not None:
            group.kind = event.kv_cache_spec_kind
            group.window = event.kv_cache_spec_sliding_window
        if event.block_size > 0:
            group.block = event.block_size
            group.claims.note_block(event.block_size)
        name, session = event.continuation_id, event.session_id
        if event.block_hashes:
            state.hashes.store(event)
            if name is not None and session is not None:
                state.seen.setdefault(name, {})[session] = ts
        start, end = event.token_offset, event.num_tokens
        if start is not None and end is not None and name is not None:
            if 0 <= start < end:
                group.claims.store(name, session or "", start, end, ts)
            else:
                self.counts["no span"] += 1

    def _remove(self, state: _Endpoint, event: BlockRemoved) -> None:
        if event.medium not in _OWN_MEMORY or event.locality == "REMOTE":
            self.counts["other tier"] += 1
            return
        for block_hash in event.block_hashes:
            state.hashes.remove(event.group_idx, block_hash)
        name, start, end = event.continuation_id, event.token_offset, event.num_tokens
        if name is not None and start is not None and end is not None:
            if 0 <= start < end:
                state.group(event.group_idx).claims.withdraw(name, start, end)
                return
        elif event.block_hashes:
            return
        # It names nothing: what it removed is unknown.
        self.counts["no span"] += 1
        state.clear()

    def _forget(self, state: _Endpoint, before: float) -> None:
        for group in state.groups.values():
            group.claims.forget_doubts(before)
        resident = state.continuations()
        state.seen = {n: seen for n, seen in state.seen.items() if n in resident}

    def _holdings(self, endpoint: str, state: _Endpoint) -> list[Holding]:
        sessions = {name: state.sessions(name) for name in state.continuations()}
        by_hash = {n: state.hashes.residency(n, sessions) for n in state.groups}
        through: dict[str, set[str]] = {}
        for name, seen in sessions.items():
            for ancestor in self.ancestry.chain(name):
                through.setdefault(ancestor, set()).update(seen)
        found: list[Holding] = []
        for name, seen in sessions.items():
            held = {number: group[name].held for number, group in by_hash.items()}
            covered = state.with_claims(name, held, doubtful=False)
            certain = state.combined(covered)
            doubtful = spans.without(
                state.combined(state.with_claims(name, held, doubtful=True)), certain
            )
            if not certain and not doubtful:
                continue
            others = {a for a in self.ancestry.chain(name) if through[a] - seen.keys()}
            extents = (self.ancestry.extent(ancestor) or 0 for ancestor in others)
            shared = spans.within(certain, 0, max(extents, default=0))
            for group in by_hash.values():
                common = spans.common(certain, group[name].shared)
                shared = spans.union(shared, common)
            found.append(
                Holding(
                    endpoint,
                    name,
                    tuple(sorted(seen)),
                    tuple(spans.pairs(certain)),
                    tuple(spans.pairs(doubtful)),
                    state.usable(covered),
                    spans.total(shared),
                    max(seen.values(), default=state.clock),
                )
            )
        return found
