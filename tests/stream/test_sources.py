# SPDX-License-Identifier: Apache-2.0
"""What a server's answer says of its publishers."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest

from vllm_coordinates.stream.sources import (
    EpochPoll,
    Publisher,
    SourceError,
    discover,
    publishers,
)
from vllm_coordinates.stream.subscriber import Source


def test_a_publisher_is_where_its_server_is_under_its_topic() -> None:
    rank = {
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://0.0.0.0:5657",
        "topic": "kv@pod",
        "publisher_epoch": "e",
        "coordinates": True,
    }
    for server, host in (("http://gpu-1:8000", "gpu-1"), ("http://[::1]:80", "[::1]")):
        source = Source(f"tcp://{host}:5557", f"tcp://{host}:5657", "kv@pod")
        answer = msgspec.json.encode({"0": rank})
        assert publishers(answer, server) == [Publisher(source, "e", True)]


def test_ranks_are_in_order() -> None:
    answer = {str(n): {"endpoint": f"tcp://h:{n}"} for n in (10, 2, 1)}
    found = publishers(msgspec.json.encode(answer), "http://h")
    assert [p.source.endpoint for p in found] == [f"tcp://h:{n}" for n in (1, 2, 10)]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b'"hello"',
        b'{"0": "x"}',
        b'{"0": {}}',
        b'{"zero": {"endpoint": "tcp://h:1"}}',
        b'{"0": {"endpoint": "nonsense"}}',
        b'{"0": {"endpoint": "tcp://h:0"}}',
        b'{"0": {"endpoint": "tcp://h:65536"}}',
        b'{"0": {"endpoint": "tcp://h:1", "replay_endpoint": "nonsense"}}',
        b'{"0": {"endpoint": "tcp://h:*"}}',
        b'{"0": {"endpoint": "tcp://h:1", "x": %s}}'
        % (100_000 * b"[" + 100_000 * b"]"),
    ],
    ids=lambda answer: answer[:60].decode(),
)
def test_an_odd_answer_is_an_error(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        publishers(answer, "http://h")


Serve = Callable[[list[bytes]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Servers that give their answers in turn, and the last one ever after."""
    with ExitStack() as stack:

        def start(answers: list[bytes]) -> str:
            class Handler(BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    if self.path != "/kv_event_sources" or not answers:
                        self.send_error(404)
                        return
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(answers.pop(0) if answers[1:] else answers[0])

                def log_message(self, *_: object) -> None:
                    pass

            server = HTTPServer(("127.0.0.1", 0), Handler)
            thread = threading.Thread(target=server.serve_forever, args=(0.02,))
            thread.start()
            stack.callback(server.server_close)
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}"

        yield start


def naming(epoch: str, endpoint: str = "tcp://h:1") -> bytes:
    return json.dumps({"0": {"endpoint": endpoint, "publisher_epoch": epoch}}).encode()


def why_not(server: str) -> str:
    with pytest.raises(SourceError) as caught:
        discover(server)
    return str(caught.value)


def test_a_server_that_does_not_know_the_path_is_too_old(serve: Serve) -> None:
    server = serve([])
    assert why_not(server) == (
        f"{server}/kv_event_sources gives no event sources (HTTP Error 404: Not"
        " Found): it needs vLLM 0.31.0 or later; else name the publisher, as"
        " tcp://host:5557"
    )


def test_a_path_behind_the_server_is_told(serve: Serve) -> None:
    server = serve([naming("one")])
    assert why_not(f"{server}/v1").endswith(
        "404: Not Found): name the server's root, as http://host:8000"
    )
    assert [source.endpoint for source in discover(f"{server}/")] == ["tcp://h:1"]


def test_a_host_that_nobody_knows_is_told() -> None:
    assert why_not("http://nobody.invalid:8000") == (
        "nobody.invalid is no host that is known here: check the name"
    )


def test_a_port_that_is_none_is_told() -> None:
    assert why_not("http://127.0.0.1:65536") == (
        "http://127.0.0.1:65536 is no address of a server (Port out of range 0-65535)"
    )


def test_a_server_without_tls_is_told(serve: Serve) -> None:
    server = serve([naming("one")])
    told = why_not(server.replace("http", "https"))
    assert told.endswith(f": if it speaks no TLS, name it {server}")


def test_any_other_answer_is_told_as_it_is(serve: Serve) -> None:
    server = serve([b"[]"])
    assert why_not(server) == (
        f"{server}/kv_event_sources gives no event sources (Expected `object`, got"
        " `array`): name the publisher instead, as tcp://host:5557"
    )


@pytest.fixture
def poll() -> Iterator[Callable[..., EpochPoll]]:
    with ExitStack() as stack:

        def start(*servers: str) -> EpochPoll:
            started = EpochPoll(servers, every_seconds=0.01)
            stack.callback(started.close)
            return started

        yield start


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_no_answer_ends_the_questions(
    serve: Serve, poll: Callable[..., EpochPoll]
) -> None:
    epochs = poll(serve([naming("one"), b'{"0":' + 100_000 * b"[", b"", naming("two")]))
    until(lambda: epochs.latest == {"tcp://h:1": "two"})


def test_no_failure_ends_the_questions(
    serve: Serve, poll: Callable[..., EpochPoll], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fails_at_first(answer: bytes, server: str) -> list[Publisher]:
        asked.append(server)
        if not asked[1:]:
            raise MemoryError
        return publishers(answer, server)

    monkeypatch.setattr("vllm_coordinates.stream.sources.publishers", fails_at_first)
    epochs = poll(serve([naming("one")]))
    until(lambda: epochs.latest == {"tcp://h:1": "one"})


def test_an_endpoint_that_two_servers_name_has_no_epoch(
    serve: Serve, poll: Callable[..., EpochPoll]
) -> None:
    """Both connect to one proxy: only their topics tell them apart."""
    both = poll(
        serve([naming("one")]),
        serve([naming("two")]),
        serve([naming("three", "tcp://h:3")]),
    )
    until(lambda: both.latest == {"tcp://h:3": "three"})
