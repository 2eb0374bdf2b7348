# SPDX-License-Identifier: Apache-2.0
"""What `watch` shows, as plain values: who holds what, and how the streams do.

A `Board` follows deliveries; a `Snapshot` is one moment of it, which the
terminal, JSON and the page all show. Times are seconds, lengths tokens.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec

from . import spans
from .index import Holding, Index
from .sequence import (
    REACHED,
    UNREACHED,
    Batch,
    Delivery,
    Dropped,
    Reason,
    Resumed,
    Suspended,
    Trouble,
)
from .wire import BlockStored

_MOST_SESSIONS = 10_000
_MOST_TURNS = 32
_RATE_SECONDS = 5.0
_NOTES = 100


class EndpointRow(msgspec.Struct, kw_only=True):
    """One publisher. `lag` is from the engine's step to this reader.

    `state` is `live`, `suspended` (nothing vouched for, a gap is being healed
    or the connection is gone), `waiting` (no batch yet) or `unreached` (nor any
    answer). `dropped` counts by reason how often all that was known of it became
    void. `resident_tokens` adds up sessions, so shared tokens count for each of
    them.
    """

    endpoint: str
    state: str
    epoch: str | None
    seq: int | None
    lag: float | None
    events_per_second: float
    events: int
    resident_tokens: int
    sessions: int
    dropped: dict[str, int]


class SessionRow(msgspec.Struct, kw_only=True):
    """What one endpoint holds of a session: of its latest continuation.

    Where nothing is left of that, of the one among those before that holds
    most. `length` is the furthest position that was ever reported of any, so
    what is in neither `resident` nor `doubtful` was evicted; unless it is not
    `vouched` for, then nothing is known. `shared` of the resident tokens belong
    to other sessions, too. `age` is since the last report.
    """

    session: str
    continuation: str
    endpoint: str
    tokens: int
    shared: int
    length: int
    resident: list[tuple[int, int]]
    doubtful: list[tuple[int, int]]
    vouched: bool
    age: float


class Note(msgspec.Struct):
    """Something that happened to a stream, in a sentence."""

    at: float
    endpoint: str
    text: str


class Snapshot(msgspec.Struct, kw_only=True):
    """One moment. `known_sessions` counts those that `sessions` leaves out, too."""

    at: float
    endpoints: list[EndpointRow]
    sessions: list[SessionRow]
    known_sessions: int
    notes: list[Note]
    counts: dict[str, int]


SORTS = ("tokens", "shared", "seen", "session")


# Reasons that mean that there is another publisher.
_RESTARTS = (Reason.EPOCH, Reason.ANNOUNCED, Reason.REGRESSION, Reason.HISTORY)


class _Stream:
    def __init__(self) -> None:
        self.state = "waiting"
        self.epoch: str | None = None
        self.seq: int | None = None
        self.lag: float | None = None
        self.events = 0
        self.recent: deque[tuple[float, int]] = deque()
        self.dropped: Counter[str] = Counter()


class _Sighting:
    """A session at an endpoint: how far each continuation went, the latest last."""

    __slots__ = ("lengths", "seen")

    def __init__(self) -> None:
        self.lengths: OrderedDict[str, int] = OrderedDict()
        self.seen = 0.0

    def reach(self, continuation: str, length: int) -> None:
        """The continuation was reported up to a length."""
        self.lengths[continuation] = max(self.lengths.get(continuation, 0), length)
        self.lengths.move_to_end(continuation)
        if len(self.lengths) > _MOST_TURNS:
            self.lengths.popitem(last=False)


class Board:
    """Follows deliveries, for showing."""

    def __init__(self, index: Index | None = None) -> None:
        self.index = Index() if index is None else index
        self._streams: dict[str, _Stream] = {}
        self._sessions: OrderedDict[tuple[str, str], _Sighting] = OrderedDict()
        self._notes: deque[Note] = deque(maxlen=_NOTES)

    def expect(self, endpoint: str) -> None:
        """Show the endpoint before anything came from it."""
        self._streams.setdefault(endpoint, _Stream())

    def apply(self, delivery: Delivery) -> None:
        """Take the next delivery into account."""
        self.index.apply(delivery)
        stream = self._streams.setdefault(delivery.endpoint, _Stream())
        match delivery:
            case Batch():
                self._batch(stream, delivery)
                return
            case Suspended(detail=text):
                stream.state = "suspended"
            case Resumed():
                stream.state, text = "live", "resumed: the publisher is the same one"
            case Dropped(reason=reason, detail=detail):
                stream.dropped[reason] += 1
                stream.state, text = "live", f"all coverage dropped: {detail}"
                if reason in _RESTARTS:
                    text = f"restart: {text}"
            case Trouble(what=what, detail=detail):
                if what in (UNREACHED, REACHED):
                    stream.state = "waiting" if what == REACHED else "unreached"
                text = f"{what}: {detail}"
        self._notes.append(Note(delivery.at, delivery.endpoint, text))

    def snapshot(
        self, now: float, *, sort: str = "tokens", limit: int | None = None
    ) -> Snapshot:
        """The moment `now`, sessions in the order of `sort`, at most `limit`."""
        held = self.index.holdings()
        rows = self._rows({(h.endpoint, h.continuation_id): h for h in held}, now)
        rows.sort(key=_KEYS[sort])
        return Snapshot(
            at=now,
            endpoints=[
                self._endpoint_row(name, stream, rows, now)
                for name, stream in sorted(self._streams.items())
            ],
            sessions=rows[:limit],
            known_sessions=len(rows),
            notes=list(self._notes),
            counts=dict(self.index.counts),
        )

    def _batch(self, stream: _Stream, delivery: Batch) -> None:
        batch = delivery.batch
        if stream.state in ("waiting", "unreached"):
            stream.state = "live"
        stream.epoch, stream.seq = batch.publisher_epoch, delivery.seq
        stream.events += len(batch.events)
        if not delivery.replayed:
            stream.lag = delivery.at - batch.ts
            stream.recent.append((delivery.at, len(batch.events)))
        for event in batch.events:
            if isinstance(event, BlockStored) and event.continuation_id is not None:
                self._sighted(delivery.endpoint, event, batch.ts)

    def _sighted(self, endpoint: str, event: BlockStored, ts: float) -> None:
        assert event.continuation_id is not None
        key = (endpoint, event.session_id or "")
        sighting = self._sessions.get(key)
        if sighting is None:
            sighting = self._sessions[key] = _Sighting()
            if len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(key)
        sighting.seen = ts
        length = event.num_tokens
        if length is None and event.block_hashes:
            length = self.index.end(endpoint, event.block_hashes[-1])
        sighting.reach(event.continuation_id, length or 0)

    def _rows(
        self, held: dict[tuple[str, str], Holding], now: float
    ) -> list[SessionRow]:
        rows: list[SessionRow] = []
        for (endpoint, session), sighting in self._sessions.items():
            turns = [held.get((endpoint, turn)) for turn in sighting.lengths]
            latest, *before = reversed(turns)
            most = max(filter(None, before), key=lambda h: h.tokens, default=None)
            holding = latest or most
            resident = list(holding.certain) if holding else []
            doubtful = list(holding.doubtful) if holding else []
            ends = (end for _, end in resident + doubtful)
            rows.append(
                SessionRow(
                    session=session,
                    continuation=holding.continuation_id
                    if holding
                    else next(reversed(sighting.lengths)),
                    endpoint=endpoint,
                    tokens=holding.tokens if holding else 0,
                    shared=holding.shared if holding else 0,
                    length=max(*sighting.lengths.values(), *ends, 0),
                    resident=resident,
                    doubtful=doubtful,
                    vouched=not self.index.suspended(endpoint),
                    age=max(now - sighting.seen, 0.0),
                )
            )
        return rows

    def _endpoint_row(
        self, name: str, stream: _Stream, rows: list[SessionRow], now: float
    ) -> EndpointRow:
        recent = stream.recent
        while recent and recent[0][0] < now - _RATE_SECONDS:
            recent.popleft()
        here = [row for row in rows if row.endpoint == name]
        return EndpointRow(
            endpoint=name,
            state=stream.state,
            epoch=stream.epoch,
            seq=stream.seq,
            lag=stream.lag,
            events_per_second=sum(count for _, count in recent) / _RATE_SECONDS,
            events=stream.events,
            resident_tokens=sum(row.tokens for row in here),
            sessions=sum(1 for row in here if row.tokens or row.doubtful),
            dropped=dict(stream.dropped),
        )


def fractions(row: SessionRow, cells: int, which: list[tuple[int, int]]) -> list[float]:
    """How much of each of `cells` equal parts of the row is in `which`, 0 to 1."""
    if not row.length:
        return [0.0] * cells
    flat = [border for span in which for border in span]
    borders = [row.length * cell / cells for cell in range(cells + 1)]
    parts: list[float] = []
    for start, end in pairwise(borders):
        first, last = int(start), max(int(end), int(start) + 1)
        parts.append(spans.total(spans.within(flat, first, last)) / (last - first))
    return parts


def shared_until(row: SessionRow) -> int:
    """The position up to which what is resident of the row is shared."""
    left, until = row.shared, 0
    for start, end in row.resident:
        if left <= 0:
            break
        until = min(end, start + left)
        left -= end - start
    return until


_KEYS: dict[str, Callable[[SessionRow], tuple[Any, ...]]] = {
    "tokens": lambda row: (-row.tokens, row.age, row.session),
    "shared": lambda row: (-row.shared, -row.tokens, row.session),
    "seen": lambda row: (row.age, row.session),
    "session": lambda row: (row.session, row.endpoint),
}
