# SPDX-License-Identifier: Apache-2.0
"""Old reads new, new reads old: stock's structs, the patched ones and the kit's.

`docs/evolution.md` says so. Stock runs in a process of its own, since a process has
room for one vLLM.
"""

import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from trees import environment, stock_tree
from vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
)
from vllm.distributed.publisher_epoch import with_epoch
from vllm_coordinates.stream.wire import decode_batch

OURS = {"continuation_id", "token_offset", "num_tokens"}

STOCK = """
import json, sys
import msgspec
from vllm.distributed.kv_events import (
    AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
)

stored = BlockStored([1, 2], None, [3] * 8, 4, None, "GPU", None, session_id="s")
events = [stored, BlockRemoved([1], "GPU", group_idx=0), AllBlocksCleared()]
batch = KVEventBatch(1.0, events, 0)
said = [msgspec.msgpack.encode(batch).hex(), msgspec.to_builtins(batch)]
read = [
    msgspec.to_builtins(msgspec.msgpack.decode(bytes.fromhex(sent), type=KVEventBatch))
    for sent in json.loads(sys.argv[1])
]
print("\\n" + json.dumps([said, read]))
"""

STORED: dict[str, Any] = {
    "block_hashes": [1, 2],
    "parent_block_hash": None,
    "token_ids": [3] * 8,
    "block_size": 4,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "group_idx": 0,
    "session_id": "s",
}
EMPTY: dict[str, Any] = {"block_hashes": [], "token_ids": []}
SPAN: dict[str, Any] = {"token_offset": 0, "num_tokens": 8}
LABEL: dict[str, Any] = {"continuation_id": "c"}
LABELED = [
    BlockStored(**STORED, **LABEL),
    BlockRemoved([1], "GPU", group_idx=0, num_tokens=4, **LABEL),
    AllBlocksCleared(),
]
KINDS: dict[str, Any] = {
    "unlabeled": KVEventBatch(1.0, [BlockStored(**STORED)], 0),
    "labeled": KVEventBatch(1.0, LABELED, 0),
    "coordinates": KVEventBatch(
        1.0,
        [
            BlockStored(**STORED | EMPTY | SPAN | LABEL),
            BlockRemoved([], "GPU", group_idx=0, **SPAN, **LABEL),
        ],
        0,
    ),
    "both languages": KVEventBatch(
        1.0, [BlockRemoved([1], "GPU", group_idx=0, **SPAN, **LABEL)], 0
    ),
    "with an epoch": with_epoch(KVEventBatch(1.0, LABELED, 0), "e"),
}


def encoded(batch: Any) -> bytes:
    return msgspec.msgpack.encode(batch)


def plain(batch: Any, *without: str) -> list[dict[str, Any]]:
    """The events' fields, those aside that are `without` a place in the comparison."""
    events = [msgspec.to_builtins(event) for event in batch.events]
    return [{k: v for k, v in e.items() if k not in without} for e in events]


@pytest.fixture(scope="module")
def stock(release: str) -> Any:
    """What stock's structs encode, and what they read of each kind."""
    sent = json.dumps([encoded(batch).hex() for batch in KINDS.values()])
    ran = subprocess.run(
        [sys.executable, "-c", STOCK, sent],
        env=environment(stock_tree(release)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_stock_reads_of_a_new_stream_what_it_knows(stock: Any, kind: str) -> None:
    _, read = stock
    [time, events, rank] = read[list(KINDS).index(kind)]
    assert (time, rank) == (1.0, 0)
    assert events == plain(KINDS[kind], *OURS)


def test_the_patched_structs_read_an_old_stream(stock: Any) -> None:
    (payload, [_, events, _]), _ = stock
    batch = msgspec.msgpack.decode(bytes.fromhex(payload), type=KVEventBatch)
    assert plain(batch) == events
    assert {getattr(e, name, None) for e in batch.events for name in OURS} == {None}


def test_the_kit_reads_an_old_stream(stock: Any) -> None:
    (payload, [_, events, _]), _ = stock
    batch = decode_batch(bytes.fromhex(payload))
    assert plain(batch) == events
    assert batch.publisher_epoch is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_kit_reads_a_new_stream_whole(kind: str) -> None:
    batch = decode_batch(encoded(KINDS[kind]))
    assert plain(batch) == plain(KINDS[kind])
    assert batch.publisher_epoch == getattr(KINDS[kind], "publisher_epoch", None)
