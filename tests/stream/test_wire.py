# SPDX-License-Identifier: Apache-2.0
"""The wire: old and new streams, and whatever else may arrive."""

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from vllm_coordinates.stream.wire import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    MalformedEvent,
    UnknownEvent,
    WireError,
    count_elements,
    decode_batch,
    encode_batch,
)

STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [b"h" * 32, 2**64 - 1],
    "parent_block_hash": None,
    "token_ids": [1, 2],
    "block_size": 1,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}
REMOVED: dict[str, Any] = {
    "type": "BlockRemoved",
    "block_hashes": [b"h" * 32],
    "medium": "GPU",
}


def pack(*elements: Any) -> bytes:
    return msgspec.msgpack.encode(elements)


def test_a_stock_batch_has_three_elements() -> None:
    batch = decode_batch(pack(1.5, [STORED, REMOVED, {"type": "AllBlocksCleared"}], 1))
    stored, removed, cleared = batch.events
    assert isinstance(stored, BlockStored) and stored.block_hashes[1] == 2**64 - 1
    assert isinstance(removed, BlockRemoved) and removed.continuation_id is None
    assert isinstance(cleared, AllBlocksCleared)
    assert (batch.ts, batch.data_parallel_rank, batch.publisher_epoch) == (1.5, 1, None)


def test_a_fourth_element_is_the_epoch() -> None:
    assert decode_batch(pack(1.0, [], 0, "epoch")).publisher_epoch == "epoch"


def test_elements_and_keys_of_later_releases_are_skipped() -> None:
    later = STORED | {"lookahead_token_ids": [[1]], "anything": {"deep": [1]}}
    (event,) = decode_batch(pack(1.0, [later], 0, None, {"fifth": 1})).events
    assert isinstance(event, BlockStored)


def test_an_event_type_of_a_later_release_costs_nothing_else() -> None:
    batch = decode_batch(pack(1.0, [{"type": "BlockMoved"}, REMOVED], 0))
    assert batch.events[0] == UnknownEvent("BlockMoved")
    assert isinstance(batch.events[1], BlockRemoved)


@pytest.mark.parametrize("key", sorted(STORED.keys() - {"type"}))
def test_an_event_without_a_required_key_is_malformed(key: str) -> None:
    broken = {name: value for name, value in STORED.items() if name != key}
    assert decode_batch(pack(1.0, [broken, REMOVED], 0)).events[0] == MalformedEvent(
        "BlockStored", f"Object missing required field `{key}`"
    )


@pytest.mark.parametrize("event", [None, 1, [], {}, {"type": 1}, "BlockStored"])
def test_what_is_no_event_is_malformed(event: Any) -> None:
    (found,) = decode_batch(pack(1.0, [event], 0)).events
    assert isinstance(found, MalformedEvent) and found.type == ""


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "Input data was truncated"),
        (pack(1.0, [STORED], 0)[:-3], "Input data was truncated"),
        (pack(1.0), "Expected `array` of at least length 2, got 1"),
        (b"\x93\xcb" + bytes(8) + b"\x91" * 100_000, "nested too deep"),
        (b"\xc1", r"MessagePack data is malformed: invalid opcode '\xc1' (byte 0)"),
        (pack("now", [], 0), "Expected `float`, got `str` - at `$[0]`"),
    ],
    ids=["empty", "truncated", "short", "deep", "opcode", "no time"],
)
def test_what_is_no_batch_is_an_error(payload: bytes, message: str) -> None:
    with pytest.raises(WireError) as error:
        decode_batch(payload)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("payload", "elements"),
    [
        (b"\x90", 0),
        (b"\x9f", 15),
        (b"\xdc\x00\x03", 3),
        (b"\xdd\x00\x01\x00\x00", 65536),
        (b"\x83", 0),
        (b"\xa0", 0),
        (b"", 0),
    ],
)
def test_elements_are_counted_for_every_header(payload: bytes, elements: int) -> None:
    assert count_elements(payload) == elements


def outcome(payload: bytes) -> EventBatch | str:
    """The batch, or what is wrong with it; anything else would be raised."""
    try:
        return decode_batch(payload)
    except WireError as error:
        return str(error)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_an_error(payload: bytes) -> None:
    assert outcome(payload)


@given(st.data())
def test_any_damage_to_a_batch_is_a_batch_or_an_error(data: st.DataObject) -> None:
    payload = bytearray(pack(1.0, [STORED, REMOVED], 0, "epoch"))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(
            st.integers(0, 255)
        )
    assert outcome(bytes(payload))


def test_encoding_keeps_what_the_contract_requires_and_no_more() -> None:
    event = BlockRemoved(block_hashes=[], medium="GPU", continuation_id="c")
    assert msgspec.msgpack.decode(encode_batch(EventBatch(1.0, [event], 0))) == [
        1.0,
        [
            {
                "type": "BlockRemoved",
                "block_hashes": [],
                "medium": "GPU",
                "continuation_id": "c",
            }
        ],
        0,
    ]


def test_encoding_adds_the_epoch_only_where_there_is_one() -> None:
    assert len(msgspec.msgpack.decode(encode_batch(EventBatch(1.0, [], 0, "e")))) == 4
