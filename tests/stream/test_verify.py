# SPDX-License-Identifier: Apache-2.0
"""Each rule of the contract, broken once; and nothing to say of a good stream."""

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings
from stream.model import Engine

from vllm_coordinates.stream import verify
from vllm_coordinates.stream.sequence import Batch, Dropped, Reason, Sequencer, Trouble
from vllm_coordinates.stream.verify import Verifier
from vllm_coordinates.stream.wire import EventBatch, decode_batch, encode_batch

STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [b"\xaa", b"\xbb"],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "group_idx": 0,
}
LABELED = STORED | {"continuation_id": "c", "session_id": "s"}
SPAN = LABELED | {
    "block_hashes": [],
    "token_ids": [],
    "token_offset": 0,
    "num_tokens": 4,
}
REMOVED: dict[str, Any] = {
    "type": "BlockRemoved",
    "block_hashes": [b"\xbb"],
    "medium": "GPU",
    "group_idx": 0,
}
LABELED_GONE = REMOVED | {"continuation_id": "c", "num_tokens": 4}
SPAN_GONE = LABELED_GONE | {"block_hashes": [], "token_offset": 2}


def complaints(*batches: Any) -> list[str]:
    """What is said of batches, each a list of events or the whole array."""
    verifier = Verifier()
    found: list[str] = []
    for seq, batch in enumerate(batches):
        array = batch if isinstance(batch, tuple) else (1.0, batch, 0)
        payload = msgspec.msgpack.encode(array)
        delivery = Batch("e", 0.0, seq, payload, decode_batch(payload))
        found += map(str, verifier.apply(delivery))
    return found


@pytest.mark.parametrize(
    "events",
    [
        [STORED, REMOVED],
        [LABELED, LABELED_GONE],
        [SPAN, SPAN_GONE],
        [LABELED, SPAN, LABELED_GONE | {"token_offset": 2}],
        [LABELED, STORED, LABELED_GONE, LABELED_GONE],
        [STORED, LABELED, REMOVED],
        [LABELED | {"medium": "CPU", "block_hashes": []}],
        [SPAN, {"type": "AllBlocksCleared"}, SPAN],
    ],
    ids=[
        "stock",
        "labeled",
        "coordinates",
        "both languages",
        "duplicates",
        "unlabeled first",
        "other tier",
        "reset",
    ],
)
def test_a_stream_that_keeps_the_contract(events: list[Any]) -> None:
    assert complaints(events) == []


