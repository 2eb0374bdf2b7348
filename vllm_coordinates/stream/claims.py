# SPDX-License-Identifier: Apache-2.0
"""Residency in coordinates: what one KV-cache group of one endpoint reported.

A *claim* is what an endpoint reported resident of one continuation. It is
*certain* until a removal may have concerned it; the contract labels a removal
with the continuation that first admitted the block, and the block may serve
every continuation that has the same tokens up to its end. So a removal takes
its span from the labeled continuation, and from each relative

* for good, as far as the ancestry is sure that they share it;
* into *doubt*, as far as they may share it, or where the relation is unknown.

Certain coverage therefore never holds a phantom, and doubtful coverage is
there for who prefers a good guess (see `Ancestry` for the bounds). A report of
the span makes it certain again.

First removal wins: two blocks may hold the same tokens (requests computed them
side by side), and nothing on the wire tells how many there are. The first of
their removals ends the claim, though the other block may still live: certain
coverage errs to too little until that block is used again and reported.

What is kept is bounded: 100,000 claims, of which 4,096 all in doubt. Those not
reported for the longest time are forgotten first, which errs to too little, too.
"""

from collections.abc import Iterator

from . import spans
from .ancestry import ENDLESS, Ancestry, Beginning, Branch, Likeness
from .removals import Removals
from .spans import Spans

_SWEEP_AT = 1024
_MOST_DOUBTED = 4096
_MOST_CLAIMS = 100_000


class Claim:
    """What is resident of one continuation; positions are tokens.

    `sessions` maps each session that reported it to the batch time (seconds).
    """

    __slots__ = ("certain", "doubtful", "known", "sessions", "settled")

    def __init__(self, *, known: bool, settled: int) -> None:
        self.certain: Spans = []
        self.doubtful: Spans = []
        self.sessions: dict[str, float] = {}
        self.known = known
        self.settled = settled

    def doubt(self, start: int, end: int) -> None:
        """Certain coverage in [start, end) becomes doubtful."""
        certain = self.certain
        if not certain or certain[-1] <= start or certain[0] >= end or start >= end:
            return
        for first, last in spans.pairs(spans.within(certain, start, end)):
            spans.add(self.doubtful, first, last)
        spans.remove(certain, start, end)

    def drop(self, start: int, end: int) -> None:
        """Nothing in [start, end) is covered any more."""
        spans.remove(self.certain, start, end)
        if self.doubtful:
            spans.remove(self.doubtful, start, end)

    def ends_before(self, start: int) -> bool:
        """Whether nothing is covered from `start` on."""
        certain, doubtful = self.certain, self.doubtful
        return (not certain or certain[-1] <= start) and (
            not doubtful or doubtful[-1] <= start
        )

    @property
    def reported(self) -> float:
        """The time of the latest report, in seconds."""
        return max(self.sessions.values())


class _Fork:
    """Removals that concern all that continues one continuation."""

    __slots__ = ("possible", "sure")

    def __init__(self) -> None:
        self.sure = Removals()
        self.possible = Removals()


_Twins = dict[Likeness, dict[str, Removals]]


