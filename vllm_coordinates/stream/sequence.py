# SPDX-License-Identifier: Apache-2.0
"""From one publisher's frames to ordered batches, without any socket.

A publisher numbers its batches from 0. The sequencer hands them on in that
order, once each, and says whenever what was learned so far cannot be trusted:

* a gap or a lost connection *suspends* the publisher: nothing it holds is
  vouched for. The replay socket then heals the gap, and proves, with the last
  batch that was read, that the publisher is still the same one;
* what cannot be healed, and every sign of a restart (another epoch, a sequence
  number that went back, a history that differs), *drops* its coverage.

Frames wait while a replay is on its way. Those that may be another publisher's do
not count: what the living one sent before it was asked is part of its answer.

Deliveries are plain values; `subscriber` makes them from sockets, `record`
keeps them in a file, and `index` and `verify` read them.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from .wire import EventBatch, WireError, decode_batch


class Reason(StrEnum):
    """Why a publisher's coverage was dropped: how the reader knew."""

    EPOCH = "epoch"
    """A batch carries another `publisher_epoch`."""
    ANNOUNCED = "announced"
    """`/kv_event_sources` shows another `publisher_epoch`."""
    REGRESSION = "regression"
    """A sequence number went back, with a batch that was not seen before."""
    HISTORY = "history"
    """The replay socket's history is not the one that was read."""
    GAP = "gap"
    """Batches are lost, and the replay socket could not give them."""
    CONNECTION = "connection"
    """The connection was lost, and nothing can tell whether it is the same."""
    UNREADABLE = "unreadable"
    """A batch could not be read, so what it removed is unknown."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The publisher's next batch, and the frame it came in."""

    endpoint: str
    at: float
    seq: int
    payload: bytes
    batch: EventBatch
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Suspended:
    """Nothing that the publisher holds is vouched for until further notice."""

    endpoint: str
    at: float
    detail: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """What was learned of the publisher is vouched for again."""

    endpoint: str
    at: float


@dataclass(frozen=True, slots=True)
class Dropped:
    """Everything that was learned of the publisher so far is void."""

    endpoint: str
    at: float
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something a person may want to know; no coverage changes by it.

    `what` is a word for its kind; `detail` says it in a sentence.
    """

    endpoint: str
    at: float
    what: str
    detail: str


UNREACHED, REACHED = "unreached", "reached"
"""What `Trouble` is called where no publisher answers at an address, and its end."""
LATE, GONE = "late", "gone"
"""And where reading begins behind batch 0, or a batch is of a replaced epoch."""


Delivery = Batch | Suspended | Resumed | Dropped | Trouble
"""`endpoint` names the publisher; `at` is the reader's clock, in seconds."""

_REMEMBERED = 1024
_HELD_BYTES = 256 << 20
_CALM_SECONDS = 5.0


