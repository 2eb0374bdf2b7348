# SPDX-License-Identifier: Apache-2.0
"""What the stream's commands do; `cli` says how they are typed."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from io import TextIOWrapper
from itertools import chain
from json import dumps
from pathlib import Path

import msgspec
import typer
import zmq
from rich.console import Console
from rich.live import Live

from vllm_coordinates.errors import CoordinatesError, StoppedError, WriteError

from .board import SORTS, Board
from .page import Pages
from .record import CUT_OFF, Recorder, read
from .sequence import Batch, Delivery, Trouble
from .sources import EpochPoll, Publisher, SourceError, ask
from .subscriber import Source, Subscriber
from .verify import Verifier
from .watch import Picture, Room, printable

_SERVER = ("http://", "https://")
_ONCE_SECONDS = 4.0
"""How long one picture of live sources is waited for: it takes 3 seconds to know
that nobody answers at an address."""


class SourceFormError(CoordinatesError):
    """An argument that names no source."""

    exit_code = 2


def record(
    source: str,
    file: Path,
    *,
    ranks: int,
    seconds: float | None,
    batches: int | None,
) -> None:
    """Write what a source sends to a new file, until `batches` or `seconds` are over.

    Raises:
        SourceFormError: The file is there already, or `source` is none.
        SourceError: It sent no batch; there is no file then.
        WriteError: The file cannot be written.
    """
    _check_regular(file)
    if file.exists():
        raise SourceFormError(
            f"{file} exists: name another file, recordings are not overwritten"
        )
    count = 0
    feed = _Feed([source], ranks)
    try:
        with feed, file.open("xb") as output, suppress(KeyboardInterrupt):
            recorder = Recorder(output)
            for delivery in feed.deliveries(seconds):
                if delivery is None:
                    continue
                recorder.write(delivery)
                count += isinstance(delivery, Batch)
                if count == batches:
                    break
    except OSError as error:
        raise WriteError(
            f"{file} cannot be written ({error.strerror}): make room for it, or name"
            " a file elsewhere"
        ) from error
    if not count:
        file.unlink()
        raise feed.silent("record")
    typer.echo(f"{count} batches in {file}, {file.stat().st_size:,} bytes")


def watch(
    sources: list[str],
    *,
    ranks: int,
    once: bool,
    json: bool,
    html: Path | None,
    sort: str,
    every: float,
    seconds: float | None,
) -> None:
    """Show a picture of what every session holds, every so many seconds.

    Where it is shown `once`, live sources are read for `seconds`, or else until
    each has sent a batch, for at most 4 seconds.

    Raises:
        SourceFormError: A source is none, or `sort` is no order.
        SourceError: It is shown once, and no publisher answered; the picture says so.
        WriteError: The page cannot be written.
    """
    if sort not in SORTS:
        raise SourceFormError(f"--sort {sort} is none of {', '.join(SORTS)}")
    if html is not None:
        _check_regular(html)
    _print_anything()
    board, pages = Board(), Pages()
    console = Console()
    with ExitStack() as stack:
        feed = stack.enter_context(_Feed(sources, ranks, recordings=True))
        for name in feed.names:
            board.expect(name)
        for news in feed.unlabeled:
            board.apply(news)
        live: Live | None = None
        if not once and not json and console.is_terminal:
            live = stack.enter_context(Live(console=console, screen=True))

        def show(*, last: bool) -> None:
            snapshot = board.snapshot(feed.now(), sort=sort)
            if html is not None:
                pages.add(snapshot, html, finish=last)
            if live is not None:
                room = Room.within(console.height, snapshot)
                live.update(Picture(snapshot, room), refresh=True)
            elif json and (last or not once):
                typer.echo(_json_line(snapshot))

        once_sent = once and seconds is None
        deliveries = feed.deliveries(
            _ONCE_SECONDS if once_sent else seconds, until_sent=once_sent
        )
        _follow(feed, deliveries, board, show, every=every)
    if not json:
        # The alternate screen is gone with what it showed.
        console.print(Picture(board.snapshot(feed.now(), sort=sort)))
    if once and feed.unreached:
        raise feed.silent("show")


def verify(source: str, *, ranks: int, seconds: float | None, json: bool) -> None:
    """Print where a stream breaks the contract; exit code 1 if it does anywhere.

    Raises:
        SourceFormError: `source` is neither a source nor a recording.
        SourceError: It sent no batch to check.
    """
    _print_anything()
    verifier, violations = Verifier(), 0
    feed = _Feed([source], ranks, recordings=True)
    with feed, suppress(KeyboardInterrupt):
        for delivery in feed.deliveries(seconds):
            if delivery is None:
                continue
            if isinstance(delivery, Trouble) and delivery.what == CUT_OFF:
                typer.echo(f"warning: {printable(delivery.detail)}", err=True)
            for violation in verifier.apply(delivery):
                violations += 1
                if json:
                    typer.echo(_json_line(violation))
                else:
                    typer.echo(printable(str(violation)))
    if not verifier.batches:
        raise feed.silent("check")
    if json:
        summary = {
            "batches": verifier.batches,
            "events": verifier.events,
            "violations": violations,
            "seen": verifier.kinds,
        }
        typer.echo(_json_line(summary))
    else:
        seen = ", ".join(f"{kind} ({n})" for kind, n in sorted(verifier.kinds.items()))
        typer.echo(
            f"{violations} violations in {verifier.events} events of"
            f" {verifier.batches} batches; seen: {seen or 'nothing'}"
        )
    if violations:
        raise typer.Exit(1)


class _Feed:
    """Deliveries of sockets, or of recordings."""

    def __init__(
        self, arguments: list[str], ranks: int, *, recordings: bool = False
    ) -> None:
        self._arguments = arguments
        self._unreached: list[str] = []
        self._sent: set[str] = set()
        self._ranks = ranks
        self.unlabeled: list[Trouble] = []
        """What the servers say of publishers whose events bear no labels."""
        self._files = [Path(a) for a in arguments if recordings and "://" not in a]
        for path in self._files:
            if not path.exists():
                raise SourceFormError(
                    f"{path} is neither a file nor a source: write http://host:8000"
                    " for a server, tcp://host:5557 for a publisher"
                )
        if self._files and len(self._files) < len(arguments):
            raise SourceFormError("recordings and live sources cannot be read at once")
        for argument in arguments:
            if ranks > 1 and (self._files or argument.startswith(_SERVER)):
                raise SourceFormError(
                    "--ranks counts up from a publisher's address, as"
                    f" tcp://host:5557, and {argument} is none: leave it out, all"
                    " ranks are read anyway"
                )
        if self._files:
            self.names: list[str] = []
            return
        servers = [a for a in arguments if a.startswith(_SERVER)]
        sources = list(chain.from_iterable(map(self._sources_of, arguments)))
        self.names = [source.endpoint for source in sources]
        self._subscriber = _subscribe(sources)
        self._poll = EpochPoll(servers) if servers else None

    def _sources_of(self, argument: str) -> list[Source]:
        if not argument.startswith(_SERVER):
            return _sources(argument, self._ranks)
        found = _publishers(argument)
        self.unlabeled += [_unlabeled(p) for p in found if not p.coordinates]
        return [publisher.source for publisher in found]

    def __enter__(self) -> "_Feed":
        self._recorded_at = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        if not self._files:
            self._unreached = self._subscriber.unreached
            self._subscriber.close()
            if self._poll is not None:
                self._poll.close()

    def now(self) -> float:
        """The reader's clock: of a recording, that of its last delivery."""
        return self._recorded_at if self._files else time.time()

    def elapsed(self) -> float:
        """Seconds since some moment; a recording's may go back, with its next file."""
        return self._recorded_at if self._files else time.monotonic()

    @property
    def unreached(self) -> bool:
        """Whether nobody answered at any address, once the feed is closed."""
        return bool(self._unreached) and len(self._unreached) == len(self.names)

    def silent(self, purpose: str) -> SourceError:
        """Why there was no batch to `purpose`, and what to do about it."""
        if self._files:
            names = ", ".join(map(str, self._files))
            verb = "hold" if len(self._files) > 1 else "holds"
            return SourceError(
                f"{names} {verb} no batch to {purpose}: record a source while its"
                " cache changes"
            )
        if self._unreached:
            return SourceError(
                f"no publisher answers at {', '.join(self._unreached)}, so there is"
                f" nothing to {purpose}: check the address, and that the server is up"
            )
        return SourceError(
            f"{', '.join(self._arguments)} sent no batch to {purpose}: a publisher"
            " sends one only when its cache changes, so send the server a request, or"
            " look longer"
        )

    def deliveries(
        self, seconds: float | None, *, until_sent: bool = False
    ) -> Iterator[Delivery | None]:
        """Each delivery, and None whenever there is none for a moment.

        What a replay gave, all at one time, has no None in it. Live ones end after
        `seconds`, or with `until_sent` as soon as each endpoint has sent a batch.
        """
        if self._files:
            for delivery in chain.from_iterable(map(read, self._files)):
                if delivery.at != self._recorded_at:
                    yield None
                self._recorded_at = delivery.at
                yield delivery
            return
        end = float("inf") if seconds is None else time.monotonic() + seconds
        while time.monotonic() < end and not (until_sent and self._all_sent()):
            for delivery in self._subscriber.poll(min(0.2, end - time.monotonic())):
                if isinstance(delivery, Batch):
                    self._sent.add(delivery.endpoint)
                yield delivery
            if self._poll is not None:
                yield from self._subscriber.announce(self._poll.latest)
            yield None

    def _all_sent(self) -> bool:
        # A publisher that has a topic is named by it, too.
        return all(
            any(sent == name or sent.startswith(f"{name} ") for sent in self._sent)
            for name in self.names
        )


