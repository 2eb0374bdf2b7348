# SPDX-License-Identifier: Apache-2.0
"""A replica that is killed takes its in-flight requests along, and nothing else."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cpu_engine.server import EngineServer, ServerError
from gateways import Client, gateway_before, opening, replica

pytestmark = pytest.mark.engine

LOST = {
    "message": "the replica was lost; send the request again",
    "type": "server_error",
    "param": None,
    "code": 502,
}
# Long enough to be in flight still when a busy machine comes to the kill.
LONG = {"max_tokens": 1800, "ignore_eos": True}


class Doomed:
    """A replica that is killed, and comes back at its address."""

    def __init__(self, server: EngineServer) -> None:
        self.server = server

    def restart(self) -> None:
        self.server.stop()
        self.server.start()

    def kill(self) -> None:
        assert self.server.pid is not None
        os.killpg(self.server.pid, signal.SIGKILL)
        with pytest.raises(ServerError, match="the server exited"):
            self.server.wait()

    def state(self, picture: dict[str, Any]) -> dict[str, Any]:
        """What the gateway sees of it."""
        [state] = [r for r in picture["replicas"] if r["url"] == self.server.url]
        return dict(state)

    def holds(self, picture: dict[str, Any]) -> bool:
        """Whether the gateway believes that anything is resident there."""
        return any(self.server.url in b["replicas"] for b in picture["branches"])


@pytest.fixture
def doomed(servers: list[EngineServer]) -> Iterator[Doomed]:
    """One of the replicas of all tests, which is there for the others afterwards."""
    replica = Doomed(servers[1])
    yield replica
    if not replica.server.alive():
        replica.restart()


def test_kill_9_costs_what_is_in_flight_there_and_its_coverage(
    servers: list[EngineServer], doomed: Doomed
) -> None:
    with (
        gateway_before(servers) as client,
        ThreadPoolExecutor(5) as clients,
    ):
        there, here = (
            [messages for messages, at in _sessions(client, 4) if at == name]
            for name in ("replica-b", "replica-a")
        )
        asked = [clients.submit(client.chat, m, **LONG) for m in there + here]
        stream = clients.submit(client.chat, there[0], stream=True, **LONG)
        client.wait_until(lambda p: doomed.state(p)["in_flight"] == len(there) + 1)
        assert doomed.holds(client.sessions())

        doomed.kill()

        # Nothing is waited for: whoever asks now is served.
        after = [client.chat(messages) for messages in there + here]
        assert {replica(answer) for answer in after} == {"replica-a"}
        assert not doomed.holds(client.sessions())
        answers = [future.result() for future in asked]
        assert [a.status_code for a in answers] == [502] * 2 + [200] * 2
        assert answers[0].json()["error"] == LOST
        # A stream has begun: its last event says so.
        *_, last = stream.result().text.removesuffix("\n\n").split("\n\n")
        assert json.loads(last.removeprefix("data: "))["error"] == LOST

        doomed.restart()

        client.wait_until(lambda p: doomed.state(p)["fault"] is None)
        assert not doomed.holds(client.sessions())
        assert {at for _, at in _sessions(client, 2)} == {"replica-a", "replica-b"}
        client.wait_until(doomed.holds)


def test_without_any_replica_there_is_an_answer_that_says_so() -> None:
    with gateway_before([], "http://127.0.0.1:9", ready=False) as client:
        answer = client.chat(opening())
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == (
            "no replica lives now; send the request again later"
        )
        assert client.get("/v1/models").status_code == 503
        assert client.get("/health").status_code == 503


def test_a_server_that_is_no_replica_is_told_what_it_lacks() -> None:
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server,
        ThreadPoolExecutor(1) as threads,
    ):
        threads.submit(server.serve_forever)
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            with gateway_before([], url, ready=False) as client:
                picture = client.wait_until(
                    lambda p: p["replicas"][0]["fault"] != "nobody has looked yet"
                )
        finally:
            server.shutdown()
    assert picture["replicas"][0]["fault"] == (
        "GET /kv_event_sources answers 404; start a patched vLLM, 0.31.0 or later"
    )


def _sessions(client: Client, count: int) -> list[tuple[list[dict[str, str]], str]]:
    """New sessions, and where each of them is."""
    begun = [opening() for _ in range(count)]
    return [(messages, replica(client.chat(messages))) for messages in begun]
