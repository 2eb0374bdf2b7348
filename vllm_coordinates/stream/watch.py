# SPDX-License-Identifier: Apache-2.0
"""The picture in the terminal: one moment of a board, for any width from 80."""

from collections import Counter
from collections.abc import Iterator
from time import localtime, strftime
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from .board import EndpointRow, Note, SessionRow, Snapshot, fractions, shared_until

# A sign of its own for each, since there may be no colour.
_RESIDENT, _COMMON, _PART, _DOUBTFUL, _EVICTED = "█", "▓", "▄", "░", "·"
_OWN, _SHARED, _DOUBT, _GONE = "green", "cyan", "yellow", "bright_black"
_STATES = {
    "live": "green",
    "suspended": "yellow",
    "waiting": "bright_black",
    "unreached": "red",
}
_NOTES_SHOWN = 3
# What a session's row needs beside its bar and its endpoint's number, in columns.
_BESIDE_BAR = 53


class Room(NamedTuple):
    """How many endpoints and sessions a picture shows."""

    endpoints: int = 1_000_000
    sessions: int = 40

    @classmethod
    def within(cls, height: int, snapshot: Snapshot) -> "Room":
        """What leaves the picture within `height` lines.

        Endpoints take what sessions leave of it, or half of it.
        """
        notes = min(len(snapshot.notes), _NOTES_SHOWN)
        # Two headers, a blank line, the legend, and the cursor's line.
        free = height - 5 - (notes + 1 if notes else 0)
        endpoints = len(snapshot.endpoints)
        most = max(free - len(snapshot.sessions), free // 2, 2)
        if endpoints > most:
            # One line says how many are left out.
            return cls(most - 1, max(free - most, 1))
        return cls(endpoints, max(free - endpoints, 1))


class Picture:
    """A snapshot as a rich renderable."""

    def __init__(self, snapshot: Snapshot, room: Room | None = None) -> None:
        self._snapshot = snapshot
        self._room = Room() if room is None else room
        self._whole = room is None

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        snapshot = self._snapshot
        names = [row.endpoint for row in snapshot.endpoints]
        shown = snapshot.sessions[: self._room.sessions]
        yield from _endpoints(snapshot.endpoints, self._room.endpoints)
        yield Text()
        if not snapshot.sessions:
            yield Text(_nothing(snapshot), style="bright_black")
        else:
            beside = _BESIDE_BAR + _digits(names)
            cells = max(options.max_width - beside, 12)
            yield _sessions(shown, names, cells)
            yield _legend(snapshot.known_sessions - len(shown))
        if snapshot.notes:
            yield Text()
            # One line each, or the picture would outgrow the room it was cut for.
            for note in snapshot.notes[-_NOTES_SHOWN:]:
                yield _note(note, names, whole=self._whole)


def _endpoints(rows: list[EndpointRow], most: int) -> Iterator[RenderableType]:
    # Those that need a look come first where not all have room.
    by_need = sorted(range(len(rows)), key=lambda n: (rows[n].state == "live", n))
    shown, hidden = sorted(by_need[:most]), by_need[most:]
    table = _table(expand=False)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("endpoint", no_wrap=True, overflow="ellipsis", max_width=48)
    table.add_column("state", no_wrap=True)
    table.add_column("epoch", no_wrap=True, overflow="crop", max_width=8)
    for title in ("batch", "lag", "events/s", "sessions", "tokens"):
        table.add_column(title, justify="right", no_wrap=True)
    for number in shown:
        row = rows[number]
        table.add_row(
            str(number + 1),
            _clean(row.endpoint),
            Text(row.state, style=_STATES[row.state]),
            _clean(row.epoch or "none"),
            "" if row.seq is None else str(row.seq),
            "" if row.lag is None else duration(row.lag),
            f"{row.events_per_second:,.0f}",
            str(row.sessions),
            count(row.resident_tokens),
        )
    yield table
    if hidden:
        states = Counter(rows[number].state for number in hidden)
        told = ", ".join(f"{states[s]:,} {s}" for s in _STATES if states[s])
        yield Text(f"and {told}", style="bright_black")


def _digits(names: list[str]) -> int:
    return max(len(str(len(names))), 2)


def _sessions(rows: list[SessionRow], names: list[str], cells: int) -> Table:
    table = _table(expand=True)
    table.add_column("session", no_wrap=True, overflow="ellipsis", width=15)
    table.add_column("turn", no_wrap=True, overflow="ellipsis", width=8)
    table.add_column("at", justify="right", no_wrap=True, width=_digits(names))
    table.add_column("tokens", justify="right", no_wrap=True, width=6)
    table.add_column("shared", justify="right", no_wrap=True, width=6)
    table.add_column("what is resident", no_wrap=True, width=cells)
    table.add_column("seen", justify="right", no_wrap=True, width=5)
    for row in rows:
        table.add_row(
            _clean(row.session or "no session"),
            _clean(row.continuation),
            str(names.index(row.endpoint) + 1),
            count(row.tokens),
            count(row.shared) if row.shared else "",
            _bar(row, cells),
            duration(row.age),
        )
    return table


def _bar(row: SessionRow, cells: int) -> Text:
    if not row.vouched:
        return Text("not vouched for", style=_GONE)
    bar = Text()
    resident = fractions(row, cells, row.resident)
    doubtful = fractions(row, cells, row.doubtful)
    shared = fractions(row, cells, [(0, shared_until(row))])
    for held, doubted, common in zip(resident, doubtful, shared, strict=True):
        if held > 0.95:
            bar.append(*((_COMMON, _SHARED) if common > 0.5 else (_RESIDENT, _OWN)))
        elif held > 0:
            bar.append(_PART, style=_SHARED if common > 0.5 else _OWN)
        elif doubted > 0:
            bar.append(_DOUBTFUL, style=_DOUBT)
        else:
            bar.append(_EVICTED, style=_GONE)
    return bar


def _legend(hidden: int) -> Text:
    legend = Text()
    for sign, style, meaning in (
        (_RESIDENT, _OWN, "resident"),
        (_COMMON, _SHARED, "shared"),
        (_PART, _OWN, "in part"),
        (_DOUBTFUL, _DOUBT, "in doubt"),
        (_EVICTED, _GONE, "evicted"),
    ):
        legend.append(sign, style=style).append(f" {meaning}   ", style="bright_black")
    if hidden > 0:
        legend.append(f"{hidden:,} more", style="bright_black")
    return legend


def _note(note: Note, names: list[str], *, whole: bool) -> Text:
    where = names.index(note.endpoint) + 1 if note.endpoint in names else 0
    text = Text(no_wrap=not whole, overflow="fold" if whole else "ellipsis")
    text.append(strftime("%H:%M:%S ", localtime(note.at)), style="bright_black")
    text.append(f"{where} ", style="bright_black")
    return text.append(_clean(note.text))


def _nothing(snapshot: Snapshot) -> str:
    if all(row.state == "unreached" for row in snapshot.endpoints):
        return "No publisher answers: check the addresses, and that the server is up."
    if all(row.state in ("waiting", "unreached") for row in snapshot.endpoints):
        return "No batch yet. A publisher sends one only when its cache changes."
    if not snapshot.counts.get("stored"):
        return "Nothing was admitted yet."
    return (
        "No labeled session yet: requests need both X-Session-ID and X-Continuation-ID."
    )


def _table(*, expand: bool) -> Table:
    return Table(
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="bold",
        expand=expand,
    )


def printable(text: str) -> str:
    """Labels come from clients: nothing in them may drive the terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _clean(text: str) -> Text:
    return Text(printable(text))


def count(number: int) -> str:
    """A number in at most six characters: 12345, 123k, 12.3M."""
    if number < 100_000:
        return str(number)
    if number < 10_000_000:
        return f"{number / 1000:.0f}k"
    return f"{number / 1_000_000:.1f}M"


def duration(seconds: float) -> str:
    """A time span in at most five characters: 3ms, 12s, 5m, 3h, 2d."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f}ms"
    for unit, name, below in ((1, "s", 120), (60, "m", 7200), (3600, "h", 172_800)):
        if seconds < below:
            return f"{seconds / unit:.0f}{name}"
    return f"{seconds / 86_400:.0f}d"
