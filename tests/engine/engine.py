# SPDX-License-Identifier: Apache-2.0
"""What a test does with a running server: send requests, and read all events."""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import psutil

from cpu_engine.server import MODEL_NAME, EngineServer, EventSource, ServerOptions
from cpu_engine.tap import EventTap, Frame
from vllm_coordinates.stream.wire import BlockRemoved, BlockStored, Event

BLOCK = 32
# What was killed ends as soon as it is given the CPU.
_ENDED_WITHIN_S = 10.0
_VOCABULARY = range(5, 500)
_numbers = itertools.count()


def fresh_tokens(count: int) -> list[int]:
    """Token ids that no earlier prompt of this process starts with."""
    number = next(_numbers)
    head = [number // len(_VOCABULARY), number % len(_VOCABULARY)]
    return [_VOCABULARY[i] for i in head] + [
        _VOCABULARY[(7 * i + number) % len(_VOCABULARY)] for i in range(count - 2)
    ]


def fresh_text(words: int = 90) -> str:
    """Text that no earlier prompt of this process starts with; three blocks long."""
    return f"Number {next(_numbers)}. " + "word " * words


class Engine:
    """A running server, and a tap on the events of each of its ranks.

    Attributes:
        server: The server.
        taps: One for each rank, by rank.
    """

    def __init__(self, server: EngineServer, taps: Sequence[EventTap]) -> None:
        self.server = server
        self.taps = taps

    @property
    def sources(self) -> list[EventSource]:
        """Where each rank publishes."""
        return self.server.event_sources()

    def post(self, path: str, json: Any, **request: Any) -> httpx.Response:
        """A POST of a body that gets the model's name."""
        return httpx.post(
            f"{self.server.url}{path}",
            json={"model": MODEL_NAME, **json},
            timeout=120,
            trust_env=False,
            **request,
        )

    def complete(
        self, prompt: str | list[int], *, headers: Any = None, **body: Any
    ) -> httpx.Response:
        """A completion of one token, unless the body says otherwise."""
        return self.post(
            "/v1/completions",
            {"prompt": prompt, "max_tokens": 1, **body},
            headers=headers,
        )

    def chat(self, content: str, *, headers: Any = None, **body: Any) -> httpx.Response:
        """A chat completion of one token, unless the body says otherwise."""
        messages = [{"role": "user", "content": content}]
        return self.post(
            "/v1/chat/completions",
            {"messages": messages, "max_tokens": 1, **body},
            headers=headers,
        )

    def frames(self) -> list[Frame]:
        """Everything published since the last call, by the first rank."""
        # Batches are published in order: what came before that of a new request
        # is complete once that one is there.
        marker = fresh_tokens(BLOCK + 1)
        self.complete(marker).raise_for_status()

        def marks(frame: Frame) -> bool:
            return any(
                isinstance(event, BlockStored) and event.token_ids == marker[:BLOCK]
                for event in frame.batch.events
            )

        return self.taps[0].read_until(marks)[:-1]

    def events(self) -> list[Event]:
        """The events of `frames`."""
        return [event for frame in self.frames() for event in frame.batch.events]

    def stored(self) -> list[BlockStored]:
        """The admissions and reuse reports among `events`."""
        return [event for event in self.events() if isinstance(event, BlockStored)]

    def removed(self) -> list[BlockRemoved]:
        """The removals among `events`."""
        return [event for event in self.events() if isinstance(event, BlockRemoved)]


def family(server: EngineServer) -> list[psutil.Process]:
    """The processes of a running server: its own, and those that it started."""
    leader = psutil.Process(server.pid)
    return [leader, *leader.children(recursive=True)]


@contextmanager
def running(options: ServerOptions) -> Iterator[Engine]:
    """A server for the time of the context, and nothing of it left afterwards."""
    with EngineServer(options) as server, ExitStack() as stack:
        processes = family(server)
        taps = [stack.enter_context(EventTap(s)) for s in server.event_sources()]
        yield Engine(server, taps)
    assert_ended(processes)


def assert_ended(processes: Sequence[psutil.Process]) -> None:
    """None of the processes runs, or will in a moment."""
    deadline = time.monotonic() + _ENDED_WITHIN_S
    while left := [process for process in processes if _runs(process)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.01)


def _runs(process: psutil.Process) -> bool:
    # An orphan that has ended waits as a zombie for somebody to ask after it.
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
