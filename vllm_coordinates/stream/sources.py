# SPDX-License-Identifier: Apache-2.0
"""What a server says about its publishers: `GET /kv_event_sources`.

vLLM 0.31.0 and later answer there with each data-parallel rank's addresses, a
patched one with its `publisher_epoch`, too. So a server's address is enough to
find its event sources, and polling it notices a restart with no event at all.
"""

import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import msgspec

from vllm_coordinates.errors import CoordinatesError

from .subscriber import Source

_SECONDS = 5.0


class SourceError(CoordinatesError):
    """A server does not say where its events come from."""

    exit_code = 11


@dataclass(frozen=True, slots=True)
class Publisher:
    """One rank's publisher, as its server names it.

    `epoch` is None where the server is not patched. `coordinates` says whether
    labels reach its events.
    """

    source: Source
    epoch: str | None
    coordinates: bool


class _Rank(msgspec.Struct):
    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    publisher_epoch: str | None = None
    coordinates: bool = False


_decode = msgspec.json.Decoder(dict[int, _Rank]).decode


def discover(server: str) -> list[Source]:
    """The sources of the server at `server`, `http://host:port`, by rank.

    An address that the publisher binds on any interface is taken to be on the
    server's host. Raises SourceError where there is nothing to read from.
    """
    return [publisher.source for publisher in ask(server)]


def ask(server: str) -> list[Publisher]:
    """The publishers of the server at `server`, by rank; as `discover` finds them."""
    found = _ask(server)
    if not found:
        raise SourceError(
            f"{server}/kv_event_sources names no publisher: start the server with"
            ' --kv-events-config \'{"enable_kv_cache_events": true,'
            ' "publisher": "zmq"}\''
        )
    return found


def publishers(answer: bytes, server: str) -> list[Publisher]:
    """What the answer of `server` to `GET /kv_event_sources` names, by rank.

    Raises ValueError where it is no such answer.
    """
    try:
        ranks = _decode(answer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    host = urlsplit(server).hostname or ""
    host = f"[{host}]" if ":" in host else host
    return [_publisher(ranks[rank], host) for rank in sorted(ranks)]


class EpochPoll:
    """Asks servers for their epochs, on a thread of its own, until it is closed.

    `latest` is the newest answer, by source endpoint; a server that does not
    answer keeps its last one. An endpoint of which two servers show different
    epochs is left out: which of them a batch is of, only its topic tells.
    """

    def __init__(self, servers: Sequence[str], *, every_seconds: float = 2.0) -> None:
        self._servers = servers
        self._every = every_seconds
        self._answers: dict[str, dict[str, str]] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="epochs", daemon=True)
        self._thread.start()

    @property
    def latest(self) -> Mapping[str, str]:
        """Each source's epoch as the server last showed it."""
        told: dict[str, set[str]] = {}
        for answer in list(self._answers.values()):
            for endpoint, epoch in answer.items():
                told.setdefault(endpoint, set()).add(epoch)
        return {name: epoch for name, (epoch, *others) in told.items() if not others}

    def close(self) -> None:
        """Stop asking; returns when the last question is answered or timed out."""
        self._closed.set()
        self._thread.join(_SECONDS)

    def _run(self) -> None:
        while not self._closed.is_set():
            started = time.monotonic()
            for server in self._servers:
                # Whatever comes of one question, the next ones are asked.
                with suppress(Exception):
                    self._answers[server] = self._epochs(server)
            self._closed.wait(max(0.0, started + self._every - time.monotonic()))

    @staticmethod
    def _epochs(server: str) -> dict[str, str]:
        return {
            publisher.source.endpoint: publisher.epoch
            for publisher in _ask(server)
            if publisher.epoch is not None
        }


def _ask(server: str) -> list[Publisher]:
    url = f"{server.rstrip('/')}/kv_event_sources"
    try:
        # Raises ValueError where the port is none.
        host, _ = urlsplit(server).hostname, urlsplit(server).port
    except ValueError as error:
        raise SourceError(f"{server} is no address of a server ({error})") from error
    try:
        with urlopen(url, timeout=_SECONDS) as answer:
            return publishers(answer.read(), server)
    # An answer that is cut off, by a restart say, is an HTTPException.
    except (OSError, HTTPException, ValueError) as error:
        why = _cause(error)
        if isinstance(why, ConnectionRefusedError):
            raise SourceError(f"nothing listens at {server}: is it up?") from error
        if isinstance(why, socket.gaierror):
            message = f"{host} is no host that is known here: check the name"
            raise SourceError(message) from error
        raise SourceError(
            f"{url} gives no event sources ({why}): {_advice(server, error)}"
        ) from error


def _cause(error: Exception) -> object:
    return error.reason if type(error) is URLError else error


def _advice(server: str, error: Exception) -> str:
    """What to do where a server does not name its publishers."""
    parts = urlsplit(server)
    if isinstance(error, HTTPError) and error.code == 404:
        if parts.path.strip("/"):
            return "name the server's root, as http://host:8000"
        return (
            "it needs vLLM 0.31.0 or later; else name the publisher, as tcp://host:5557"
        )
    if type(_cause(error)) is ssl.SSLError:  # and no certificate's
        return f"if it speaks no TLS, name it http://{parts.netloc}"
    return "name the publisher instead, as tcp://host:5557"


def _publisher(rank: _Rank, host: str) -> Publisher:
    replay = rank.replay_endpoint
    source = Source(
        _reachable(rank.endpoint, host),
        None if replay is None else _reachable(replay, host),
        rank.topic,
    )
    return Publisher(source, rank.publisher_epoch, rank.coordinates)


def _reachable(address: str, host: str) -> str:
    for anywhere in ("*", "0.0.0.0", "[::]", "::"):
        if address.startswith(f"tcp://{anywhere}:"):
            return f"tcp://{host}:{address.rpartition(':')[2]}"
    return address