def _follow(
    feed: _Feed,
    deliveries: Iterator[Delivery | None],
    board: Board,
    show: Callable[..., None],
    *,
    every: float,
) -> None:
    """Show a picture every so often until the feed ends, or Ctrl-C does it.

    A picture of a big fleet takes a while, in which nothing is read: pictures get
    at most a quarter of the time.
    """
    shown, pause = float("-inf"), every
    with suppress(KeyboardInterrupt):
        for delivery in deliveries:
            if delivery is not None:
                board.apply(delivery)
            elif abs(feed.elapsed() - shown) >= pause:
                started = feed.elapsed()
                show(last=False)
                shown, pause = started, max(every, 4 * (feed.elapsed() - started))
    show(last=True)


def _check_regular(file: Path) -> None:
    """Raise WriteError where `file` is a folder or a device, before it is replaced."""
    if file.exists() and not file.is_file():
        raise WriteError(f"{file} is no regular file: name another file to write")


def _print_anything() -> None:
    """Show what the terminal has no sign for as a question mark."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _json_line(value: object) -> str:
    """JSON in which nothing can drive the terminal, or end the line."""
    text = msgspec.json.encode(value).decode()
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else dumps(c)[1:-1] for c in text)


def _publishers(server: str) -> list[Publisher]:
    try:
        return ask(server)
    except KeyboardInterrupt:
        raise StoppedError(
            f"stopped before {server} said where its events come from; nothing was read"
        ) from None


def _unlabeled(publisher: Publisher) -> Trouble:
    """That nobody needs to look for labels there."""
    why = '"coordinates": false in its --kv-events-config keeps them off'
    if publisher.epoch is None:
        why = "it is not patched"
    endpoint = publisher.source.endpoint
    return Trouble(endpoint, time.time(), "no labels", f"{why}: none on its events")


def _sources(argument: str, ranks: int) -> list[Source]:
    endpoint, _, replay = argument.partition(",")
    try:
        source = Source(endpoint, replay or None)
    except ValueError as error:
        raise SourceFormError(
            f"{error}: write http://host:8000 for a server, or tcp://host:5557 for a"
            " publisher"
        ) from error
    try:
        return [source.rank(rank) for rank in range(ranks)]
    except ValueError as error:
        raise SourceFormError(f"{error}: name each rank's publisher instead") from error


def _subscribe(sources: list[Source]) -> Subscriber:
    try:
        return Subscriber(sources)
    except zmq.ZMQError as error:
        names = ", ".join(source.endpoint for source in sources)
        raise SourceFormError(
            f"{names} cannot be subscribed to ({error}): check the address"
        ) from error
