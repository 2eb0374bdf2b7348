# SPDX-License-Identifier: Apache-2.0
"""The replicas: which of them live, and the reading of their event streams.

Nothing but the server's address is configured: `GET /kv_event_sources` says where each
of its ranks publishes, with which epoch, and, by answering, that the server lives.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx

from vllm_coordinates.stream.index import Index
from vllm_coordinates.stream.sequence import Delivery, Dropped, Reason
from vllm_coordinates.stream.sources import publishers
from vllm_coordinates.stream.subscriber import Source, Subscriber

_LOOK_EVERY_S = 0.5
_LOOK_TIMEOUT_S = 10.0
_POLL_S = 0.2

logger = logging.getLogger("gateway")
_requests = itertools.count(1)


class _NotThere(Exception):
    """Why a server is no replica now: one sentence."""


def base_urls(replicas: Sequence[str]) -> list[str]:
    """The base URLs of replicas, as they were named.

    Raises ValueError where one is none, or one replica is named twice.
    """
    named: dict[object, str] = {}
    for replica in replicas:
        url = _base_url(replica)
        if url is None:
            raise ValueError(
                f"{replica} is not the base URL of a server; name it with scheme, host"
                " and port, as http://127.0.0.1:8000"
            )
        # With what goes without saying: the case of the host, the port of the scheme.
        whole = (url.scheme, url.netloc, url.path.rstrip("/"))
        if whole in named:
            raise ValueError(
                f"{replica} is the same replica as {named[whole]}; name each one once"
            )
        named[whole] = replica
    return list(replicas)


def _base_url(replica: str) -> httpx.URL | None:
    try:
        url = httpx.URL(replica)
    except httpx.InvalidURL:
        return None
    in_range = url.port is None or 0 < url.port < 2**16
    return url if url.scheme in ("http", "https") and url.host and in_range else None


class Replica:
    """One server: its address, what is wrong with it, and how busy we keep it.

    `fault` is None while the server lives. `endpoints` are the names under which the
    index knows its publishers.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.fault: str | None = "nobody has looked yet"
        self.in_flight = 0
        self.last_request = 0
        self.endpoints: tuple[str, ...] = ()

    @property
    def lives(self) -> bool:
        """Whether requests can go there."""
        return self.fault is None

    @contextmanager
    def busy(self) -> Iterator[None]:
        """A request is with the replica."""
        self.in_flight += 1
        self.last_request = next(_requests)
        try:
            yield
        finally:
            self.in_flight -= 1


class Fleet:
    """All replicas; `watch` keeps them and the index up to date.

    Everything but the wait for events happens on the event loop, so the index needs
    no lock.
    """

    def __init__(
        self, urls: Sequence[str], index: Index, client: httpx.AsyncClient
    ) -> None:
        self.replicas = [Replica(url) for url in urls]
        self._index = index
        self._client = client

    def living(self) -> list[Replica]:
        """Those that requests can go to."""
        return [replica for replica in self.replicas if replica.lives]

    def lost(self, replica: Replica, error: Exception) -> None:
        """The replica did not answer; it gets nothing until it does."""
        fault = str(error) or type(error).__name__
        if fault != replica.fault:
            logger.warning("%s is no replica now: %s", replica.url, fault)
        replica.fault = fault

    async def watch(self) -> None:
        """Until cancelled: look after every replica and read its events."""
        with ThreadPoolExecutor(len(self.replicas), "events") as threads:
            async with asyncio.TaskGroup() as tasks:
                for replica in self.replicas:
                    tasks.create_task(self._look_after(replica, threads))

    async def _look_after(self, replica: Replica, threads: ThreadPoolExecutor) -> None:
        reader: _Reader | None = None
        try:
            while True:
                try:
                    publishers = await self._look(replica)
                    sources = tuple(publishers)
                    if reader is None or reader.sources != sources:
                        if reader is not None:
                            await self._stop(reader, "it publishes elsewhere now")
                            reader = None
                        reader = _Reader(sources, self._index, threads)
                        replica.endpoints = tuple(s.endpoint for s in sources)
                    reader.announce(publishers)
                except _NotThere as error:
                    self.lost(replica, error)
                # Whatever it is, the other replicas are served all the same.
                except Exception as error:
                    self.lost(replica, _NotThere(f"{type(error).__name__}: {error}"))
                    if reader is not None:
                        await self._stop(reader, "its events cannot be read")
                        reader = None
                else:
                    if not replica.lives:
                        logger.info("%s lives", replica.url)
                    replica.fault = None
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            if reader is not None:
                await self._stop(reader, "the gateway stops")

    async def _look(self, replica: Replica) -> dict[Source, str]:
        """Where the replica publishes, and the epoch of each publisher."""
        url = f"{replica.url}/kv_event_sources"
        try:
            response = await self._client.get(url, timeout=_LOOK_TIMEOUT_S)
        except httpx.RequestError as error:
            raise _NotThere(str(error) or type(error).__name__) from error
        try:
            found = publishers(response.raise_for_status().content, replica.url)
        except (httpx.HTTPStatusError, ValueError):
            raise _NotThere(
                f"GET /kv_event_sources answers {response.status_code}; start a patched"
                " vLLM, 0.31.0 or later"
            ) from None
        epochs = {p.source: p.epoch for p in found if p.coordinates and p.epoch}
        if not found or len(epochs) < len(found):
            raise _NotThere(
                "it publishes no coordinates; start a patched vLLM with"
                " enable_kv_cache_events in --kv-events-config"
            )
        return epochs

    async def _stop(self, reader: "_Reader", why: str) -> None:
        await reader.stop()
        for source in reader.sources:
            self._index.apply(
                Dropped(source.endpoint, time.time(), Reason.CONNECTION, why)
            )


class _Reader:
    """Reads one replica's publishers into the index, until it is told to stop."""

    def __init__(
        self, sources: tuple[Source, ...], index: Index, threads: ThreadPoolExecutor
    ) -> None:
        self.sources = sources
        self._epochs: dict[str, str] = {}
        self._index = index
        self._threads = threads
        self._stopping = False
        self._subscriber = Subscriber(sources)
        self._task = asyncio.create_task(self._read())

    def announce(self, publishers: Mapping[Source, str]) -> None:
        """The publishers' epochs, now; a new one says that one has restarted.

        Raises what ended the reading, if anything has.
        """
        if self._task.done():
            self._task.result()
        self._epochs = {source.endpoint: epoch for source, epoch in publishers.items()}

    async def stop(self) -> None:
        """Wait for the last poll, since its thread holds the sockets."""
        self._stopping = True
        await asyncio.wait([self._task])

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        with self._subscriber as subscriber:
            while not self._stopping:
                for delivery in await loop.run_in_executor(
                    self._threads, self._poll, subscriber
                ):
                    self._index.apply(delivery)

    def _poll(self, subscriber: Subscriber) -> list[Delivery]:
        return subscriber.announce(self._epochs) or subscriber.poll(_POLL_S)
