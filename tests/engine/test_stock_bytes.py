# SPDX-License-Identifier: Apache-2.0
"""Without labels, a patched server publishes what stock publishes, byte for byte."""

import msgspec
import pytest

from cpu_engine.server import ServerOptions
from engine import served_trees
from engine.conftest import Options
from engine.engine import BLOCK, Engine, running

# The array's header, then the timestamp: a float of eight bytes and its type.
_TIMESTAMP = slice(1, 10)


def play(engine: Engine) -> None:
    """Shared prefixes, forks, generated blocks, evictions and a reset."""
    prefix = list(range(10, 10 + 3 * BLOCK))
    for turn in range(4):
        for fork in range(3):
            own = [200 + 10 * fork + turn] * (BLOCK + 5 * turn)
            session = {} if fork else {"session_id": "stock knows sessions"}
            engine.complete(
                [*prefix, *own],
                max_tokens=BLOCK + 8,
                ignore_eos=True,
                temperature=0,
                **session,
            ).raise_for_status()
    engine.post("/reset_prefix_cache", {}).raise_for_status()
    engine.complete(prefix, cache_salt="salt").raise_for_status()
    engine.chat("Tell me about blocks. " * 8, n=2, seed=0).raise_for_status()


def record(options: ServerOptions) -> list[bytes]:
    """The payloads that a server publishes for `play`, without their timestamps."""
    with running(options) as engine:
        play(engine)
        payloads = [frame.payload for frame in engine.frames()]
    return [payload[:1] + payload[_TIMESTAMP.stop :] for payload in payloads]


def kinds(payloads: list[bytes]) -> set[str]:
    """The event types in payloads without a timestamp: arrays of two elements."""
    batches = [msgspec.msgpack.decode(b"\x92" + payload[1:]) for payload in payloads]
    return {event["type"] for events, _ in batches for event in events}


@pytest.fixture(scope="module")
def small_pool(options: Options) -> dict[str, object]:
    """A pool that evicts, and hashes that do not differ between two runs."""
    return {
        "num_blocks": 13,
        "max_model_len": 12 * BLOCK,
        "env": {"PYTHONHASHSEED": "0", "VLLM_SERVER_DEV_MODE": "1"},
    }


def test_the_same_unlabeled_traffic_gives_the_same_bytes(
    options: Options, small_pool: dict[str, object]
) -> None:
    stock = record(options(served_trees.stock(), **small_pool))
    patched = record(options(served_trees.patched(), **small_pool))
    assert kinds(stock) == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
    for number, (theirs, ours) in enumerate(zip(stock, patched, strict=True)):
        assert ours == theirs, f"batch {number} differs"
