# SPDX-License-Identifier: Apache-2.0
"""How the reader knows: each sign of a gap or a restart, and what it says."""

import pytest

from vllm_coordinates.stream.sequence import (
    Batch,
    Delivery,
    Dropped,
    Reason,
    Resumed,
    Sequencer,
    Suspended,
    Trouble,
)
from vllm_coordinates.stream.wire import EventBatch, encode_batch


def frame(seq: int, *, of: str = "first", epoch: str | None = None) -> bytes:
    """The payload that publisher `of` sends as batch `seq`."""
    started = {"first": 0.0, "second": 1000.0}[of]
    return encode_batch(EventBatch(started + seq, [], 0, epoch))


def history(first: int, last: int, *, of: str = "first") -> list[tuple[int, bytes]]:
    return [(seq, frame(seq, of=of)) for seq in range(first, last + 1)]


def read(reader: Sequencer, *seqs: int, of: str = "first") -> list[Delivery]:
    return [d for seq in seqs for d in reader.frame(seq, frame(seq, of=of), 0.0)]


def batches(deliveries: list[Delivery]) -> list[int]:
    return [d.seq for d in deliveries if isinstance(d, Batch)]


def dropped(deliveries: list[Delivery]) -> tuple[Reason, str]:
    (only,) = [d for d in deliveries if isinstance(d, Dropped)]
    return only.reason, only.detail


@pytest.fixture
def reader() -> Sequencer:
    """A reader of a publisher with neither epoch nor replay socket."""
    return Sequencer("e")


@pytest.fixture
def healer() -> Sequencer:
    """A reader of a publisher with a replay socket."""
    return Sequencer("e", replayable=True)


def test_batches_come_in_order(reader: Sequencer) -> None:
    assert batches(read(reader, 0, 1, 2)) == [0, 1, 2]


def test_a_repeated_batch_is_skipped_and_said(reader: Sequencer) -> None:
    assert read(reader, 0, 1, 0)[-1] == Trouble(
        "e", 0.0, "repeated", "batch 0 came again"
    )


def test_a_late_reader_says_so(reader: Sequencer) -> None:
    late, first = read(reader, 5)
    assert late == Trouble(
        "e", 0.0, "late", "reading begins at batch 5; what came before is unknown"
    )
    assert batches([first]) == [5]


def test_a_gap_without_a_replay_socket_drops(reader: Sequencer) -> None:
    found = read(reader, 0, 3)
    assert dropped(found) == (
        Reason.GAP,
        "batches 1 to 2 are lost, and there is no replay socket",
    )
    assert batches(found) == [0, 3]


def test_a_gap_is_healed_before_what_followed_it(healer: Sequencer) -> None:
    found = read(healer, 0, 3, 4)
    assert found[-1] == Suspended("e", 0.0, "batches 1 to 2 are missing")
    assert healer.wants == 0
    healed = healer.replay(history(0, 3), None, 0.0)
    assert batches(healed) == [1, 2, 3, 4]
    assert any(isinstance(d, Resumed) for d in healed)
    assert healer.wants is None


def test_a_gap_that_the_replay_forgot_drops(healer: Sequencer) -> None:
    read(healer, 0, 9)
    found = healer.replay(history(5, 9), None, 0.0)
    assert dropped(found) == (
        Reason.GAP,
        "the publisher remembers batches from 5 on only, 0 was the last read",
    )
    assert batches(found) == [5, 6, 7, 8, 9]


def test_a_replay_that_fails_drops(healer: Sequencer) -> None:
    read(healer, 0, 2)
    found = healer.replay([], "no complete answer in 5 s", 0.0)
    assert dropped(found) == (
        Reason.GAP,
        "the replay socket failed: no complete answer in 5 s",
    )
    assert batches(found) == [2]


def test_a_replay_with_holes_is_asked_again_while_it_helps(healer: Sequencer) -> None:
    read(healer, 0, 9)
    assert batches(healer.replay([*history(0, 3), *history(6, 9)], None, 0.0)) == [
        1,
        2,
        3,
    ]
    assert healer.wants == 3
    found = healer.replay([*history(3, 3), *history(6, 9)], None, 0.0)
    assert dropped(found) == (Reason.GAP, "batches 4 to 5 are lost")
    assert batches(found) == [6, 7, 8, 9]


