# SPDX-License-Identifier: Apache-2.0
"""Other projects' consumers of KV events, in environments and processes apart."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar, Protocol
from urllib.request import Request, urlopen

from engine.engine import BLOCK
from ports import free_ports
from sources import CACHE
from vllm_coordinates.stream.wire import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    decode_batch,
)

HERE = Path(__file__).parent
SECONDS = 20.0


class Consumer(Protocol):
    """A consumer that reads one publisher."""

    def has_read(self, batches: Sequence[bytes], numbers: Set[int]) -> bool:
        """Is it where a reader is that took in these of the batches and no other?"""
        ...

    def refused(self) -> bool:
        """Whether it said of a batch that it cannot read it."""
        ...


def environment(name: str) -> Path:
    """The Python of the environment with `consumers-NAME.txt`, made once."""
    requirements = HERE / f"consumers-{name}.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    home = CACHE / f"consumers-{name}-{digest}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"consumers-{name}.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not (home / "ready").exists():
            shutil.rmtree(home, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", home], check=True)
            python = str(home / "bin" / "python")
            pip = [python, "-m", "pip", "install", "-q", "-r", str(requirements)]
            subprocess.run(pip, check=True)
            (home / "ready").touch()
    return home / "bin" / "python"


class _Process:
    """A child whose output is kept, line by line."""

    def __init__(self, command: list[str | Path]) -> None:
        self.lines: list[str] = []
        self._child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"RUST_LOG": "debug", "NO_COLOR": "1"},
        )
        self._thread = Thread(target=self._collect, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self.lines.append(re.sub(r"\x1b\[[0-9;]*m", "", line))

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        self._thread.join()

    def has(self, text: str) -> bool:
        return any(text in line for line in self.lines)


class Smg:
    """smg-grpc-servicer's relay: what it forwards to its gateway."""

    def __init__(self, process: _Process) -> None:
        self._process = process

    @classmethod
    @contextmanager
    def on(cls, endpoint: str) -> Iterator["Smg"]:
        """The relay, subscribed to `endpoint`."""
        process = _Process([environment("smg"), HERE / "smg_relay.py", endpoint])
        try:
            yield cls(process)
        finally:
            process.close()

    def has_read(self, batches: Sequence[bytes], numbers: Set[int]) -> bool:
        lines = [json.loads(line) for line in self._process.lines if line[0] == "{"]
        return {line["seq"] for line in lines if "seq" in line} == numbers

    def refused(self) -> bool:
        return self._process.has("Failed to decode") or self._process.has("aborted")


class Dynamo:
    """Dynamo's standalone indexer: the hashes in its dump."""

    def __init__(self, process: _Process, port: int) -> None:
        self._process = process
        self._port = port

    @classmethod
    @contextmanager
    def on(cls, endpoint: str) -> Iterator["Dynamo"]:
        """The indexer, with `endpoint` registered as a worker."""
        [port] = free_ports(1)
        indexer: list[str | Path] = [environment("strict"), "-m", "dynamo.indexer"]
        process = _Process([*indexer, "--threads", "1", "--port", str(port)])
        try:
            wait_until(lambda: process.has("HTTP server listening"))
            worker = {"instance_id": 1, "endpoint": endpoint, "model_name": "m"}
            body = json.dumps(worker | {"block_size": BLOCK}).encode()
            answer(f"http://127.0.0.1:{port}/register", body)
            yield cls(process, port)
        finally:
            process.close()

    def has_read(self, batches: Sequence[bytes], numbers: Set[int]) -> bool:
        dump = answer(f"http://127.0.0.1:{self._port}/dump")
        found = {
            block["block_hash"]
            for model in dump.values()
            for event in model["events"]
            for block in event["event"]["data"]["stored"]["blocks"]
        }
        return found == resident([batches[number] for number in sorted(numbers)])

    def refused(self) -> bool:
        return self._process.has("Failed to decode")


class Router:
    """vllm-router's kv_aware policy: which batches it says it applied."""

    _APPLIED: ClassVar[re.Pattern[str]] = re.compile(
        r"live sequence advanced.* seq=(\d+)"
    )

    def __init__(self, process: _Process) -> None:
        self._process = process

    @classmethod
    @contextmanager
    def on(cls, endpoint: str) -> Iterator["Router"]:
        """The router, with one worker whose events are at `endpoint`."""
        worker_port, port, metrics = free_ports(3)
        worker = f"http://127.0.0.1:{worker_port}"
        healthy = _Process(
            [sys.executable, HERE / "router_worker.py", str(worker_port)]
        )
        options = {
            "--policy": "kv_aware",
            "--worker-urls": worker,
            "--kv-event-source": f"{worker}={endpoint}",
            "--kv-event-block-size": str(BLOCK),
            "--kv-event-model": "m",
            "--port": str(port),
            "--prometheus-port": str(metrics),
            "--log-level": "debug",
        }
        command: list[str | Path] = [
            environment("strict"),
            "-m",
            "vllm_router.launch_router",
        ]
        process = _Process(
            [*command, *(word for pair in options.items() for word in pair)]
        )
        try:
            yield cls(process)
        finally:
            process.close()
            healthy.close()

    def has_read(self, batches: Sequence[bytes], numbers: Set[int]) -> bool:
        found = map(self._APPLIED.search, self._process.lines)
        return {int(match[1]) for match in found if match} == numbers

    def refused(self) -> bool:
        return self._process.has("kv_index decode batch")


def resident(batches: Sequence[bytes]) -> set[int]:
    """The hashes that a reader by hash believes in after these batches."""
    found: set[int] = set()
    for payload in batches:
        for event in decode_batch(payload).events:
            match event:
                case BlockStored():
                    found |= {int(h) for h in event.block_hashes}
                case BlockRemoved():
                    found -= {int(h) for h in event.block_hashes}
                case AllBlocksCleared():
                    found.clear()
    return found


def wait_until(done: Callable[[], bool], seconds: float = SECONDS) -> bool:
    """Whether `done` became true in time."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def answer(url: str, body: bytes | None = None) -> dict[str, Any]:
    """What a JSON endpoint answers."""
    request = Request(url, body, {"content-type": "application/json"})
    with urlopen(request, timeout=SECONDS) as response:
        found: dict[str, Any] = json.loads(response.read())
        return found
