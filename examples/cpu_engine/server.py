# SPDX-License-Identifier: Apache-2.0
"""A `vllm serve` of one's own: started on free loopback ports, stopped for sure."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

LOOPBACK = "127.0.0.1"
MODEL_NAME = "tiny"

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 15.0
_POLL_S = 0.1
_REQUEST_TIMEOUT_S = 30.0
_LOG_TAIL_LINES = 25

# What the log says at the start of each part of a start-up, in order.
_MILESTONES = (
    ("version ", "reading the model's config"),
    ("Initializing a V1 LLM engine", "starting the engine core"),
    ("Starting to load model", "loading the model"),
    ("Starting ZMQ publisher thread", "starting the HTTP server"),
)
_FIRST_PHASE = "importing vLLM"


class ServerError(RuntimeError):
    """A server did not start: one sentence, then the end of its log."""


@dataclass(frozen=True)
class ServerOptions:
    """What to serve, and how.

    Attributes:
        model: A folder with a model.
        cache: Where vLLM keeps what it wants to find again, so a second start is
            faster and nothing is written outside of this folder.
        tree: A folder that holds another `vllm` package than the installed one,
            e.g. an unpacked wheel; None serves the installed one.
        block_size: Tokens per block; the CPU kernels want a multiple of 32.
        num_blocks: Blocks of the pool of each rank, of which vLLM keeps one for
            itself: the smaller, the sooner blocks are evicted.
        max_model_len: Tokens of the longest request; it must fit in the pool.
        kv_events: Fields of `--kv-events-config` beside the endpoints.
        data_parallel_size: Number of engines, each with a publisher of its own.
        extra_args: More arguments for `vllm serve`.
        env: More environment variables.
    """

    model: Path
    cache: Path
    tree: Path | None = None
    block_size: int = 32
    num_blocks: int = 64
    max_model_len: int = 1024
    kv_events: Mapping[str, Any] = field(default_factory=dict)
    data_parallel_size: int = 1
    extra_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def arguments(self, port: int) -> list[str]:
        """What follows `vllm` on the command line."""
        # With port 0 a publisher binds a free port of VLLM_HOST_IP, each rank its
        # own, and GET /kv_event_sources tells which.
        events = {
            "enable_kv_cache_events": True,
            "endpoint": "tcp://*:0",
            "replay_endpoint": "tcp://*:0",
            **self.kv_events,
        }
        return [
            "serve",
            str(self.model.resolve()),
            f"--served-model-name={MODEL_NAME}",
            f"--host={LOOPBACK}",
            f"--port={port}",
            "--enforce-eager",
            "--dtype=float32",
            f"--block-size={self.block_size}",
            f"--num-gpu-blocks-override={self.num_blocks}",
            f"--max-model-len={self.max_model_len}",
            f"--data-parallel-size={self.data_parallel_size}",
            # The model runs in the engine core's own process: that saves the
            # start of one more, which is a third of the whole start.
            "--distributed-executor-backend="
            "vllm.v1.executor.uniproc_executor.UniProcExecutor",
            "--enable-prompt-tokens-details",
            f"--kv-events-config={json.dumps(events)}",
            *self.extra_args,
        ]

    def environment(self) -> dict[str, str]:
        """The environment of the server: this process's, made independent of it."""
        inherited = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        return inherited | self.variables()

    def variables(self) -> dict[str, str]:
        """What is set for the server, whatever this process's environment is."""
        tree = (
            {}
            if self.tree is None
            else {"PYTHONPATH": str(self.tree.resolve(strict=True))}
        )
        return {
            **tree,
            "VLLM_HOST_IP": LOOPBACK,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CACHE_ROOT": str(self.cache.resolve()),
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "NO_COLOR": "1",
            # One thread: the model is too small to share, and the kernels of a
            # model in the engine core's process can not be bound to cores.
            "OMP_NUM_THREADS": "1",
            **self.env,
        }


@dataclass(frozen=True)
class EventSource:
    """Where one data-parallel rank publishes its events.

    Attributes:
        rank: The data-parallel rank.
        endpoint: Of the PUB socket.
        replay_endpoint: Of the ROUTER socket that sends past batches again.
        publisher_epoch: The publisher's epoch; None from an unpatched server.
    """

    rank: int
    endpoint: str
    replay_endpoint: str
    publisher_epoch: str | None