def test_another_epoch_is_a_restart(reader: Sequencer) -> None:
    reader.frame(0, frame(0, epoch="one"), 0.0)
    found = reader.frame(1, frame(1, of="second", epoch="two"), 0.0)
    assert dropped(found) == (Reason.EPOCH, "epoch two follows epoch one")
    assert batches(found) == [1]


def test_an_epoch_that_begins_to_be_sent_is_a_restart(reader: Sequencer) -> None:
    read(reader, 0)
    found = reader.frame(1, frame(1, epoch="one"), 0.0)
    assert dropped(found) == (Reason.EPOCH, "epoch one follows epoch None")


def test_a_number_that_goes_back_is_a_restart(reader: Sequencer) -> None:
    read(reader, 0, 1, 2)
    found = read(reader, 0, of="second")
    assert dropped(found) == (Reason.REGRESSION, "batch 0 came after batch 2")
    assert batches(found) == [0]


def test_a_history_that_differs_is_a_restart(healer: Sequencer) -> None:
    """Sequence numbers alone would heal this gap with another engine's batches."""
    read(healer, 0, 1)
    found = read(healer, 4, of="second")
    found = healer.replay(history(1, 4, of="second"), None, 0.0)
    assert dropped(found) == (
        Reason.HISTORY,
        "the publisher's batch 1 is another one than was read",
    )
    assert healer.wants == 0
    assert batches(healer.replay(history(0, 4, of="second"), None, 0.0)) == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_a_history_that_ended_before_is_a_restart(healer: Sequencer) -> None:
    read(healer, 0, 1, 2)
    healer.disconnected(0.0)
    healer.connected(0.0)
    assert dropped(healer.replay([], None, 0.0)) == (
        Reason.HISTORY,
        "the publisher remembers no batch from 2 on",
    )


def test_a_history_that_starts_where_another_would_go_on_proves_nothing(
    healer: Sequencer,
) -> None:
    read(healer, 0, 1)
    read(healer, 4, of="second")
    found = healer.replay(history(2, 4, of="second"), None, 0.0)
    assert dropped(found)[0] is Reason.GAP


def test_a_lost_connection_suspends_until_the_history_is_proven(
    healer: Sequencer,
) -> None:
    read(healer, 0, 1)
    assert healer.disconnected(0.0) == [Suspended("e", 0.0, "the connection was lost")]
    assert healer.connected(0.0) == []
    found = healer.replay(history(1, 3), None, 0.0)
    assert batches(found) == [2, 3]
    assert found[-1] == Resumed("e", 0.0)


def test_a_lost_connection_suspends_until_the_epoch_shows_again(
    reader: Sequencer,
) -> None:
    reader.frame(0, frame(0, epoch="one"), 0.0)
    assert reader.disconnected(0.0) == [Suspended("e", 0.0, "the connection was lost")]
    found = reader.frame(1, frame(1, epoch="one"), 0.0)
    assert found[0] == Resumed("e", 0.0)
    assert batches(found) == [1]


def test_a_lost_connection_drops_where_nothing_can_prove_anything(
    reader: Sequencer,
) -> None:
    """The next batch of another engine may well bear the next number."""
    read(reader, 0)
    assert dropped(reader.disconnected(0.0)) == (
        Reason.CONNECTION,
        "the connection was lost, and there is neither an epoch nor a replay socket"
        " to prove that it is the same publisher",
    )
    assert batches(read(reader, 1, of="second")) == [1]


def test_an_announced_epoch_is_a_restart_before_any_batch(reader: Sequencer) -> None:
    read(reader, 0)
    assert reader.announced("one", 0.0) == []
    assert dropped(reader.announced("two", 0.0)) == (
        Reason.ANNOUNCED,
        "/kv_event_sources shows epoch two instead of one",
    )
    assert reader.announced("one", 0.0) == []
    assert batches(read(reader, 0, of="second")) == [0]


def test_an_announcement_agrees_with_the_epoch_on_the_wire(reader: Sequencer) -> None:
    reader.frame(0, frame(0, epoch="one"), 0.0)
    assert reader.announced("one", 0.0) == []
    assert dropped(reader.announced("two", 0.0))[0] is Reason.ANNOUNCED


def test_two_publishers_behind_one_endpoint_are_suspected(reader: Sequencer) -> None:
    for seq in (7, 8):
        reader.frame(seq, frame(seq, epoch="one"), 0.0)
        found = reader.frame(seq, frame(seq, of="second", epoch="two"), 0.0)
    assert dropped(found) == (
        Reason.EPOCH,
        "epoch two follows epoch one, which had replaced it;"
        " are two publishers behind one endpoint?",
    )


