# SPDX-License-Identifier: Apache-2.0
"""The demonstration's verdict: it names whatever the events lack."""

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from cpu_engine.conversation import Sent
from cpu_engine.report import Exchange, faults, table
from cpu_engine.tap import Frame
from vllm_coordinates.stream.wire import (
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    encode_batch,
)

BLOCK = 4
EPOCH = "e" * 32
SENT = Sent("alice", "c" * 32, tokens=tuple(range(11)), cached=4)


def stored(**changed: Any) -> BlockStored:
    fields: dict[str, Any] = {
        "block_hashes": [1],
        "parent_block_hash": None,
        "token_ids": [4, 5, 6, 7],
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "session_id": SENT.session_id,
        "continuation_id": SENT.continuation_id,
    }
    return BlockStored(**fields | changed)


def removed(continuation_id: str | None = "d" * 32) -> BlockRemoved:
    return BlockRemoved(block_hashes=[2], medium="GPU", continuation_id=continuation_id)


def exchange(*events: Event, epoch: str | None = EPOCH) -> Exchange:
    batch = EventBatch(0.0, list(events), 0, epoch)
    return Exchange(SENT, (Frame(0, encode_batch(batch)),))


def test_nothing_is_missing_where_all_came_back() -> None:
    assert faults([exchange(removed(), stored())], BLOCK, EPOCH) == []


@pytest.mark.parametrize(
    ("spoiled", "fault"),
    [
        pytest.param(
            exchange(removed(), stored(session_id=None)),
            "Turn 1: an admission lacks session_id alice.",
            id="session",
        ),
        pytest.param(
            exchange(removed(), stored(continuation_id="another")),
            f"Turn 1: an admission lacks continuation_id {SENT.continuation_id}.",
            id="continuation",
        ),
        pytest.param(
            exchange(removed(), stored(token_ids=[4, 5, 6, 8])),
            "Turn 1: the admissions hold other tokens than were sent.",
            id="tokens",
        ),
        pytest.param(
            exchange(removed()),
            "Turn 1: the admissions hold other tokens than were sent.",
            id="admission",
        ),
        pytest.param(
            exchange(removed(None), stored()),
            "Turn 1: an eviction lacks a continuation_id.",
            id="removal",
        ),
        pytest.param(
            exchange(removed(), stored(), epoch=None),
            f"Turn 1: a batch lacks publisher_epoch {EPOCH}.",
            id="epoch",
        ),
        pytest.param(exchange(stored()), "No eviction was published.", id="eviction"),
    ],
)
def test_what_is_missing_is_named(spoiled: Exchange, fault: str) -> None:
    assert faults([spoiled], BLOCK, EPOCH) == [fault]


def test_a_server_without_an_epoch_is_named() -> None:
    found = faults([exchange(removed(), stored(), epoch=None)], BLOCK, None)
    assert found == ["GET /kv_event_sources shows no publisher_epoch."]


def test_a_turn_that_brought_nothing_in_needs_no_event() -> None:
    shared = Exchange(replace(SENT, cached=8), ())
    assert faults([exchange(removed(), stored()), shared], BLOCK, EPOCH) == []


def test_the_table_fits_in_80_columns() -> None:
    drawn = StringIO()
    Console(width=200, file=drawn).print(table([exchange(removed(), stored())], BLOCK))
    lines = drawn.getvalue().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert any("removed" in line and "dddddddddddd" in line for line in lines)