@pytest.mark.parametrize(
    ("batches", "complaint"),
    [
        ([(1.0, [], 0, None, 1)], "batch 0: shape: the batch has 5 elements"),
        (
            [(1.0, [], 0, None)],
            "batch 0: shape: the batch has a fourth element that is no epoch",
        ),
        (
            [[{"type": "BlockMoved"}]],
            "batch 0 event 0: shape: an event of type 'BlockMoved' is none of the"
            " contract",
        ),
        (
            [[REMOVED | {"medium": 1}]],
            "batch 0 event 0: shape: a malformed event (Expected `str | null`, got"
            " `int` - at `$.medium`)",
        ),
        (
            [(1.0, [], 0, "one"), (1.0, [], 0, "two")],
            "batch 1: epoch: epoch two follows one and does not count from 0",
        ),
        ([(1.0, [], 0), (1.0, [], 1)], "batch 1: rank: rank 1 follows rank 0"),
        (
            [[SPAN | {"continuation_id": " "}]],
            "batch 0 event 0: label: ' ' is blank or has control characters",
        ),
        (
            [[SPAN | {"session_id": "s" * 257}]],
            "batch 0 event 0: label: a label of 257 characters",
        ),
        (
            [[STORED | {"block_hashes": []}]],
            "batch 0 event 0: names: a store names neither hashes nor a span",
        ),
        (
            [[SPAN | {"session_id": None}]],
            "batch 0 event 0: names: a report in coordinates lacks a label",
        ),
        (
            [[SPAN, SPAN_GONE | {"num_tokens": None}]],
            "batch 0 event 1: names: a removed span lacks its end or its continuation",
        ),
        (
            [[LABELED, LABELED_GONE | {"num_tokens": None}]],
            "batch 0 event 1: names: a removal has one of continuation_id and"
            " num_tokens",
        ),
        (
            [[STORED, REMOVED | {"block_hashes": []}]],
            "batch 0 event 1: names: a removal names neither a hash nor a span",
        ),
        (
            [[STORED, REMOVED | {"block_hashes": [b"\xaa", b"\xbb"]}]],
            "batch 0 event 1: one hash: a removal names 2 hashes",
        ),
        (
            [[SPAN | {"token_ids": [1]}]],
            "batch 0 event 0: language: a report in coordinates carries content",
        ),
        (
            [[LABELED | {"num_tokens": 4}]],
            "batch 0 event 0: language: a store by hash carries a span",
        ),
        (
            [[SPAN | {"num_tokens": 3}]],
            "batch 0 event 0: aligned: [0, 3) is no run of blocks of 2 tokens",
        ),
        (
            [[SPAN, SPAN_GONE | {"token_offset": 3}]],
            "batch 0 event 1: aligned: [3, 4) is no run of blocks of 2 tokens",
        ),
        (
            [[SPAN, STORED | {"block_size": 0, "token_ids": []}, SPAN_GONE]],
            "batch 0 event 1: aligned: a block of 0 tokens",
        ),
        (
            [[SPAN | {"block_size": -2}]],
            "batch 0 event 0: aligned: [0, 4) is no run of blocks of -2 tokens",
        ),
        (
            [[LABELED, SPAN, LABELED_GONE | {"token_offset": 0}]],
            "batch 0 event 2: aligned: [0, 4) is not the one block that its hash is",
        ),
        (
            [[SPAN, SPAN_GONE | {"token_offset": 4, "num_tokens": 6}]],
            "batch 0 event 1: admitted: [4, 6) of 'c' was never reported",
        ),
        (
            [[REMOVED]],
            "batch 0 event 0: admitted: hash bb was never reported",
        ),
        (
            [[LABELED, REMOVED]],
            "batch 0 event 1: attribution: the removal of hash bb, which 'c' reported,"
            " has no label",
        ),
        (
            [[LABELED, LABELED_GONE | {"continuation_id": "d"}]],
            "batch 0 event 1: attribution: hash bb is attributed to 'd', which never"
            " reported it",
        ),
        (
            [
                [LABELED, LABELED | {"continuation_id": "d"}],
                [LABELED_GONE | {"continuation_id": "d"}],
            ],
            "batch 1 event 0: attribution: hash bb is attributed to 'd', though 'c'"
            " admitted it first",
        ),
        (
            [
                [LABELED, LABELED | {"continuation_id": "d"}],
                [LABELED_GONE, LABELED_GONE | {"continuation_id": "d"}],
            ],
            "batch 1 event 1: attribution: hash bb was attributed to 'c' and is now"
            " to 'd'",
        ),
        (
            [[LABELED, LABELED_GONE | {"num_tokens": 2}]],
            "batch 0 event 1: attribution: hash bb covers 4 tokens, not 2",
        ),
        (
            [[LABELED, SPAN, LABELED_GONE]],
            "batch 0 event 2: withdrawn: 'c' reported [2, 4) in coordinates, and the"
            " removal has none",
        ),
        (
            [[SPAN, SPAN_GONE, SPAN_GONE | {"token_offset": 0, "num_tokens": 2}]],
            "batch 0 event 2: runs: [0, 2) touches the removal before it",
        ),
    ],
    ids=lambda value: value.split(": ", 1)[1] if isinstance(value, str) else None,
)
def test_a_broken_rule_is_said_with_its_batch(
    batches: list[Any], complaint: str
) -> None:
    assert complaints(*batches) == [f"e {complaint}"]


@pytest.mark.parametrize("header", [b"\x93", b"\xdc\x00\x03", b"\xdd\x00\x00\x00\x03"])
def test_elements_are_counted_however_the_array_is_written(header: bytes) -> None:
    payload = header + encode_batch(EventBatch(1.0, [], 0))[1:]
    batch = Batch("e", 0.0, 0, payload, decode_batch(payload))
    assert list(Verifier().apply(batch)) == []


def test_a_restart_whose_first_batches_were_not_heard_is_no_violation() -> None:
    reader, verifier = Sequencer("e"), Verifier()
    found: list[str] = []
    for seq, epoch in ((0, "one"), (1, "one"), (3, "two"), (4, "two")):
        payload = encode_batch(EventBatch(float(seq), [], 0, epoch))
        for delivery in reader.frame(seq, payload, 100.0 * seq):
            found += map(str, verifier.apply(delivery))
    assert found == []
    # Only right after the news that reading begins late.
    payload = encode_batch(EventBatch(5.0, [], 0, "three"))
    (violation,) = verifier.apply(Batch("e", 0.0, 5, payload, decode_batch(payload)))
    assert violation.rule == "epoch"


def span_of(name: str) -> list[Any]:
    return [
        SPAN | {"continuation_id": name, "num_tokens": 2},
        SPAN_GONE | {"continuation_id": name, "token_offset": 0, "num_tokens": 2},
    ]


