# SPDX-License-Identifier: Apache-2.0
"""Which replicas can be named, and that none of them ends the gateway."""

import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from gateway.replicas import Fleet, base_urls
from gateways import gateway_before
from trees import ROOT
from vllm_coordinates.stream.index import Index
from vllm_coordinates.stream.sequence import Delivery
from vllm_coordinates.stream.subscriber import Subscriber

NO_URL = (
    " is not the base URL of a server; name it with scheme, host and port, as"
    " http://127.0.0.1:8000"
)
PUBLISHES = {
    "endpoint": "tcp://127.0.0.1:9",
    "publisher_epoch": "e",
    "coordinates": True,
}


@pytest.mark.parametrize(
    "replicas",
    [
        ["http://127.0.0.1:8000", "http://127.0.0.1:8001/"],
        ["http://a", "https://a", "http://[::1]:8000"],
        ["http://a/one", "http://a/other"],
    ],
)
def test_base_urls_are_taken_as_they_are_named(replicas: list[str]) -> None:
    assert base_urls(replicas) == replicas


@pytest.mark.parametrize(
    "replica",
    [
        "http://127.0.0.1:99999",
        "http://127.0.0.1:0",
        "http://127.0.0.1:port",
        "http://[::1",
        "localhost:8000",
        "localhost",
        "tcp://127.0.0.1:5557",
        "http://",
        "",
    ],
)
def test_what_is_no_base_url_is_refused(replica: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(replica + NO_URL)}$"):
        base_urls(["http://a:8000", replica])


@pytest.mark.parametrize("again", ["http://a:80", "http://A/", "http://a"])
def test_a_replica_that_is_named_twice_is_refused(again: str) -> None:
    with pytest.raises(ValueError, match=r" is the same replica as http://a; "):
        base_urls(["http://a", again])


def test_it_is_one_line_and_the_exit_code_of_wrong_usage() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "gateway", "localhost:8000"],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'examples'}:{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"error: localhost:8000{NO_URL}\n"


@contextmanager
def server_that_says(ranks: dict[str, Any]) -> Iterator[str]:
    """The base URL of a server that answers every GET with this."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(ranks).encode())

        def log_message(self, *_: object) -> None:
            pass

    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server,
        ThreadPoolExecutor(1) as threads,
    ):
        threads.submit(server.serve_forever)
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_a_replica_that_cannot_be_read_ends_nobody_else() -> None:
    nonsense = {"0": PUBLISHES | {"endpoint": "tcp://;:1"}}
    with (
        server_that_says(nonsense) as bad,
        server_that_says({"0": PUBLISHES}) as good,
        gateway_before([], bad, good, ready=False) as client,
    ):
        picture = client.wait_until(
            lambda p: "nobody has looked yet" not in [r["fault"] for r in p["replicas"]]
        )
        faults = [r["fault"] for r in picture["replicas"]]
        assert faults[0].startswith("ZMQError: Invalid argument")
        assert faults[1] is None


def test_a_replica_whose_events_cannot_be_read_is_read_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error in the reading of one replica shows there, and passes."""
    polls = itertools.count()

    def poll(_: Subscriber, seconds: float) -> list[Delivery]:
        if not next(polls):
            raise RuntimeError("no poll")
        time.sleep(seconds)
        return []

    async def faults(url: str) -> list[str | None]:
        found: list[str | None] = []
        async with httpx.AsyncClient() as client:
            fleet = Fleet([url], Index(), client)
            watching = asyncio.create_task(fleet.watch())
            while found[-2:] != ["RuntimeError: no poll", None]:
                assert not watching.done()
                if found[-1:] != [fleet.replicas[0].fault]:
                    found.append(fleet.replicas[0].fault)
                await asyncio.sleep(0.01)
            watching.cancel()
            await asyncio.wait([watching])
        return found

    monkeypatch.setattr(Subscriber, "poll", poll)
    with server_that_says({"0": PUBLISHES}) as url:
        assert asyncio.run(asyncio.wait_for(faults(url), 60))


def test_the_operator_s_root_leads_to_the_sessions() -> None:
    with gateway_before([], "http://127.0.0.1:9", ready=False) as client:
        page = httpx.get(f"{client.operator}/", follow_redirects=True)
        assert (page.status_code, page.url.path) == (200, "/sessions")
        assert httpx.get(f"{client.url}/").status_code == 404
