# SPDX-License-Identifier: Apache-2.0
"""Sockets: any number of endpoints, read live and healed from their replay.

An endpoint is one PUB socket. Each data-parallel rank publishes at its own,
one port up per rank (`Source.rank`), and counts as a publisher of its own; so
does each topic, where publishers connect to a socket that this side binds.

Everything happens in `poll`, on the caller's thread, and nothing in it waits
longer than the caller allows: a replay that does not answer fails after
`replay_seconds`, while the other endpoints go on.
"""

import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import zmq
from zmq.utils.monitor import recv_monitor_message

from .sequence import REACHED, UNREACHED, Delivery, Sequencer, Trouble

_END = (-1).to_bytes(8, "big", signed=True)
_MOST_PUBLISHERS = 256
_MOST_FRAMES_AT_ONCE = 1000
_MOST_FRAMES_BEFORE_NEWS = 100_000
_LARGEST_REPLAY = 1 << 30
_LONGEST_REPLAY = 12
_UNREACHED_SECONDS = 3.0
_GIVEN_UP_SECONDS = 1.0
_ADDRESS = re.compile(
    r"tcp://(?P<host>[^\s\x00-\x1f\x7f]+):(?P<port>[0-9]{1,5}|\*)"
    r"|(?:ipc|inproc)://[^\x00-\x1f\x7f]+"
)


@dataclass(frozen=True, slots=True)
class Source:
    """Where one publisher's events come from.

    `endpoint` is the address to connect to, as `tcp://host:5557`, or to bind
    where `bind` is set (publishers whose endpoint has no `*` connect to it).
    `replay` is the address of its replay socket, if it has one. `topic` is the
    prefix to subscribe to. A `*` is an address only to bind.
    """

    endpoint: str
    replay: str | None = None
    topic: str = ""
    bind: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError where an address is none."""
        _check(self.endpoint, bind=self.bind)
        if self.replay is not None:
            _check(self.replay, bind=False)

    def rank(self, rank: int) -> "Source":
        """The same source's data-parallel rank: `rank` ports up, as in vLLM."""
        replay = self.replay and _ports_up(self.replay, rank)
        return Source(_ports_up(self.endpoint, rank), replay, self.topic, self.bind)


@dataclass(slots=True)
class _Replay:
    """One question to a replay socket, and the answer as it comes in."""

    socket: "zmq.Socket[bytes]"
    sequencer: Sequencer | None
    deadline: float
    last_deadline: float
    frames: list[tuple[bytes, int, bytes]] = field(default_factory=list)
    size: int = 0


@dataclass(slots=True)
class _Connection:
    source: Source
    socket: "zmq.Socket[bytes]"
    monitor: "zmq.Socket[bytes]"
    publishers: dict[bytes, Sequencer] = field(default_factory=dict)
    replays: list[_Replay] = field(default_factory=list)
    begun: bool = False
    learned: bool = False
    # When the connection was lost, until ZeroMQ tries again.
    lost_at: float = float("inf")
    # When to say that no publisher answers: never once it was said.
    patience: float = field(
        default_factory=lambda: time.monotonic() + _UNREACHED_SECONDS
    )


