# SPDX-License-Identifier: Apache-2.0
"""A real `vllm serve` under cache pressure: what the index says is what is cached.

The truth is `cached_tokens` of a next request of the same prompt.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from cpu_engine.server import MODEL_NAME, EngineServer, ServerOptions
from cpu_engine.tiny_model import TinyModel, ensure_model
from engine import served_trees
from ports import free_ports
from sources import CACHE
from vllm_coordinates.stream import mint, record
from vllm_coordinates.stream.ancestry import Ancestry
from vllm_coordinates.stream.index import Index
from vllm_coordinates.stream.sequence import Batch, Delivery, Dropped
from vllm_coordinates.stream.sources import discover
from vllm_coordinates.stream.subscriber import Subscriber
from vllm_coordinates.stream.verify import Verifier
from vllm_coordinates.stream.wire import BlockStored

pytestmark = pytest.mark.engine

# `RESTARTS=20 python -m pytest tests/stream/test_real_engine.py` is the long run.
RESTARTS = int(os.environ.get("RESTARTS", "1"))
WAYS_TO_KNOW = {"history", "epoch", "regression"}

BLOCK = 32
MODES = ("coordinates", "coordinates", "coordinates", "full", "incremental", None)
WORDS = [
    "a",
    "session",
    "is",
    "a",
    "conversation",
    "between",
    "a",
    "person",
    "and",
    "a",
    "model",
    "and",
    "it",
    "can",
    "fork",
]


@dataclass
class Control:
    """A control plane in front of one engine: mints, sends, and reads events."""

    server: EngineServer
    subscriber: Subscriber
    sends_epoch: bool
    ancestry: Ancestry = field(default_factory=Ancestry)
    deliveries: list[Delivery] = field(default_factory=list)
    markers: int = 0

    def __post_init__(self) -> None:
        self.index = Index(self.ancestry)
        (self.endpoint,) = (source.endpoint for source in discover(self.server.url))

    def drops(self) -> list[Dropped]:
        """Each time that coverage was dropped so far."""
        return [d for d in self.deliveries if isinstance(d, Dropped)]

    def until_dropped(self, known: int) -> None:
        """Read until coverage was dropped more than `known` times."""
        self.until(lambda: len(self.drops()) > known)

    def post(self, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
        """A request's answer, as JSON."""
        url = f"{self.server.url}{path}"
        answer = httpx.post(url, json=body, headers=headers, timeout=120)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json() if answer.content else {}
        return found

    def chat(self, turns: list[dict[str, str]], mode: str | None, session: str) -> int:
        """How many tokens of the prompt were cached already."""
        request: dict[str, Any] = {"model": MODEL_NAME, "messages": turns}
        chain = mint.chat(request)
        headers = {}
        if mode is not None:
            chain.register(self.ancestry)
            headers = {
                "X-Session-ID": session,
                "X-Continuation-ID": chain.continuation_id,
            }
            request["vllm_xargs"] = {"kv_cache_report_mode": mode}
        request |= {"max_tokens": 3, "temperature": 0, "ignore_eos": True}
        usage = self.post("/v1/chat/completions", request, **headers)["usage"]
        if mode is not None:
            self.ancestry.learn(chain.continuation_id, usage["prompt_tokens"])
        details = usage.get("prompt_tokens_details") or {}
        return details.get("cached_tokens") or 0

    def take(self, deliveries: list[Delivery]) -> None:
        self.deliveries += deliveries
        for delivery in deliveries:
            self.index.apply(delivery)

    def until(self, done: Callable[[], bool]) -> None:
        """Read until `done`, for twenty seconds at most."""
        end = time.monotonic() + 20
        while not done():
            assert time.monotonic() < end, self.deliveries[-3:]
            self.take(self.subscriber.poll(0.05))

    def catch_up(self) -> None:
        """Read all that was published before now: up to what a marker causes."""
        self.markers += 1
        prompt = [5 + self.markers % 400, 5 + self.markers // 400, *range(5, 5 + BLOCK)]
        body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 1}
        self.post("/v1/completions", body)
        read = len(self.deliveries)

        def marked() -> bool:
            return any(
                isinstance(event, BlockStored) and event.token_ids == prompt[:BLOCK]
                for delivery in self.deliveries[read:]
                if isinstance(delivery, Batch)
                for event in delivery.batch.events
            )

        self.until(marked)