def test_two_publishers_do_not_make_the_reader_ask_for_ever(healer: Sequencer) -> None:
    healer.replay([], None, 0.0)
    asked = 0
    for seq in range(5, 25):
        for of in ("first", "second"):
            healer.frame(seq, frame(seq, of=of, epoch=of), 0.0)
            if healer.wants is not None:
                asked += 1
                healer.replay(history(0, seq, of=of), None, 0.0)
    assert asked <= 2


def test_a_stray_frame_changes_nothing(reader: Sequencer) -> None:
    read(reader, 0)
    assert reader.frame(9, b"\xc1", 0.0) == [
        Trouble(
            "e",
            0.0,
            "unreadable",
            "batch 9 is unreadable: MessagePack data is malformed:"
            " invalid opcode '\\xc1' (byte 0)",
        )
    ]
    assert batches(read(reader, 1)) == [1]


def test_an_unreadable_batch_drops(reader: Sequencer) -> None:
    read(reader, 0)
    assert dropped(reader.frame(1, b"", 0.0)) == (
        Reason.UNREADABLE,
        "batch 1 is unreadable: Input data was truncated",
    )
    assert batches(read(reader, 2)) == [2]


def test_a_batch_that_came_damaged_is_read_from_the_replay(healer: Sequencer) -> None:
    read(healer, 0)
    trouble, suspended = healer.frame(1, b"", 0.0)
    assert isinstance(trouble, Trouble) and isinstance(suspended, Suspended)
    assert batches(healer.replay(history(0, 1), None, 0.0)) == [1]


def test_a_batch_that_is_unreadable_in_the_replay_too_drops(healer: Sequencer) -> None:
    read(healer, 0)
    healer.frame(1, b"", 0.0)
    found = healer.replay([*history(0, 0), (1, b""), *history(2, 2)], None, 0.0)
    assert dropped(found)[0] is Reason.UNREADABLE
    assert batches(found) == [2]


def test_a_reader_begins_with_what_the_publisher_remembers(healer: Sequencer) -> None:
    assert healer.begin()
    assert batches(read(healer, 2)) == []
    assert batches(healer.replay(history(0, 2), None, 0.0)) == [0, 1, 2]
    assert not healer.begin()


@pytest.mark.parametrize("epoch", [None, "one"])
def test_what_a_dead_publisher_sent_does_not_outlive_the_connection(
    healer: Sequencer, epoch: str | None
) -> None:
    """The next one is idle, so nothing else would ever correct it."""
    assert healer.frame(2, frame(2, epoch=epoch), 0.0) == []
    assert healer.disconnected(0.0) == healer.connected(0.0) == []
    assert healer.wants == 0
    assert healer.replay([], None, 0.0) == []
    assert batches(read(healer, 0, of="second")) == [0]


@pytest.mark.parametrize("epoch", [None, "one"])
def test_what_followed_a_gap_does_not_outlive_the_connection(
    healer: Sequencer, epoch: str | None
) -> None:
    for seq in (0, 2):
        healer.frame(seq, frame(seq, epoch=epoch), 0.0)
    healer.disconnected(0.0)
    healer.connected(0.0)
    assert dropped(healer.replay([], None, 0.0))[0] is Reason.HISTORY
    assert healer.wants == 0
    assert healer.replay([], None, 0.0) == []


def test_an_answer_from_before_the_connection_was_lost_does_not_count(
    healer: Sequencer,
) -> None:
    assert healer.begin()
    healer.disconnected(0.0)
    assert not healer.begin()
    assert healer.replay(history(0, 1), None, 0.0) == []
    healer.connected(0.0)
    assert batches(healer.replay(history(0, 0, of="second"), None, 0.0)) == [0]


def test_what_comes_before_the_connection_is_known_to_be_back_proves_nothing(
    healer: Sequencer,
) -> None:
    """The next publisher's number may be the one that is awaited."""
    read(healer, 0, 1)
    healer.disconnected(0.0)
    assert read(healer, 2, of="second") == []
    healer.connected(0.0)
    found = healer.replay(history(1, 2, of="second"), None, 0.0)
    assert dropped(found)[0] is Reason.HISTORY
    found = healer.replay(history(0, 2, of="second"), None, 0.0)
    assert batches(found) == [0, 1, 2]