class Subscriber:
    """Reads sources and delivers what they publish, in order, per publisher.

    `most_bytes` bounds one frame: a longer one is reported and skipped.
    `replay_seconds` bounds one answer of a replay socket. To be closed, or
    used as a context manager.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        *,
        most_bytes: int = 64 << 20,
        replay_seconds: float = 5.0,
    ) -> None:
        self._most_bytes = most_bytes
        self._replay_seconds = replay_seconds
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._connections = [self._connect(source) for source in sources]

    def __enter__(self) -> "Subscriber":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every socket; unread frames are lost."""
        for connection in self._connections:
            connection.socket.disable_monitor()
        self._connections.clear()
        self._context.destroy(linger=0)

    def poll(self, seconds: float) -> list[Delivery]:
        """What arrived; waits at most `seconds` for the first of it."""
        events = dict(self._poller.poll(max(0, round(self._wait(seconds) * 1000))))
        found: list[Delivery] = []
        for connection in self._connections:
            news = self._news(connection)
            if news:
                found += self._take_news(connection, news)
            elif connection.socket in events:
                found += self._read_live(connection, _MOST_FRAMES_AT_ONCE)
            # Before any answer, lest it be taken for one to a newer question.
            found += self._start_replays(connection)
            for replay in tuple(connection.replays):
                if replay.socket in events:
                    found += self._read_replay(connection, replay)
                elif time.monotonic() > replay.deadline:
                    found += self._end_replay(
                        connection,
                        replay,
                        f"no complete answer from {connection.source.replay}"
                        f" in {self._replay_seconds:g} s",
                    )
            found += self._start_replays(connection)
            found += self._unreached(connection)
            self._connect_again(connection)
        return found

    @property
    def unreached(self) -> list[str]:
        """The endpoints where no publisher ever answered."""
        return [c.source.endpoint for c in self._connections if not c.begun]

    def announce(self, epochs: Mapping[str, str]) -> list[Delivery]:
        """Tell the epoch that `/kv_event_sources` shows, by publisher's name.

        Or by its endpoint, where no other topic can be meant.
        """
        found: list[Delivery] = []
        for connection in self._connections:
            source = connection.source
            alone = len(connection.publishers) == 1 and not source.bind
            for sequencer in connection.publishers.values():
                epoch = epochs.get(sequencer.endpoint)
                if epoch is None and alone:
                    epoch = epochs.get(source.endpoint)
                found += sequencer.announced(epoch, time.time())
            found += self._start_replays(connection)
        return found

    def _connect(self, source: Source) -> _Connection:
        socket = self._context.socket(zmq.SUB)
        # The publisher drops what a slow reader does not take; this side does
        # not, so that a burst while the index works is not a gap.
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, 4 * self._most_bytes)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt_string(zmq.SUBSCRIBE, source.topic)
        monitor = socket.get_monitor_socket(
            zmq.EVENT_DISCONNECTED
            | zmq.EVENT_CONNECT_RETRIED
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
        )
        if source.bind:
            socket.bind(source.endpoint)
        else:
            socket.connect(source.endpoint)
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(monitor, zmq.POLLIN)
        return _Connection(source, socket, monitor)

    def _wait(self, seconds: float) -> float:
        deadlines = [r.deadline for c in self._connections for r in c.replays]
        until = min(deadlines, default=float("inf")) - time.monotonic()
        return min(seconds, until)

    @staticmethod
    def _unreached(connection: _Connection) -> list[Delivery]:
        if connection.begun or time.monotonic() < connection.patience:
            return []
        connection.patience = float("inf")
        detail = "no publisher answers at this address"
        return [Trouble(connection.source.endpoint, time.time(), UNREACHED, detail)]

    @staticmethod
    def _news(connection: _Connection) -> list[int]:
        """What became of the connection: lost, there, or lost and there again."""
        found: list[int] = []
        while connection.monitor.poll(0):
            event = recv_monitor_message(connection.monitor)["event"]
            lost = event == zmq.EVENT_DISCONNECTED
            connection.lost_at = time.monotonic() if lost else float("inf")
            if event != zmq.EVENT_CONNECT_RETRIED:
                found.append(event)
        return found

    @staticmethod
    def _connect_again(connection: _Connection) -> None:
        """Try an address again where ZeroMQ does not: it held another kind of socket.

        A replay socket, say, whose ports were those of the publisher for a while.
        """
        source = connection.source
        if source.bind or time.monotonic() < connection.lost_at + _GIVEN_UP_SECONDS:
            return
        connection.lost_at = float("inf")
        with suppress(zmq.ZMQError):
            connection.socket.disconnect(source.endpoint)
        connection.socket.connect(source.endpoint)

    def _take_news(self, connection: _Connection, news: list[int]) -> list[Delivery]:
        found: list[Delivery] = []
        source = connection.source
        for number, event in enumerate(news):
            lost = event == zmq.EVENT_DISCONNECTED
            unsure = lost and zmq.EVENT_HANDSHAKE_SUCCEEDED in news[number:]
            # What a publisher sent before it went is read before the news that it
            # went, or it would count as another publisher's. Where another may have
            # sent some of it, only a replay socket can tell.
            if not unsure or source.replay is None:
                found += self._read_live(connection, _MOST_FRAMES_BEFORE_NEWS)
            if lost:
                for replay in tuple(connection.replays):
                    self._forget(connection, replay)
            for sequencer in connection.publishers.values():
                if lost:
                    found += sequencer.disconnected(time.time())
                # Where publishers connect, the others are still there.
                if not lost or source.bind:
                    found += sequencer.connected(time.time())
            if not lost or source.bind:
                found += self._reached(connection)
        return found

    def _reached(self, connection: _Connection) -> list[Delivery]:
        found: list[Delivery] = []
        if not connection.begun:
            connection.begun = True
            if connection.patience == float("inf"):
                where = (connection.source.endpoint, time.time())
                found.append(Trouble(*where, REACHED, "a publisher answers now"))
        if connection.source.replay is not None and not connection.learned:
            found += self._ask(connection, None, 0)
        return found

    def _read_live(self, connection: _Connection, most: int) -> list[Delivery]:
        found: list[Delivery] = []
        for _ in range(most):
            try:
                parts = connection.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            found += self._take(connection, parts)
        return found

    def _take(self, connection: _Connection, parts: list[bytes]) -> list[Delivery]:
        at = time.time()
        if len(parts) != 3 or len(parts[1]) != 8:
            sizes = ", ".join(str(len(part)) for part in parts)
            detail = f"frames of {sizes} bytes are not a topic, a number and a batch"
            return [self._unreadable(connection, detail, at)]
        topic, number, payload = parts
        seq = int.from_bytes(number, "big")
        if len(payload) > self._most_bytes:
            detail = (
                f"batch {seq} has {len(payload)} bytes; {self._most_bytes} are read"
            )
            return [self._unreadable(connection, detail, at)]
        sequencer = self._publisher(connection, topic)
        if sequencer is None:
            detail = f"more than {_MOST_PUBLISHERS} topics; batch {seq} is skipped"
            return [self._unreadable(connection, detail, at)]
        return sequencer.frame(seq, payload, at)

    def _publisher(self, connection: _Connection, topic: bytes) -> Sequencer | None:
        sequencer = connection.publishers.get(topic)
        if sequencer is None and len(connection.publishers) < _MOST_PUBLISHERS:
            source = connection.source
            name = source.endpoint
            if topic != source.topic.encode():
                name += f" {topic.decode(errors='backslashreplace')}"
            sequencer = Sequencer(name, replayable=source.replay is not None)
            connection.publishers[topic] = sequencer
        return sequencer

    def _start_replays(self, connection: _Connection) -> list[Delivery]:
        found: list[Delivery] = []
        for sequencer in connection.publishers.values():
            if sequencer.wants is not None:
                since, sequencer.wants = sequencer.wants, None
                found += self._ask(connection, sequencer, since)
        return found

    def _ask(
        self, connection: _Connection, sequencer: Sequencer | None, since: int
    ) -> list[Delivery]:
        for older in tuple(connection.replays):
            if older.sequencer is sequencer:
                self._forget(connection, older)
        assert connection.source.replay is not None
        try:
            socket = self._question(connection.source.replay, since)
        except zmq.ZMQError as error:
            return self._answered(connection, sequencer, [], str(error))
        self._poller.register(socket, zmq.POLLIN)
        now = time.monotonic()
        connection.replays.append(
            _Replay(
                socket,
                sequencer,
                now + self._replay_seconds,
                now + _LONGEST_REPLAY * self._replay_seconds,
            )
        )
        return []

    def _question(self, address: str, since: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, 4 * self._most_bytes)
            socket.setsockopt(zmq.IPV6, 1)
            socket.connect(address)
            socket.send_multipart([b"", since.to_bytes(8, "big")])
        except zmq.ZMQError:
            socket.close()
            raise
        return socket

    def _read_replay(self, connection: _Connection, replay: _Replay) -> list[Delivery]:
        for _ in range(_MOST_FRAMES_AT_ONCE):
            try:
                parts = replay.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if len(parts) != 4 or parts[0] or len(parts[2]) != 8:
                return self._end_replay(connection, replay, "a malformed reply")
            if parts[2] == _END:
                return self._end_replay(connection, replay, None)
            replay.size += len(parts[1]) + len(parts[3])
            if replay.size > _LARGEST_REPLAY:
                return self._end_replay(connection, replay, "too much to hold")
            if len(parts[3]) <= self._most_bytes:
                number = int.from_bytes(parts[2], "big")
                replay.frames.append((parts[1], number, parts[3]))
        deadline = time.monotonic() + self._replay_seconds
        replay.deadline = min(deadline, replay.last_deadline)
        return []

    def _end_replay(
        self, connection: _Connection, replay: _Replay, failure: str | None
    ) -> list[Delivery]:
        self._forget(connection, replay)
        return self._answered(connection, replay.sequencer, replay.frames, failure)

    def _forget(self, connection: _Connection, replay: _Replay) -> None:
        self._poller.unregister(replay.socket)
        replay.socket.close()
        connection.replays.remove(replay)

    def _answered(
        self,
        connection: _Connection,
        sequencer: Sequencer | None,
        answer: Iterable[tuple[bytes, int, bytes]],
        failure: str | None,
    ) -> list[Delivery]:
        at = time.time()
        by_topic: dict[bytes, list[tuple[int, bytes]]] = {}
        for topic, seq, payload in answer:
            by_topic.setdefault(topic, []).append((seq, payload))
        if sequencer is None:
            return self._learn_history(connection, by_topic, failure, at)
        frames: list[tuple[int, bytes]] = []
        for topic, publisher in connection.publishers.items():
            if publisher is sequencer:
                frames = by_topic.get(topic, [])
        return sequencer.replay(frames, failure, at)

    def _learn_history(
        self,
        connection: _Connection,
        by_topic: dict[bytes, list[tuple[int, bytes]]],
        failure: str | None,
        at: float,
    ) -> list[Delivery]:
        """What a publisher remembers from before the first live frame."""
        if failure is not None:
            return [Trouble(connection.source.endpoint, at, "replay", failure)]
        connection.learned = True
        found: list[Delivery] = []
        for topic, frames in by_topic.items():
            sequencer = self._publisher(connection, topic)
            if sequencer is not None and sequencer.begin():
                sequencer.wants = None
                found += sequencer.replay(frames, None, at)
        return found

    @staticmethod
    def _unreadable(connection: _Connection, detail: str, at: float) -> Trouble:
        return Trouble(connection.source.endpoint, at, "unreadable", detail)


def _check(address: str, *, bind: bool) -> None:
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(f"{address!r} is no address of a socket")
    host, port = match["host"], match["port"]
    if "*" in (host, port) and not bind:
        raise ValueError(f"{address!r} is an address to bind, not to connect to")
    if port not in (None, "*") and not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is no address of a socket")


def _ports_up(address: str, rank: int) -> str:
    """vLLM's rule for the address of a data-parallel rank."""
    if rank == 0:
        return address
    if address.startswith("inproc"):
        return f"{address}_dp{rank}"
    base, separator, port = address.rpartition(":")
    if not address.startswith("tcp") or not port.isdigit():
        raise ValueError(f"{address!r} has no port to count data-parallel ranks from")
    return f"{base}{separator}{int(port) + rank}"
