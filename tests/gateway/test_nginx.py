# SPDX-License-Identifier: Apache-2.0
"""What the documentation says of nginx, on the real one."""

import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from ports import free_ports
from trees import ROOT

PATH = "/v1/chat/completions"
_NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin") or ""

pytestmark = pytest.mark.skipif(
    not _NGINX, reason="nginx is not installed (apt-get install nginx-light)"
)


class Gateway(ThreadingHTTPServer):
    """Says what came through."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Echo)
        self.received: list[list[tuple[str, str]]] = []
        self.release = threading.Event()


class _Echo(BaseHTTPRequestHandler):
    server: Gateway

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append([(k.lower(), v) for k, v in self.headers.items()])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"data: first\n\n")
        self.wfile.flush()
        self.server.release.wait(30)
        self.wfile.write(b"data: last\n\n")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway() as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        server.release.set()
        yield server
        server.shutdown()
        serving.join()


@pytest.fixture(scope="module")
def nginx(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of an nginx that serves the documented configuration."""
    folder = tmp_path_factory.mktemp("nginx")
    [port] = free_ports(1)
    snippet = _documented()
    for said, here in (
        ("127.0.0.1:8080", f"127.0.0.1:{gateway.server_port}"),
        ("listen 80;", f"listen 127.0.0.1:{port};"),
    ):
        assert snippet.count(said) == 1
        snippet = snippet.replace(said, here)
    config = folder / "nginx.conf"
    config.write_text(_frame(folder, snippet))
    process = subprocess.Popen(
        [_NGINX, "-c", config, "-p", folder, "-e", folder / "error.log"]
    )
    try:
        _wait_for(port, process, folder)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _documented() -> str:
    text = (ROOT / "docs" / "gateway.md").read_text()
    [snippet] = re.findall(r"^```nginx\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return str(snippet)


def _frame(folder: Path, snippet: str) -> str:
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return (
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\n"
        "events {}\n"
        f"http {{\naccess_log off;\n{temporary}{snippet}}}\n"
    )


def _wait_for(port: int, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            log = folder / "error.log"
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)


LABELS = {
    "X-Session-ID": [("X-Session-ID", "mine")],
    "X-Continuation-ID": [("X-Continuation-ID", "mine")],
    "another case": [("x-sEsSiOn-iD", "mine"), ("X-CONTINUATION-ID", "mine")],
    "several times": [("X-Session-ID", "mine"), ("x-session-id", "mine too")],
    "underscores": [("X_Session_ID", "mine"), ("X-Continuation_ID", "mine")],
    "a rank": [("X-data-parallel-rank", "1")],
    "kept from hop to hop": [("X-Session-ID", "mine"), ("Connection", "X-Session-ID")],
}


@pytest.mark.parametrize("headers", LABELS.values(), ids=LABELS)
def test_labels_do_not_come_through(
    nginx: str, gateway: Gateway, headers: list[tuple[str, str]]
) -> None:
    httpx.post(nginx + PATH, json={}, headers=headers).raise_for_status()
    names = {name.replace("_", "-") for name, _ in gateway.received[-1]}
    assert not names & {"x-session-id", "x-continuation-id", "x-data-parallel-rank"}


def test_other_headers_come_through(nginx: str, gateway: Gateway) -> None:
    httpx.post(nginx + PATH, json={}, headers={"Authorization": "Bearer k"})
    assert ("authorization", "Bearer k") in gateway.received[-1]


def test_a_stream_comes_through_as_it_comes(nginx: str, gateway: Gateway) -> None:
    gateway.release.clear()
    try:
        with httpx.stream("POST", nginx + PATH, json={}, timeout=30) as response:
            chunks = response.iter_raw()
            assert next(chunks) == b"data: first\n\n"
            gateway.release.set()
            assert b"".join(chunks) == b"data: last\n\n"
    finally:
        gateway.release.set()


@pytest.mark.parametrize(
    "path",
    [
        "/kv_event_sources",
        "/reset_prefix_cache",
        "/metrics",
        "/v1/completions",
        "/v1/responses/resp_1",
        "/v1/models/../../metrics",
        "/v1/models%2f..%2f..%2fmetrics",
        "//metrics",
        "/",
    ],
)
def test_no_other_path_comes_through(nginx: str, gateway: Gateway, path: str) -> None:
    before = len(gateway.received)
    for method in ("GET", "POST"):
        request = httpx.Request(method, nginx)
        request.url = request.url.copy_with(raw_path=path.encode())
        with httpx.Client() as client:
            assert client.send(request).status_code == 404
    assert len(gateway.received) == before