@pytest.fixture(scope="module", params=[True, False], ids=["epoch", "no epoch"])
def control(request: pytest.FixtureRequest) -> Iterator[Control]:
    """A patched engine of 40 blocks, at addresses that it will come back at."""
    events, replay = free_ports(2)
    options = ServerOptions(
        ensure_model(TinyModel.QWEN2, CACHE / "models"),
        cache=CACHE / "vllm",
        tree=served_trees.patched(),
        block_size=BLOCK,
        num_blocks=40,
        kv_events={
            "endpoint": f"tcp://*:{events}",
            "replay_endpoint": f"tcp://*:{replay}",
            "send_publisher_epoch": request.param,
        },
        env={"VLLM_SERVER_DEV_MODE": "1"},
    )
    with ExitStack() as stack:
        server = stack.enter_context(EngineServer(options))
        sources = discover(server.url)
        subscriber = stack.enter_context(Subscriber(sources))
        yield Control(server, subscriber, request.param)


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def conversations(rng: random.Random) -> Iterator[list[dict[str, str]]]:
    """Turns of a few sessions behind one system prompt, some of which fork."""
    system = {"role": "system", "content": text(rng, 60)}
    open_ones: list[list[dict[str, str]]] = []
    while True:
        if len(open_ones) < 4 or rng.random() < 0.2:
            open_ones.append([system])
        turns = rng.choice(open_ones)
        turns = [*turns, {"role": "user", "content": text(rng, rng.randint(5, 60))}]
        yield turns
        reply = {"role": "assistant", "content": text(rng, 10)}
        open_ones.append([*turns, reply])
        open_ones = [one for one in open_ones if len(one) < 8][-6:]


def test_what_is_covered_is_cached_under_pressure(control: Control) -> None:
    """All modes mixed, forks and evictions; and the stream keeps its contract."""
    rng = random.Random(7)
    asked: list[tuple[list[dict[str, str]], str]] = []
    exact = checked = 0
    for number, turns in enumerate(conversations(rng)):
        if number == 50:
            break
        control.chat(turns, rng.choice(MODES), f"session {number % 5}")
        asked.append((turns, f"session {number % 5}"))
        control.catch_up()
        turns, session = rng.choice(asked[-8:])
        name = mint.chat({"model": MODEL_NAME, "messages": turns}).continuation_id
        covered = control.index.prefix(control.endpoint, name)
        cached = control.chat(turns, "coordinates", session)
        # The last token of a prompt is always computed.
        prompt = control.ancestry.extent(name) or 0
        assert min(covered, (prompt - 1) // BLOCK * BLOCK) <= cached
        checked += 1
        exact += min(covered, (prompt - 1) // BLOCK * BLOCK) == cached
        control.catch_up()
    assert control.index.counts["removed"] > 30
    # What else is cached is in doubt, or was admitted by hash behind coordinates.
    assert exact > checked // 2
    verifier = Verifier()
    assert [str(v) for d in control.deliveries for v in verifier.apply(d)] == []
    assert {"stores in coordinates", "removals in coordinates"} <= verifier.kinds.keys()


def test_a_recording_of_it_says_the_same(control: Control, tmp_path: Path) -> None:
    with (tmp_path / "stream").open("wb") as file:
        recorder = record.Recorder(file)
        for delivery in control.deliveries:
            recorder.write(delivery)
    again = Index(control.ancestry)
    for delivery in record.read(tmp_path / "stream"):
        again.apply(delivery)
    # The ancestry of today knows more than that of then, so less is in doubt.
    live = {h.continuation_id: h for h in control.index.holdings()}
    assert {h.continuation_id for h in again.holdings()} >= {
        name for name, holding in live.items() if holding.certain
    }


def test_a_reset_empties_the_index(control: Control) -> None:
    assert control.index.holdings()
    control.post("/reset_prefix_cache", {})
    # An engine publishes with its steps, so a reset is heard with the next one.
    control.catch_up()
    assert control.index.counts["cleared"] == 1
    assert not control.index.holdings()


def test_a_late_reader_learns_from_the_replay_what_the_first_one_knows(
    control: Control,
) -> None:
    rng = random.Random(9)
    control.chat([{"role": "user", "content": text(rng, 80)}], "coordinates", "s")
    control.catch_up()
    late = Index(control.ancestry)
    with Subscriber(discover(control.server.url)) as subscriber:
        end = time.monotonic() + 20
        while late.holdings() != control.index.holdings():
            assert time.monotonic() < end
            for delivery in subscriber.poll(0.05):
                late.apply(delivery)


def test_a_killed_engine_that_comes_back_is_known_for_another(control: Control) -> None:
    """With traffic before it is noticed, and without any, in turn."""
    rng = random.Random(11)
    for number in range(RESTARTS):
        control.chat([{"role": "user", "content": text(rng, 80)}], "coordinates", "s")
        control.catch_up()
        assert control.index.holdings()
        known = len(control.drops())
        silent = (number + control.sends_epoch) % 2 == 0
        assert control.server.pid is not None
        os.killpg(control.server.pid, signal.SIGKILL)
        if silent:
            control.until(lambda: not control.index.holdings())
        control.server.stop()
        control.server.start()
        if silent:
            control.until_dropped(known)
            assert not control.index.holdings()
        turns = [{"role": "user", "content": text(rng, 80)}]
        control.chat(turns, "coordinates", "s")
        control.catch_up()
        new = control.drops()[known:]
        assert new and {drop.reason for drop in new} <= WAYS_TO_KNOW
        (holding,) = control.index.holdings()
        assert holding.usable == holding.tokens > 0
