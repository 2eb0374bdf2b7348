# SPDX-License-Identifier: Apache-2.0
"""What other projects' consumers make of each kind of stream, as a table.

Each gets three batches from a real socket: a stock one, one of the kind, a
stock one. The strict two are a 100 MB download; they are run where the
environment has `CI`, or `CONSUMERS=all`.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from stream.publishing import Publisher
from stream.third_party import BLOCK, Consumer, Dynamo, Router, Smg, wait_until

from vllm_coordinates.stream.wire import BlockRemoved, BlockStored, Event, EventBatch

PAGE = Path(__file__).parents[2] / "docs" / "evolution.md"
BEGIN = "<!-- third parties: written by tests/stream/test_third_party.py -->"
END = "<!-- end of third parties -->"
ALL = "CI" in os.environ or os.environ.get("CONSUMERS") == "all"

READS = "reads all"
LOSES_IT = "loses that batch"
LOSES_ALL = "loses every batch"

CONSUMERS: dict[str, Callable[[str], AbstractContextManager[Consumer]]] = {
    "smg-grpc-servicer 0.14.1": Smg.on,
    "ai-dynamo-runtime 1.6.1": Dynamo.on,
    "vllm-router 0.1.17": Router.on,
}
EXPECTED: dict[str, tuple[str, str, str]] = {
    "stock": (READS, READS, READS),
    "labels kept off (`coordinates: false`)": (READS, READS, READS),
    "labeled": (READS, READS, LOSES_IT),
    "full mode, labeled": (READS, READS, LOSES_IT),
    "coordinates mode": (READS, READS, LOSES_IT),
    "stock, epoch sent": (READS, LOSES_ALL, LOSES_ALL),
    "labeled, epoch sent": (READS, LOSES_ALL, LOSES_ALL),
}


def stored(block_hash: int, **labels: Any) -> BlockStored:
    fields: dict[str, Any] = {
        "block_hashes": [block_hash],
        "parent_block_hash": None,
        "token_ids": list(range(block_hash * BLOCK, (block_hash + 1) * BLOCK)),
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return BlockStored(**fields | labels)


def removed(block_hash: int, **labels: Any) -> BlockRemoved:
    fields: dict[str, Any] = {"block_hashes": [block_hash], "medium": "GPU"}
    return BlockRemoved(**fields | {"group_idx": 0} | labels)


LABELS: dict[str, Any] = {"session_id": "s", "continuation_id": "c"}
STOCK: list[Event] = [stored(2, session_id="s"), stored(9), removed(9)]
LABELED: list[Event] = [
    stored(2, **LABELS),
    stored(9, **LABELS),
    removed(9, continuation_id="c", num_tokens=BLOCK),
]
EMPTY: dict[str, Any] = {"block_hashes": [], "token_ids": []}
SPAN: dict[str, Any] = {"token_offset": 0, "num_tokens": 2 * BLOCK}
STREAMS: dict[str, tuple[list[Event], str | None]] = {
    "stock": (STOCK, None),
    "labels kept off (`coordinates: false`)": (STOCK, None),
    "labeled": (LABELED, None),
    "full mode, labeled": ([*LABELED, stored(2, **LABELS)], None),
    "coordinates mode": (
        [
            stored(2, **LABELS | EMPTY | SPAN),
            removed(2, continuation_id="c", **SPAN | {"block_hashes": []}),
        ],
        None,
    ),
    "stock, epoch sent": (STOCK, "5f0c"),
    "labeled, epoch sent": (LABELED, "5f0c"),
}


def outcome(consumer: Consumer, publisher: Publisher, kind: str) -> str:
    """Feed the three batches, and see which of them were read."""
    events, epoch = STREAMS[kind]
    assert publisher.has_reader(60.0), "no reader subscribed in a minute"
    batches: list[list[Event]] = [[stored(1)], events, [stored(3)]]
    for number, batch in enumerate(batches):
        publisher.publish(EventBatch(1.0 + number, batch, 0, epoch))
    # A batch without hashes leaves no trace in a consumer that only knows these.
    silent = kind == "coordinates mode" and isinstance(consumer, Dynamo)
    wanted = {0, 2} if silent else {0, 1, 2}
    wait_until(lambda: wanted <= consumer.read() or consumer.refused(), 5.0)
    wait_until(lambda: 2 in consumer.read(), 2.0)
    read = consumer.read()
    if wanted <= read:
        return READS
    return LOSES_IT if {0, 2} <= read else f"reads only {read}" if read else LOSES_ALL


CELLS = [(kind, name) for kind in STREAMS for name in CONSUMERS]


@pytest.mark.parametrize(("kind", "name"), CELLS, ids=lambda value: str(value))
def test_a_consumer_makes_of_a_stream_what_the_table_says(kind: str, name: str) -> None:
    if not (ALL or name.startswith("smg")):
        pytest.skip("the strict consumers are for CI, or CONSUMERS=all")
    publisher = Publisher(replay=False)
    try:
        with CONSUMERS[name](publisher.endpoint) as consumer:
            found = outcome(consumer, publisher, kind)
    finally:
        publisher.close()
    assert found == EXPECTED[kind][list(CONSUMERS).index(name)]


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