@pytest.mark.parametrize(
    "batches",
    [
        [span_of(f"c{number}") for number in range(1000)],
        [[LABELED | {"continuation_id": f"c{number}"}] for number in range(1000)],
        [
            [STORED | {"block_hashes": [2 * number, 2 * number + 1]}]
            for number in range(1000)
        ],
        [[SPAN | {"group_idx": number}] for number in range(1000)],
    ],
    ids=["continuations", "reporters of one hash", "hashes", "groups"],
)
def test_what_is_kept_of_a_stream_has_a_bound(
    batches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_MOST_KEPT", 100)
    verifier = Verifier()
    for seq, events in enumerate(batches):
        payload = msgspec.msgpack.encode((1.0, events, 0))
        batch = Batch("e", 0.0, seq, payload, decode_batch(payload))
        assert list(verifier.apply(batch)) == []
        (publisher,) = verifier._publishers.values()
        kept = [
            *(known.reporters for known in publisher.hashes.values()),
            *publisher.hashed.values(),
            *publisher.told.values(),
            *publisher.open.values(),
            publisher.blocks,
            publisher.hashes,
        ]
        assert sum(map(len, kept)) == publisher.kept < 110
    assert verifier.kinds["histories too long to keep"] >= 4


def test_after_history_was_given_up_nothing_is_expected_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verify, "_MOST_KEPT", 3)
    assert complaints([SPAN], [LABELED | {"group_idx": 1}], [SPAN_GONE, REMOVED]) == []


def test_nothing_is_kept_of_what_was_withdrawn_but_that_it_was_reported() -> None:
    verifier = Verifier()
    payload = msgspec.msgpack.encode((1.0, span_of("c"), 0))
    batch = Batch("e", 0.0, 0, payload, decode_batch(payload))
    assert list(verifier.apply(batch)) == []
    (publisher,) = verifier._publishers.values()
    assert not publisher.open and not publisher.hashed
    assert publisher.told == {(0, "c"): [0, 2]}


NUMBERS = st.sampled_from((0, -1, 1, 2, 4, 2**63)) | st.integers(-(2**63), 2**64 - 1)
OTHERS = st.sampled_from((None, "", "c", b"\xbb", [], [b"\xbb"], [0]))
EVENTS = st.sampled_from((STORED, LABELED, SPAN, REMOVED, LABELED_GONE, SPAN_GONE))


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    event = dict(draw(EVENTS))
    if draw(st.booleans()):
        key = draw(st.sampled_from(("block_size", "token_offset", "num_tokens")))
        event[key] = draw(NUMBERS)
    if draw(st.integers(0, 3)) == 0:
        event[draw(st.sampled_from(sorted(event)))] = draw(NUMBERS | OTHERS)
    return event


@settings(max_examples=500, deadline=None)
@given(st.lists(st.lists(mutated(), max_size=6), min_size=1, max_size=4))
def test_no_stream_raises(batches: list[Any]) -> None:
    for complaint in complaints(*batches):
        assert complaint.startswith("e batch ")


def test_a_hole_is_said() -> None:
    verifier, payload = Verifier(), encode_batch(EventBatch(1.0, [], 0))
    reader = Sequencer("e")
    deliveries = [d for seq in (0, 2) for d in reader.frame(seq, payload, 0.0)]
    assert [str(v) for d in deliveries for v in verifier.apply(d)] == [
        "e: sequence: batch 1 is lost, and there is no replay socket"
    ]


def test_trouble_on_the_way_is_said() -> None:
    (found,) = Verifier().apply(Trouble("e", 0.0, "repeated", "batch 4 came again"))
    assert str(found) == "e: sequence: batch 4 came again"


def test_a_restart_is_no_violation_but_is_told() -> None:
    verifier = Verifier()
    assert not list(verifier.apply(Dropped("e", 0.0, Reason.EPOCH, "")))
    assert verifier.kinds == {"restart known by epoch": 1}


def test_after_a_hole_nothing_is_expected_of_history() -> None:
    verifier = Verifier()
    payload = msgspec.msgpack.encode((1.0, [REMOVED, SPAN_GONE], 0))
    batch = Batch("e", 0.0, 7, payload, decode_batch(payload))
    assert list(verifier.apply(batch)) == []


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_an_engine_that_keeps_the_contract_is_never_accused(
    data: st.DataObject,
) -> None:
    engine, verifier = Engine(), Verifier()
    for seq in range(data.draw(st.integers(1, 12))):
        length = data.draw(st.integers(0, 20))
        kind = data.draw(st.sampled_from("ab"))
        mode = data.draw(st.sampled_from(("incremental", "full", "coordinates")))
        engine.request(
            tuple({"a": range(20), "b": range(8, 28)}[kind])[:length],
            mode=mode,
            continuation=kind,
            session="s",
            blind_from=data.draw(st.none() | st.integers(0, 3)),
        )
        for _ in range(min(data.draw(st.integers(0, 4)), len(engine.blocks))):
            engine.evict(data.draw(st.integers(0, len(engine.blocks) - 1)))
        payload = encode_batch(engine.take())
        found = verifier.apply(Batch("e", 0.0, seq, payload, decode_batch(payload)))
        assert [str(violation) for violation in found] == []