class EngineServer:
    """A running `vllm serve`; a context manager that starts and stops it.

    It ends with this process, however this one ends, and takes its children along.

    Attributes:
        options: What is served.
        url: Base URL of the HTTP server, `http://127.0.0.1:PORT`.
        log: The file with everything that the server printed. Unless it was given,
            it goes with a server that ran until it was stopped.
    """

    def __init__(self, options: ServerOptions, log: Path | None = None) -> None:
        self.options = options
        self.url = ""
        self.log = log or Path(tempfile.mkdtemp(prefix="vllm-serve-")) / "server.log"
        self._log_is_ours = log is None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, on_phase: Callable[[str], None] = lambda phase: None) -> None:
        """Starts the server and waits until it answers.

        A server that was stopped comes back at the same address.

        Args:
            on_phase: Called with each part of the start as it begins.

        Raises:
            ServerError: It exited, or did not answer within START_TIMEOUT_S.
        """
        with _reserved_port(int(self.url.rpartition(":")[2] or 0)) as port:
            self.url = f"http://{LOOPBACK}:{port}"
            self._process = self._spawn(port)
            self._guard = _guard(self._process.pid)
            try:
                self._wait_until_healthy(on_phase)
            except BaseException:
                self._end()
                raise

    def stop(self) -> None:
        """Stops the server and every process that it started."""
        if self.alive() and self._log_is_ours:
            shutil.rmtree(self.log.parent)
        self._end()

    @property
    def pid(self) -> int | None:
        """The server's process, the leader of its group; None when stopped."""
        return self._process.pid if self._process else None

    def alive(self) -> bool:
        """Whether the server's process runs."""
        return self._process is not None and self._process.poll() is None

    def wait(self) -> None:
        """Blocks for as long as the server runs.

        Raises:
            ServerError: It exited.
        """
        if self._process is not None:
            self._process.wait()
            raise ServerError(self._fault("the server exited"))

    def event_sources(self) -> list[EventSource]:
        """Where each rank publishes, by rank (`GET /kv_event_sources`)."""
        response = _get(f"{self.url}/kv_event_sources")
        response.raise_for_status()
        return [
            EventSource(
                int(rank),
                config["endpoint"],
                config["replay_endpoint"],
                config.get("publisher_epoch"),
            )
            for rank, config in sorted(response.json().items())
        ]

    def log_tail(self) -> str:
        """The last lines that the server printed."""
        lines = self._log_text().rstrip().splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])

    def _spawn(self, port: int) -> subprocess.Popen[bytes]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "vllm.entrypoints.cli.main",
                    *self.options.arguments(port),
                ],
                env=self.options.environment(),
                # `python -m` looks for packages here first.
                cwd=self.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A group of its own: to signal it never signals us.
                start_new_session=True,
            )

    def _end(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        # SIGINT is what Ctrl-C sends: the server stops its engines in order.
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if self._guard is not None:
            self._guard.communicate()
            self._guard = None

    def _wait_until_healthy(self, on_phase: Callable[[str], None]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        phase = ""
        while not self._healthy():
            if not self.alive():
                raise ServerError(self._fault("the server exited before it answered"))
            if time.monotonic() > deadline:
                raise ServerError(
                    self._fault(f"the server did not answer in {START_TIMEOUT_S:.0f} s")
                )
            if (current := self._phase()) != phase:
                phase = current
                on_phase(phase)
            time.sleep(_POLL_S)

    def _healthy(self) -> bool:
        try:
            return _get(f"{self.url}/health").is_success
        except httpx.TransportError:
            return False

    def _phase(self) -> str:
        text = self._log_text()
        reached = [phase for needle, phase in _MILESTONES if needle in text]
        return reached[-1] if reached else _FIRST_PHASE

    def _fault(self, what: str) -> str:
        errors = [line for line in self._log_text().splitlines() if " ERROR " in line]
        # The last line of a traceback says most; what comes before it is a prefix
        # with the time and the place of the logging call.
        cause = f" ({errors[-1].partition('] ')[2]})" if errors else ""
        return f"{what}{cause}; the end of its log, {self.log}:\n{self.log_tail()}"

    def _log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def _guard(group: int) -> subprocess.Popen[bytes]:
    """A process that kills a group as soon as this process is gone.

    Its standard input ends then, whatever ended this process: a server that is
    starting does not heed a SIGTERM.
    """
    return subprocess.Popen(
        ["sh", "-c", f"read end; kill -s KILL -- -{group} 2> /dev/null"],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def _get(url: str) -> httpx.Response:
    # No proxy of the environment's stands between us and the loopback.
    return httpx.get(url, timeout=_REQUEST_TIMEOUT_S, trust_env=False)


class _reserved_port:
    """Holds a loopback port, 0 for any free one, until the server listens on it.

    Two sockets with SO_REUSEADDR may be bound to one port while neither, or only
    the other, listens: so nobody else is given the port in between.
    """

    def __init__(self, port: int = 0) -> None:
        self._socket = socket.socket()
        self._wanted = port

    def __enter__(self) -> int:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((LOOPBACK, self._wanted))
        port: int = self._socket.getsockname()[1]
        return port

    def __exit__(self, *raised: object) -> None:
        self._socket.close()