class Claims:
    """The claims of one group at one endpoint, by continuation.

    Invariant: once a claim is settled, its certain coverage was reported, and
    no later removal is known that may have concerned it. Removals that concern
    many claims at once wait in logs, until a claim is touched or they are swept.
    """

    def __init__(self, ancestry: Ancestry) -> None:
        self._ancestry = ancestry
        self._claims: dict[str, Claim] = {}
        self._unknown = 0
        self._block = 0
        self._stamp = 0
        self._swept = 0
        self._reset_logs()

    def __len__(self) -> int:
        return len(self._claims)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._claims))

    def store(
        self, continuation_id: str, session_id: str, start: int, end: int, ts: float
    ) -> None:
        """[start, end) of the continuation was reported resident."""
        claim = self._claims.get(continuation_id)
        if claim is None:
            known = self._ancestry.knows(continuation_id)
            self._unknown += not known
            claim = Claim(known=known, settled=self._stamp)
            self._claims[continuation_id] = claim
        else:
            self._settle(continuation_id, claim)
        spans.add(claim.certain, start, end)
        if claim.doubtful:
            spans.remove(claim.doubtful, start, end)
        claim.sessions[session_id] = ts
        if len(self._claims) > _MOST_CLAIMS:
            self._sweep()

    def note_block(self, tokens: int) -> None:
        """Blocks of `tokens` tokens exist here; the smallest one counts."""
        if tokens > 0 and not 0 < self._block <= tokens:
            self._block = tokens

    def withdraw(self, continuation_id: str, start: int, end: int) -> None:
        """A block, or a run of them, at [start, end) of the continuation went."""
        claim = self._claims.get(continuation_id)
        if claim is not None:
            claim.drop(start, end)
            self._drop_empty(continuation_id, claim)
        if not self._claims:
            return
        if self._ancestry.knows(continuation_id):
            self._withdraw_from_relatives(continuation_id, start, end)
            if self._unknown:
                self._log(self._from_unknown, start, end)
        else:
            self._log(self._from_all, start, end)
        if self._stamp - self._swept > max(_SWEEP_AT, 8 * len(self._claims)):
            self._sweep()

    def get(self, continuation_id: str) -> Claim | None:
        """The continuation's claim, up to date; None where there is none."""
        claim = self._claims.get(continuation_id)
        if claim is not None:
            self._settle(continuation_id, claim)
        return claim

    def forget(self, continuation_id: str) -> None:
        """Let go of what is known of one continuation."""
        claim = self._claims.pop(continuation_id, None)
        if claim is not None:
            self._unknown -= not claim.known

    def forget_doubts(self, before: float) -> None:
        """Let go of doubts and sessions that nothing renewed since `before`.

        `before` is a batch time in seconds. A doubt whose block was really
        gone is never settled by an event, so it has to end some time.
        """
        for name, claim in list(self._claims.items()):
            self._settle(name, claim)
            latest = claim.reported
            if latest < before:
                claim.doubtful.clear()
                self._drop_empty(name, claim)
            if len(claim.sessions) > 1:
                recent = {s: ts for s, ts in claim.sessions.items() if ts >= before}
                claim.sessions = recent or {
                    s: ts for s, ts in claim.sessions.items() if ts == latest
                }

    def _withdraw_from_relatives(
        self, continuation_id: str, start: int, end: int
    ) -> None:
        block = self._block or 1
        kin = self._ancestry.relatives(continuation_id, start, block)
        claims = self._claims
        for name, sure in kin.line:
            claim = claims.get(name)
            if claim is None or claim.ends_before(start):
                continue
            if sure >= end:
                claim.drop(start, end)
            else:
                shared = _reach(start, end, sure, block)
                claim.drop(start, shared)
                claim.doubt(shared, end)
            self._drop_empty(name, claim)
        for name, likeness, child in kin.twins:
            alike = self._twins.setdefault(name, {}).setdefault(likeness, {})
            self._log(alike.setdefault(child, Removals()), start, end)
        for name, beginning, sure, possible in kin.forks:
            fork = self._forks.setdefault(name, {}).setdefault(beginning, _Fork())
            shared = _reach(start, end, sure, block)
            if start < shared:
                self._log(fork.sure, start, shared)
            reach = _reach(start, end, possible, block)
            if shared < reach:
                self._log(fork.possible, shared, reach)

    def _log(self, removals: Removals, start: int, end: int) -> None:
        self._stamp += 1
        removals.add(self._stamp, start, end)

    def _settle(self, continuation_id: str, claim: Claim) -> None:
        """Apply the removals that wait for this claim."""
        since = claim.settled
        if since < self._stamp:
            for start, end in self._from_all.since(since):
                claim.doubt(start, end)
            if not claim.known:
                for start, end in self._from_unknown.since(since):
                    claim.doubt(start, end)
            if self._forks or self._twins:
                self._settle_branches(continuation_id, claim, since)
            claim.settled = self._stamp
        known = self._ancestry.knows(continuation_id)
        if claim.known != known:
            # What was forgotten was no relative's since: it cannot be vouched for.
            if claim.known:
                claim.doubt(0, ENDLESS)
            claim.known = known
            self._unknown += -1 if known else 1

    def _settle_branches(self, continuation_id: str, claim: Claim, since: int) -> None:
        block = self._block or 1
        for branch in self._ancestry.branches(continuation_id):
            twins = self._twins.get(branch.continuation_id)
            if twins is not None:
                self._settle_twins(twins, branch, claim, since)
            forks = self._forks.get(branch.continuation_id)
            if forks is None:
                continue
            for fork in map(forks.get, branch.beginnings):
                if fork is not None:
                    for start, end in fork.sure.since(since):
                        claim.drop(start, end)
                    for start, end in fork.possible.since(since):
                        claim.doubt(start, _reach(start, end, branch.ceiling, block))

    @staticmethod
    def _settle_twins(twins: _Twins, branch: Branch, claim: Claim, since: int) -> None:
        for alike in filter(None, map(twins.get, branch.twins())):
            for child, removals in alike.items():
                if child != branch.child:
                    for start, end in removals.since(since):
                        claim.doubt(start, end)

    def _sweep(self) -> None:
        """Bring every claim up to date, so that the logs do not grow."""
        for name, claim in list(self._claims.items()):
            self._settle(name, claim)
            self._drop_empty(name, claim)
        self._swept = self._stamp
        self._reset_logs()
        doubted = [name for name, claim in self._claims.items() if not claim.certain]
        self._forget_oldest(doubted, _MOST_DOUBTED)
        self._forget_oldest(list(self._claims), _MOST_CLAIMS - 1)

    def _forget_oldest(self, names: list[str], most: int) -> None:
        if len(names) > most:
            names.sort(key=lambda name: self._claims[name].reported)
            for name in names[: len(names) - most * 3 // 4]:
                self.forget(name)

    def _reset_logs(self) -> None:
        # By whom a removal concerns: all claims, those of unknown ancestry, those
        # that continue a continuation with a turn of some beginning, and with one
        # that is a twin of another, which is named.
        self._from_all = Removals()
        self._from_unknown = Removals()
        self._forks: dict[str, dict[Beginning, _Fork]] = {}
        self._twins: dict[str, _Twins] = {}

    def _drop_empty(self, name: str, claim: Claim) -> None:
        if not claim.certain and not claim.doubtful:
            self.forget(name)


def _reach(start: int, end: int, limit: int, block: int) -> int:
    """Where the blocks from `start` on that end by `limit` end, at most `end`.

    A block is shared whole or not at all.
    """
    return max(min(end, start + (limit - start) // block * block), start)
