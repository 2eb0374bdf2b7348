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
"""

from collections.abc import Iterator

from . import spans
from .ancestry import Ancestry
from .spans import Spans

_SWEEP_AT = 1024


class Claim:
    """What is resident of one continuation; positions are tokens.

    `sessions` maps each session that reported it to the batch time (seconds).
    """

    __slots__ = ("certain", "doubtful", "known", "sessions", "swept")

    def __init__(self, *, known: bool, swept: int) -> None:
        self.certain: Spans = []
        self.doubtful: Spans = []
        self.sessions: dict[str, float] = {}
        self.known = known
        self.swept = swept

    def doubt(self, start: int, end: int) -> None:
        """Certain coverage in [start, end) becomes doubtful."""
        certain = self.certain
        if not certain or certain[-1] <= start or certain[0] >= end:
            return
        for first, last in spans.pairs(spans.within(certain, start, end)):
            spans.add(self.doubtful, first, last)
        spans.remove(certain, start, end)

    def drop(self, start: int, end: int) -> None:
        """Nothing in [start, end) is covered any more."""
        spans.remove(self.certain, start, end)
        if self.doubtful:
            spans.remove(self.doubtful, start, end)


class Claims:
    """The claims of one group at one endpoint, by continuation.

    Invariant: a claim's certain coverage was reported, and no later removal
    is known that may have concerned it.
    """

    def __init__(self, ancestry: Ancestry) -> None:
        self._ancestry = ancestry
        self._claims: dict[str, Claim] = {}
        self._unknown = 0
        self._block = 0
        # Removals that concern claims of unknown ancestry, applied when such a
        # claim is next read: (start, end, whether known claims are concerned).
        self._pending: list[tuple[int, int, bool]] = []
        self._swept = 0

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
            swept = self._swept + len(self._pending)
            claim = self._claims[continuation_id] = Claim(known=known, swept=swept)
        else:
            self._settle(continuation_id, claim)
        spans.add(claim.certain, start, end)
        if claim.doubtful:
            spans.remove(claim.doubtful, start, end)
        claim.sessions[session_id] = ts

    def note_block(self, tokens: int) -> None:
        """Blocks of `tokens` tokens exist here; the smallest one counts."""
        if tokens > 0 and not 0 < self._block <= tokens:
            self._block = tokens

    def withdraw(self, continuation_id: str, start: int, end: int) -> None:
        """A block, or a run of them, at [start, end) of the continuation went."""
        claims = self._claims
        claim = claims.get(continuation_id)
        if claim is not None:
            self._settle(continuation_id, claim)
            claim.drop(start, end)
            self._drop_empty(continuation_id, claim)
        if not claims:
            return
        known = self._ancestry.knows(continuation_id)
        if self._unknown or not known:
            self._pending.append((start, end, not known))
            if len(self._pending) >= _SWEEP_AT:
                self._sweep()
        if known:
            self._withdraw_from_relatives(continuation_id, start, end)

    def get(self, continuation_id: str) -> Claim | None:
        """The continuation's claim, up to date; None where there is none."""
        claim = self._claims.get(continuation_id)
        if claim is not None:
            self._settle(continuation_id, claim)
        return claim

    def forget(self, before: float) -> None:
        """Let go of doubts and sessions that nothing renewed since `before`.

        `before` is a batch time in seconds. A doubt whose block was really
        gone is never settled by an event, so it has to end some time.
        """
        for name, claim in list(self._claims.items()):
            self._settle(name, claim)
            latest = max(claim.sessions.values())
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
        for name, sure, possible in self._ancestry.relatives(
            continuation_id, start, block
        ):
            claim = self._claims.get(name)
            if claim is None:
                continue
            if start < sure:
                claim.drop(start, min(end, sure))
            # A block is shared whole or not at all.
            reach = min(end, start + (possible - start) // block * block)
            claim.doubt(max(start, sure), reach)
            self._drop_empty(name, claim)

    def _settle(self, continuation_id: str, claim: Claim) -> None:
        """Apply the removals that wait for this claim."""
        since = claim.swept - self._swept
        if since < len(self._pending):
            for start, end, everyone in self._pending[since:]:
                if everyone or not claim.known:
                    claim.doubt(start, end)
            claim.swept = self._swept + len(self._pending)
        if not claim.known and self._ancestry.knows(continuation_id):
            claim.known = True
            self._unknown -= 1

    def _sweep(self) -> None:
        """Bring every claim up to date, so that the log does not grow."""
        everything: Spans = []
        for_known: Spans = []
        for start, end, everyone in self._pending:
            spans.add(everything, start, end)
            if everyone:
                spans.add(for_known, start, end)
        for name, claim in list(self._claims.items()):
            if claim.swept == self._swept:
                merged = for_known if claim.known else everything
                for start, end in spans.pairs(merged):
                    claim.doubt(start, end)
                claim.swept = self._swept + len(self._pending)
            self._settle(name, claim)
            self._drop_empty(name, claim)
        self._swept += len(self._pending)
        self._pending.clear()

    def _drop_empty(self, name: str, claim: Claim) -> None:
        if not claim.certain and not claim.doubtful:
            del self._claims[name]
            self._unknown -= not claim.known
