# SPDX-License-Identifier: Apache-2.0
"""What other projects' consumers make of each kind of stream, as a table.

Each is fed what a real server published, evictions included, between two batches
of stock's. The strict two are a 100 MB download; they are run where the
environment has `CI`, or `CONSUMERS=all`.
"""

import os
from collections.abc import Callable, Set
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from stream.publishing import Publisher

from engine.engine import BLOCK, Engine
from engine.third_party import Consumer, Dynamo, Router, Smg, wait_until
from engine.traffic import talk
from vllm_coordinates.stream.wire import (
    BlockStored,
    EventBatch,
    decode_batch,
    encode_batch,
)

PAGE = Path(__file__).parents[2] / "docs" / "evolution.md"
BEGIN = "<!-- third parties: written by tests/engine/test_third_party.py -->"
END = "<!-- end of third parties -->"
ALL = "CI" in os.environ or os.environ.get("CONSUMERS") == "all"

READS = "reads all"
LOSES_LABELED = "loses batches with labels"
LOSES_ALL = "loses every batch"

CONSUMERS: dict[str, Callable[[str], AbstractContextManager[Consumer]]] = {
    "smg-grpc-servicer 0.14.1": Smg.on,
    "ai-dynamo-runtime 1.6.1": Dynamo.on,
    "vllm-router 0.1.17": Router.on,
}
EXPECTED: dict[str, tuple[str, str, str]] = {
    "stock": (READS, READS, READS),
    "labels kept off (`coordinates: false`)": (READS, READS, READS),
    "labeled": (READS, READS, LOSES_LABELED),
    "full mode, labeled": (READS, READS, LOSES_LABELED),
    "coordinates mode": (READS, READS, LOSES_LABELED),
    "stock, epoch sent": (READS, LOSES_ALL, LOSES_ALL),
    "labeled, epoch sent": (READS, LOSES_ALL, LOSES_ALL),
}


@pytest.fixture(scope="session")
def streams(
    stock_traffic: list[bytes],
    patched_traffic: dict[str, list[bytes]],
    switched_off: Engine,
    engine: Engine,
) -> dict[str, list[bytes]]:
    """What real servers published, by the row of the table."""
    labels: dict[str, Any] = {"session_id": "s", "continuation_id": "c"}
    found = {
        "stock": stock_traffic,
        "labels kept off (`coordinates: false`)": talk(switched_off, **labels),
        "labeled": patched_traffic["incremental"],
        "full mode, labeled": patched_traffic["full"],
        "coordinates mode": patched_traffic["coordinates"],
        "stock, epoch sent": talk(engine),
        "labeled, epoch sent": talk(engine, 110, **labels),
    }
    for row, payloads in found.items():
        labeled = row.startswith(("labeled", "full", "coordinates"))
        assert any(b"continuation_id" in payload for payload in payloads) == labeled
        evicts = "epoch" not in row
        assert any(b"BlockRemoved" in payload for payload in payloads) == evicts
    return found


def batch(block_hash: int, epoch: str | None) -> bytes:
    """A batch of one block without labels."""
    tokens = list(range(block_hash * BLOCK, (block_hash + 1) * BLOCK))
    event = BlockStored(
        block_hashes=[block_hash],
        parent_block_hash=None,
        token_ids=tokens,
        block_size=BLOCK,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    return encode_batch(EventBatch(1.0, [event], 0, epoch))


def outcome(consumer: Consumer, publisher: Publisher, stream: list[bytes]) -> str:
    """Feed the batches, and see which of them were read."""
    assert publisher.has_reader(60.0), "no reader subscribed in a minute"
    epoch = decode_batch(stream[0]).publisher_epoch
    batches = [batch(1, epoch), *stream, batch(2, epoch)]
    for payload in batches:
        publisher.publish_bytes(payload)
    every = frozenset(range(len(batches)))
    plain = {n for n in every if b"continuation_id" not in batches[n]}

    def has_read(numbers: Set[int]) -> bool:
        return consumer.has_read(batches, numbers)

    wait_until(lambda: has_read(every) or consumer.refused(), 5.0)
    # What it takes in behind a batch that it refused may still be on its way.
    wait_until(lambda: has_read(every) or has_read(plain), 2.0)
    for numbers, name in ((every, READS), (plain, LOSES_LABELED), (set(), LOSES_ALL)):
        if has_read(numbers):
            return name
    return "something else"


CELLS = [(row, name) for row in EXPECTED for name in CONSUMERS]


@pytest.mark.parametrize(("row", "name"), CELLS, ids=lambda value: str(value))
def test_a_consumer_makes_of_a_stream_what_the_table_says(
    row: str, name: str, streams: dict[str, list[bytes]]
) -> None:
    if not (ALL or name.startswith("smg")):
        pytest.skip("the strict consumers are for CI, or CONSUMERS=all")
    publisher = Publisher(replay=False)
    try:
        with CONSUMERS[name](publisher.endpoint) as consumer:
            found = outcome(consumer, publisher, streams[row])
    finally:
        publisher.close()
    assert found == EXPECTED[row][list(CONSUMERS).index(name)]


def test_the_docs_show_the_table() -> None:
    """Written here where it differs, so that it is never older than the tests."""
    before = PAGE.read_text()
    head, _, rest = before.partition(f"{BEGIN}\n")
    tail = rest.partition(f"{END}\n")[2]
    written = f"{head}{BEGIN}\n{table()}{END}\n{tail}"
    if before != written and os.environ.get("CONSUMERS") == "all":
        PAGE.write_text(written)
    assert PAGE.read_text() == written, "CONSUMERS=all python -m pytest writes it anew"


def table() -> str:
    """What is expected of each consumer, as a table."""
    rows = [("stream", *CONSUMERS), ("---",) * (len(CONSUMERS) + 1)]
    rows += [(kind, *cells) for kind, cells in EXPECTED.items()]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)
