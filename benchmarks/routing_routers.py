# SPDX-License-Identifier: Apache-2.0
"""The routers that are compared, each a process or a thread with a URL of its own.

Four are one gateway that chooses differently, so all else is equal: what they cost,
what they label, what the engines publish. The fifth is vLLM's own router, which reads
stock events and sends traffic without labels.
"""

import asyncio
import hashlib
import subprocess
import threading
import time
import venv
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.routing_trace import BLOCK
from cpu_engine.server import MODEL_NAME, EngineServer
from gateway.labels import Labeled
from gateway.proxy import Gateway
from gateway.replicas import Replica
from gateway.routing import ByCoordinates, Choice, Router, load
from gateway.serve import Address, serve
from ports import free_ports
from vllm_coordinates.stream.index import Index

VLLM_ROUTER = "vllm-router==0.1.17"
_READY_S = 60.0

Make = Callable[[Index], Router]


class RoundRobin:
    """Takes turns."""

    def __init__(self, index: Index) -> None:
        self._count = 0

    def choose(self, replicas: Sequence[Replica], request: Labeled) -> Choice:
        """The next one."""
        self._count += 1
        return Choice(replicas[self._count % len(replicas)])

    def learn(self, choice: Choice, request: Labeled, prompt_tokens: int) -> None:
        """Nothing to learn."""


class Sticky:
    """A session's hash says where it goes, for ever."""

    def __init__(self, index: Index) -> None:
        pass

    def choose(self, replicas: Sequence[Replica], request: Labeled) -> Choice:
        """The replica of the session."""
        digest = hashlib.blake2b(request.session_id.encode(), digest_size=8).digest()
        return Choice(replicas[int.from_bytes(digest, "big") % len(replicas)])

    def learn(self, choice: Choice, request: Labeled, prompt_tokens: int) -> None:
        """Nothing to learn."""


class Estimated:
    """Remembers what it sent where; of an eviction it never hears.

    It knows continuations and their extents as the gateway does, so it estimates as
    well as anything can that does not listen.
    """

    def __init__(self, index: Index) -> None:
        self._sent: dict[str, dict[str, int]] = defaultdict(dict)

    def choose(self, replicas: Sequence[Replica], request: Labeled) -> Choice:
        """Where most of the prefix was sent; of equal ones the least loaded."""
        ids = request.chain.ids
        choices = (
            Choice(r, max(self._sent[r.url].get(name, 0) for name in ids))
            for r in replicas
        )
        return min(choices, key=lambda c: (-c.tokens, *load(c.replica)))

    def learn(self, choice: Choice, request: Labeled, prompt_tokens: int) -> None:
        """The replica has computed that much of the continuation."""
        self._sent[choice.replica.url][request.continuation_id] = prompt_tokens


GATEWAYS: dict[str, Make] = {
    "round robin": RoundRobin,
    "sticky": Sticky,
    "estimated": Estimated,
    "coordinates": ByCoordinates,
}
"""By name; `coordinates` is the example gateway as it is."""

BELIEVERS = ("estimated", "coordinates")
"""Those that choose for a prefix that they expect to be there."""


@dataclass
class Running:
    """A router that can be sent to.

    Attributes:
        url: Its base URL.
        expected: By a request's `user` field, the tokens that the router expected at
            the replica that it chose; empty where it does not tell.
    """

    url: str
    expected: dict[str, int] = field(default_factory=dict)


class _Observed:
    def __init__(self, router: Router, expected: dict[str, int]) -> None:
        self._router = router
        self._expected = expected

    def choose(self, replicas: Sequence[Replica], request: Labeled) -> Choice:
        choice = self._router.choose(replicas, request)
        self._expected[request.body["user"]] = choice.tokens
        return choice

    def learn(self, choice: Choice, request: Labeled, prompt_tokens: int) -> None:
        self._router.learn(choice, request, prompt_tokens)


@contextmanager
def gateway(servers: Sequence[EngineServer], router: Make) -> Iterator[Running]:
    """The example gateway, on a thread of its own, routing by `router`."""
    running = Running("")
    stopping = threading.Event()
    ready: Future[tuple[str, Gateway]] = Future()

    async def run() -> None:
        gateway = Gateway(
            [server.url for server in servers],
            router=lambda index: _Observed(router(index), running.expected),
        )
        serving = asyncio.create_task(
            serve(
                gateway,
                Address(),
                Address(),
                lambda clients, _: ready.set_result((clients, gateway)),
            )
        )
        await asyncio.to_thread(stopping.wait)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        running.url, started = ready.result(_READY_S)
        # Every replica looked after, and the past of its stream read.
        _wait_until(lambda: _sees_nothing(started), "the gateway is not ready")
        yield running
    finally:
        stopping.set()
        thread.join()


def _sees_nothing(gateway: Gateway) -> bool:
    replicas, index = gateway.fleet.replicas, gateway.index
    known = set(index.endpoints())
    return (
        all(r.lives and known.issuperset(r.endpoints) for r in replicas)
        and not any(index.suspended(name) for name in known)
        and not index.holdings()
    )


@contextmanager
def vllm_router(
    servers: Sequence[EngineServer], cache: Path, log: Path
) -> Iterator[Running]:
    """vLLM's own router, aware of the KV cache by stock events."""
    folder = cache / "vllm-router"
    if not (folder / "bin" / "vllm-router").exists():
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run(
            [folder / "bin" / "pip", "install", "--quiet", VLLM_ROUTER],
            check=True,
            stderr=subprocess.DEVNULL,
        )
    [port, metrics] = free_ports(2)
    sources = (
        f"--kv-event-source={s.url}={s.event_sources()[0].endpoint}" for s in servers
    )
    arguments = [
        "--policy=kv_aware",
        f"--port={port}",
        f"--prometheus-port={metrics}",
        f"--kv-event-block-size={BLOCK}",
        f"--kv-event-model={MODEL_NAME}",
        *sources,
        "--worker-urls",
        *(server.url for server in servers),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [folder / "bin" / "vllm-router", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until(lambda: _answers(f"{url}/health"), f"no answer; see {log}")
        yield Running(url)
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.TransportError:
        return False


def _wait_until(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _READY_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.1)