def test_what_comes_after_the_connection_is_back_is_not_lost(
    healer: Sequencer,
) -> None:
    read(healer, 0, 1)
    healer.disconnected(0.0)
    healer.connected(0.0)
    assert read(healer, 3, of="second") == []
    healer.replay(history(1, 2, of="second"), None, 0.0)
    found = healer.replay(history(0, 2, of="second"), None, 0.0)
    assert batches(found) == [0, 1, 2, 3]


def test_what_was_heard_before_the_connection_was_lost_is_missed(
    healer: Sequencer,
) -> None:
    """The replay socket may lose its last replies, too."""
    read(healer, 0, 3)
    healer.disconnected(0.0)
    healer.connected(0.0)
    found = healer.replay(history(0, 1), None, 0.0)
    assert batches(found) == [1] and healer.wants == 1
    assert not any(isinstance(d, Resumed) for d in found)
    assert dropped(healer.replay(history(1, 1), None, 0.0)) == (
        Reason.GAP,
        "batches 2 to 3 are lost",
    )


def test_frames_of_a_publisher_that_another_replaced_unseen_are_let_go(
    healer: Sequencer,
) -> None:
    """The connection stood: a proxy hid the restart."""
    read(healer, 0, 2)
    assert dropped(healer.replay([], None, 0.0))[0] is Reason.HISTORY
    assert healer.replay([], None, 0.0) == []


def test_of_those_frames_the_next_epoch_s_are_kept(healer: Sequencer) -> None:
    for seq in (0, 2):
        healer.frame(seq, frame(seq, epoch="one"), 0.0)
    later = frame(1, of="second", epoch="two")
    healer.frame(1, later, 0.0)
    answer = [(1, later)]
    assert dropped(healer.replay(answer, None, 0.0)) == (
        Reason.EPOCH,
        "epoch two follows epoch one",
    )
    assert batches(healer.replay([], None, 0.0)) == [1]


@pytest.mark.parametrize("last", [0, None], ids=["a gap", "a late reader"])
def test_nothing_counts_of_a_history_that_breaks_off(
    healer: Sequencer, last: int | None
) -> None:
    """Batch 2 may have removed what batch 1 stored."""
    if last is not None:
        read(healer, last)
    read(healer, 3)
    assert batches(healer.replay(history(0, 1), "it broke off", 0.0)) == [3]
    assert batches(read(healer, 4)) == [4]


def test_an_announced_epoch_is_the_one_that_is_known_next(reader: Sequencer) -> None:
    for seq, epoch in enumerate(("one", "two", "three")):
        assert bool(reader.announced(epoch, 0.0)) is (seq > 0)
        assert batches(read(reader, seq)) == [seq]


def test_a_late_batch_of_an_epoch_that_is_gone_is_no_coverage(
    reader: Sequencer,
) -> None:
    reader.announced("one", 0.0)
    reader.frame(0, frame(0, epoch="one"), 0.0)
    assert dropped(reader.announced("two", 0.0))[0] is Reason.ANNOUNCED
    assert reader.frame(1, frame(1, epoch="one"), 0.0) == [
        Trouble("e", 0.0, "gone", "batch 1 is of epoch one, which is gone")
    ]
    found = reader.frame(0, frame(0, of="second", epoch="two"), 0.0)
    assert batches(found) == [0] and len(found) == 1


def test_an_announcement_that_says_nothing_new_is_no_restart(
    reader: Sequencer,
) -> None:
    """The server is asked every other second; the stream may know more."""
    reader.announced("one", 0.0)
    reader.frame(0, frame(0, epoch="one"), 0.0)
    reader.frame(0, frame(0, of="second", epoch="two"), 0.0)
    assert reader.announced("one", 0.0) == []
    assert reader.announced("two", 0.0) == []
    assert batches(reader.frame(1, frame(1, of="second", epoch="two"), 0.0)) == [1]


def test_an_announced_restart_asks_for_the_history_of_the_next(
    healer: Sequencer,
) -> None:
    healer.announced("one", 0.0)
    read(healer, 0, 2)
    assert dropped(healer.announced("two", 0.0))[0] is Reason.ANNOUNCED
    assert healer.wants == 0
    assert batches(healer.replay(history(0, 0, of="second"), None, 0.0)) == [0]


def test_an_announced_restart_lets_a_late_reader_s_frames_go(
    healer: Sequencer,
) -> None:
    healer.announced("one", 0.0)
    read(healer, 2)
    assert healer.announced("two", 0.0) == []
    assert healer.replay([], None, 0.0) == []
