# SPDX-License-Identifier: Apache-2.0
"""What the events said beside what was sent, and whether they agree."""

from dataclasses import dataclass
from itertools import zip_longest

from rich.table import Table

from cpu_engine.conversation import Sent
from cpu_engine.tap import Frame
from vllm_coordinates.stream.wire import BlockRemoved, BlockStored, Event

# What fits in 80 columns; enough to tell them apart.
_SHOWN_OF_LABEL = 12
_SHOWN_OF_EPOCH = 6


@dataclass(frozen=True)
class Exchange:
    """A turn, and the frames that were published because of it."""

    sent: Sent
    frames: tuple[Frame, ...]

    @property
    def events(self) -> list[tuple[Event, str | None]]:
        """The events in order, each with the publisher's epoch of its batch."""
        batches = [frame.batch for frame in self.frames]
        return [(event, b.publisher_epoch) for b in batches for event in b.events]

    @property
    def stored(self) -> list[BlockStored]:
        """The admissions among the events."""
        return [e for e, _ in self.events if isinstance(e, BlockStored)]

    @property
    def removed(self) -> list[BlockRemoved]:
        """The evictions among the events."""
        return [e for e, _ in self.events if isinstance(e, BlockRemoved)]


def faults(exchanges: list[Exchange], block_size: int, epoch: str | None) -> list[str]:
    """What is missing from the events, one sentence each; empty if nothing is.

    Args:
        exchanges: All turns in the order in which they were played.
        block_size: The server's, in tokens.
        epoch: The publisher's, from `GET /kv_event_sources`.
    """
    found = []
    if epoch is None:
        found.append("GET /kv_event_sources shows no publisher_epoch.")
    for number, exchange in enumerate(exchanges, start=1):
        found += [f"Turn {number}: {f}" for f in _faults(exchange, block_size, epoch)]
    if not any(exchange.removed for exchange in exchanges):
        found.append("No eviction was published.")
    return found


def _faults(exchange: Exchange, block_size: int, epoch: str | None) -> list[str]:
    found, sent = [], exchange.sent
    tokens = tuple(t for event in exchange.stored for t in event.token_ids)
    if tokens != sent.admitted(block_size):
        found.append("the admissions hold other tokens than were sent.")
    if any(event.session_id != sent.session_id for event in exchange.stored):
        found.append(f"an admission lacks session_id {sent.session_id}.")
    if any(event.continuation_id != sent.continuation_id for event in exchange.stored):
        found.append(f"an admission lacks continuation_id {sent.continuation_id}.")
    if any(event.continuation_id is None for event in exchange.removed):
        found.append("an eviction lacks a continuation_id.")
    if any(published_under != epoch for _, published_under in exchange.events):
        found.append(f"a batch lacks publisher_epoch {epoch}.")
    return found


def table(exchanges: list[Exchange], block_size: int) -> Table:
    """The events of every turn, beside the turn; fits in 80 columns."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("sent\nsession", "\ncontinuation"):
        drawn.add_column(heading, no_wrap=True)
    for heading in ("\ntokens", "\ncached"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    drawn.add_column("|\n|")
    for heading in ("said\nevent", "\nsession", "\ncontinuation"):
        drawn.add_column(heading, no_wrap=True)
    drawn.add_column("\ntokens", justify="right", no_wrap=True)
    drawn.add_column("\nepoch", no_wrap=True)
    for exchange in exchanges:
        said = [_said(event, epoch, block_size) for event, epoch in exchange.events]
        for sent, row in zip_longest([_sent(exchange.sent)], said, fillvalue=None):
            drawn.add_row(*(sent or [""] * 4), "|", *(row or ["nothing"]))
    return drawn


def _sent(sent: Sent) -> list[str]:
    return [
        sent.session_id,
        sent.continuation_id[:_SHOWN_OF_LABEL],
        str(len(sent.tokens)),
        str(sent.cached),
    ]


def _said(event: Event, epoch: str | None, block_size: int) -> list[str]:
    shown_epoch = (epoch or "-")[:_SHOWN_OF_EPOCH]
    match event:
        case BlockStored():
            session, tokens = event.session_id or "-", len(event.token_ids)
        case BlockRemoved():
            # A removal names the continuation that brought the block in.
            session, tokens = "", block_size * len(event.block_hashes)
        case _:
            return [type(event).__name__, "", "", "", shown_epoch]
    kind = "stored" if isinstance(event, BlockStored) else "removed"
    continuation = (event.continuation_id or "-")[:_SHOWN_OF_LABEL]
    return [kind, session, continuation, str(tokens), shown_epoch]