class Sequencer:
    """One publisher's frames in, deliveries out.

    Where `replayable`, whoever owns the replay socket looks at `wants` after
    each call: the sequence number to ask from, or None. It answers the newest
    such question with `replay`, and none from before the connection was lost.
    Frames that arrive meanwhile are held.
    """

    def __init__(self, endpoint: str, *, replayable: bool = False) -> None:
        self.endpoint = endpoint
        self.wants: int | None = None
        self._replayable = replayable
        self._last: int | None = None
        self._seen: OrderedDict[int, int] = OrderedDict()
        self._epoch: str | None = None
        self._announced: str | None = None
        self._told: str | None = None
        self._retired: deque[str] = deque(maxlen=16)
        self._suspended = False
        self._healing = False
        self._away = False
        self._reconnected = False
        self._progress = True
        self._restarted = float("-inf")
        self._held: list[tuple[int, bytes, float]] = []
        self._held_bytes = 0
        self._heard = -1

    def frame(self, seq: int, payload: bytes, at: float) -> list[Delivery]:
        """A live frame arrived."""
        if self._away:
            # Who sent it is not known yet. What the next one sent is in its history.
            return []
        if not self._healing:
            return self._read(seq, payload, at)
        self._hold(seq, payload, at)
        if self._held_bytes > _HELD_BYTES:
            return self.replay([], "more arrived than can be held meanwhile", at)
        return []

    def begin(self) -> bool:
        """Before any frame: want all that the publisher still remembers.

        False where frames came first.
        """
        begun = self._last is not None or self._healing or self._away
        if begun or not self._replayable:
            return False
        self._heal(0)
        return True

    def replay(
        self, frames: Sequence[tuple[int, bytes]], failure: str | None, at: float
    ) -> list[Delivery]:
        """The replay socket answered, up to its end mark, or told a `failure`.

        Of an answer that failed nothing counts: what is missing may be removals.
        """
        if not self._healing:
            return []
        self._healing, self.wants = False, None
        found: list[Delivery] = []
        if self._last is not None:
            dropped = self._check_history(self._last, frames, failure, at)
            found += dropped
            if self._healing:
                return found
            if any(drop.reason is not Reason.GAP for drop in dropped):
                frames = ()
        elif failure is not None:
            found.append(self._trouble("replay", failure, at))
        if failure is not None:
            frames = ()
        for seq, payload in frames:
            if self._last is not None and seq <= self._last:
                continue
            if self._last is not None and seq > self._last + 1 and self._progress:
                # The publisher drops replies to a reader that is too slow.
                self._heal(self._last)
                return found
            found += self._read(seq, payload, at, replayed=True)
        if self._last is not None and self._last < self._heard:
            # It is the same publisher, and its answer lacks the end.
            if self._progress:
                self._heal(self._last)
                return found
            detail = f"{_between(self._last, self._heard + 1)} lost"
            found.append(self._drop(Reason.GAP, detail, at))
        if self._suspended:
            self._suspended = False
            found.append(Resumed(self.endpoint, at))
        return found + self._release_held()

    def disconnected(self, at: float) -> list[Delivery]:
        """The connection to the publisher is gone."""
        if self._replayable:
            # What the next one answers is asked for anew, in `connected`.
            self._away, self._healing, self.wants = True, False, None
            heard = [seq for seq, payload, _ in self._held if _decoded(payload)]
            self._heard = max([self._heard, *heard])
            self._held, self._held_bytes = [], 0
        if self._last is None or self._suspended:
            return []
        if self._replayable or self._epoch is not None:
            return self._suspend("the connection was lost", at)
        detail = (
            "the connection was lost, and there is neither an epoch nor a replay"
            " socket to prove that it is the same publisher"
        )
        return [self._drop(Reason.CONNECTION, detail, at)]

    def connected(self, at: float) -> list[Delivery]:
        """There is a connection to some publisher again."""
        if self._away:
            self._away, self._reconnected = False, True
            self._heal(0 if self._last is None else self._last)
        return []

    def announced(self, epoch: str | None, at: float) -> list[Delivery]:
        """`/kv_event_sources` shows `epoch` for this publisher."""
        if epoch is None or epoch == self._told:
            # Said before: the publisher may have gone on to another since.
            return []
        self._told = epoch
        known = self._epoch or self._announced
        if known is None or known == epoch:
            self._announced = epoch
            return []
        detail = f"/kv_event_sources shows epoch {epoch} instead of {known}"
        begun = self._last is not None
        self._forget_held()
        dropped = self._drop(Reason.ANNOUNCED, detail, at)
        self._announced = epoch
        if epoch in self._retired:
            self._retired.remove(epoch)
        if self._replayable and not self._away:
            self._heal(0)
        return [dropped] if begun else []

    def _read(
        self, seq: int, payload: bytes, at: float, *, replayed: bool = False
    ) -> list[Delivery]:
        last = self._last
        try:
            batch = decode_batch(payload)
        except WireError as error:
            return self._unreadable(seq, str(error), at, replayed=replayed)
        if not replayed and self._is_gone(batch.publisher_epoch):
            detail = f"batch {seq} is of epoch {batch.publisher_epoch}, which is gone"
            return [self._trouble(GONE, detail, at)]
        found: list[Delivery] = []
        if last is not None and batch.publisher_epoch != self._epoch:
            found.append(self._restart(Reason.EPOCH, self._epoch_detail(batch), at))
        elif last is not None and seq <= last:
            if self._seen.get(seq) == hash(payload):
                return [self._trouble("repeated", f"batch {seq} came again", at)]
            detail = f"batch {seq} came after batch {last}"
            found.append(self._restart(Reason.REGRESSION, detail, at))
        elif last is not None and seq > last + 1:
            if self._replayable and self._progress:
                self._hold(seq, payload, at)
                self._heal(last)
                self._reconnected = False
                return self._suspend(f"{_between(last, seq)} missing", at)
            detail = f"{_between(last, seq)} lost"
            if not self._replayable:
                detail += ", and there is no replay socket"
            found.append(self._drop(Reason.GAP, detail, at))
        self._epoch = batch.publisher_epoch
        if self._last is None and seq > 0:
            if not replayed and self._may_begin():
                self._hold(seq, payload, at)
                self._heal(0)
                return found
            detail = f"reading begins at batch {seq}; what came before is unknown"
            found.append(self._trouble(LATE, detail, at))
        if self._suspended and not replayed:
            self._suspended = False
            found.append(Resumed(self.endpoint, at))
        self._accept(seq, payload)
        found.append(Batch(self.endpoint, at, seq, payload, batch, replayed))
        return found

    def _accept(self, seq: int, payload: bytes) -> None:
        self._last = seq
        self._progress = True
        self._seen[seq] = hash(payload)
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)

    def _unreadable(
        self, seq: int, why: str, at: float, *, replayed: bool
    ) -> list[Delivery]:
        detail = f"batch {seq} is unreadable: {why}"
        if self._last is None or seq != self._last + 1:
            # Not the next batch: a stray frame. If it took a batch's place,
            # that batch will be missed.
            return [self._trouble("unreadable", detail, at)]
        if self._replayable and self._progress and not replayed:
            self._heal(self._last)
            return [
                self._trouble("unreadable", detail, at),
                *self._suspend(detail, at),
            ]
        return [self._drop(Reason.UNREADABLE, detail, at)]

    def _check_history(
        self,
        last: int,
        frames: Sequence[tuple[int, bytes]],
        failure: str | None,
        at: float,
    ) -> list[Dropped]:
        """Prove that the replayed history continues the one that was read."""
        if failure is not None:
            return [self._drop(Reason.GAP, f"the replay socket failed: {failure}", at)]
        reason = Reason.HISTORY
        if not frames:
            detail = f"the publisher remembers no batch from {last} on"
        elif frames[0][0] == last:
            if hash(frames[0][1]) == self._seen.get(last):
                return []
            detail = f"the publisher's batch {last} is another one than was read"
        elif frames[0][0] == last + 1 and self._epoch is not None:
            batch = _decoded(frames[0][1])
            if batch is None or batch.publisher_epoch == self._epoch:
                return []
            reason, detail = Reason.EPOCH, self._epoch_detail(batch)
        else:
            detail = f"the publisher remembers batches from {frames[0][0]} on only"
            return [self._drop(Reason.GAP, f"{detail}, {last} was the last read", at)]
        if not self._reconnected:
            self._forget_held()
        dropped = self._restart(reason, detail, at)
        if self._may_begin():
            self._heal(0)
        return [dropped]

    def _release_held(self) -> list[Delivery]:
        held, self._held, self._held_bytes = self._held, [], 0
        found: list[Delivery] = []
        for seq, payload, at in held:
            if self._healing or self._seen.get(seq) != hash(payload):
                found += self.frame(seq, payload, at)
        return found

    def _hold(self, seq: int, payload: bytes, at: float) -> None:
        self._held.append((seq, payload, at))
        self._held_bytes += len(payload)

    def _forget_held(self) -> None:
        """The publisher that was read is gone: keep only what is surely another's."""
        held, self._held, self._held_bytes = self._held, [], 0
        for seq, payload, at in held:
            batch = _decoded(payload)
            if batch and batch.publisher_epoch not in (None, self._epoch):
                self._hold(seq, payload, at)

    def _heal(self, since: int) -> None:
        self._healing, self._progress, self.wants = True, False, since

    def _may_begin(self) -> bool:
        """Whether to ask for history: not where publishers take turns."""
        return self._replayable and self._progress

    def _suspend(self, detail: str, at: float) -> list[Delivery]:
        if self._suspended:
            return []
        self._suspended = True
        return [Suspended(self.endpoint, at, detail)]

    def _restart(self, reason: Reason, detail: str, at: float) -> Dropped:
        if at - self._restarted < _CALM_SECONDS:
            detail += "; are two publishers behind one endpoint?"
            self._progress = False
        else:
            self._progress = True
        self._restarted = at
        return self._drop(reason, detail, at)

    def _drop(self, reason: Reason, detail: str, at: float) -> Dropped:
        if reason not in (Reason.GAP, Reason.UNREADABLE):
            self._retired.extend(e for e in (self._epoch, self._announced) if e)
            self._epoch = self._announced = None
            self._seen.clear()
        self._last = None
        self._heard = -1
        self._suspended = False
        return Dropped(self.endpoint, at, reason, detail)

    def _is_gone(self, epoch: str | None) -> bool:
        """Whether the server shows another epoch, and this one is an old one."""
        stands = epoch in (self._told, self._epoch)
        return self._told is not None and not stands and epoch in self._retired

    def _epoch_detail(self, batch: EventBatch) -> str:
        detail = f"epoch {batch.publisher_epoch} follows epoch {self._epoch}"
        if batch.publisher_epoch in self._retired:
            detail += ", which had replaced it"
        return detail

    def _trouble(self, what: str, detail: str, at: float) -> Trouble:
        return Trouble(self.endpoint, at, what, detail)


def _decoded(payload: bytes) -> EventBatch | None:
    try:
        return decode_batch(payload)
    except WireError:
        return None


def _between(last: int, seq: int) -> str:
    if seq == last + 2:
        return f"batch {last + 1} is"
    return f"batches {last + 1} to {seq - 1} are"
