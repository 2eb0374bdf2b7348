# SPDX-License-Identifier: Apache-2.0
"""Two real replicas with a gateway before them, started once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from cpu_engine.server import EngineServer
from gateways import Client, gateway_before, options


@pytest.fixture(scope="session")
def servers() -> Iterator[list[EngineServer]]:
    """Two replicas, started side by side."""
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(2))
        servers = [EngineServer(options(name)) for name in ("replica-a", "replica-b")]
        for server in servers:
            stack.callback(server.stop)
        for started in [threads.submit(server.start) for server in servers]:
            started.result()
        yield servers


@pytest.fixture(scope="session")
def client(servers: list[EngineServer]) -> Iterator[Client]:
    with gateway_before(servers) as client:
        yield client
