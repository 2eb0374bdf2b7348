# SPDX-License-Identifier: Apache-2.0
"""Real sockets: late, slow, lossy, killed and hostile publishers."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

import pytest
import zmq
from stream.model import Engine
from stream.publishing import Publisher

from ports import free_ports
from vllm_coordinates.stream.index import Index
from vllm_coordinates.stream.sequence import (
    REACHED,
    UNREACHED,
    Batch,
    Delivery,
    Dropped,
    Reason,
    Resumed,
    Suspended,
    Trouble,
)
from vllm_coordinates.stream.subscriber import Source, Subscriber
from vllm_coordinates.stream.wire import EventBatch

Open = Callable[..., Publisher]


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def publisher_of(opened: ExitStack) -> Open:
    def open_one(**options: object) -> Publisher:
        publisher = Publisher(**options)  # type: ignore[arg-type]
        opened.callback(publisher.close)
        return publisher

    return open_one


def batch(ts: float, epoch: str | None = None) -> EventBatch:
    return EventBatch(ts, [], 0, epoch)


class Reader:
    """A subscriber and all it delivered."""

    def __init__(self, *sources: Source, **options: float) -> None:
        self.subscriber = Subscriber(sources, **options)  # type: ignore[arg-type]
        self.deliveries: list[Delivery] = []
        self.index = Index()

    def until(self, done: Callable[[], bool], seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, f"not in {seconds} s: {self.deliveries[-5:]}"
            for delivery in self.subscriber.poll(0.05):
                self.deliveries.append(delivery)
                self.index.apply(delivery)

    def until_batches(self, *seqs: int) -> None:
        self.until(lambda: self.batches[-len(seqs) :] == list(seqs))

    @property
    def batches(self) -> list[int]:
        return [d.seq for d in self.deliveries if isinstance(d, Batch)]

    def of(self, kind: type[Delivery]) -> list[Delivery]:
        return [d for d in self.deliveries if isinstance(d, kind)]


@pytest.fixture
def read(opened: ExitStack) -> Callable[..., Reader]:
    def start(*sources: Source, **options: float) -> Reader:
        reader = Reader(*sources, **options)
        opened.callback(reader.subscriber.close)
        return reader

    return start


def test_batches_arrive_in_order_from_any_number_of_endpoints(
    publisher_of: Open, read: Callable[..., Reader]
) -> None:
    publishers = [publisher_of() for _ in range(3)]
    reader = read(*(Source(p.endpoint) for p in publishers))
    for publisher in publishers:
        reader.until(publisher.has_reader)
        for ts in range(3):
            publisher.publish(batch(ts))
    reader.until(lambda: len(reader.batches) == 9)
    for publisher in publishers:
        mine = [d for d in reader.of(Batch) if d.endpoint == publisher.endpoint]
        assert [d.seq for d in mine if isinstance(d, Batch)] == [0, 1, 2]


def test_a_publisher_is_read_where_another_kind_of_socket_was(
    publisher_of: Open, read: Callable[..., Reader]
) -> None:
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    ports = free_ports(2)
    router.bind(f"tcp://127.0.0.1:{ports[0]}")
    monitor = router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    reader = read(Source(f"tcp://127.0.0.1:{ports[0]}"))
    reader.until(lambda: bool(monitor.poll(0)))
    router.disable_monitor()
    context.destroy(linger=0)
    publisher = publisher_of(ports=(ports[0], ports[1]))
    reader.until(publisher.has_reader)
    publisher.publish(batch(0))
    reader.until_batches(0)


def test_a_rank_is_an_endpoint_of_its_own_one_port_up() -> None:
    source = Source("tcp://host:5557", "tcp://host:6557")
    assert source.rank(2) == Source("tcp://host:5559", "tcp://host:6559")
    assert source.rank(0) == source
    with pytest.raises(ValueError, match=r"^'ipc:///a' has no port to count"):
        Source("ipc:///a").rank(1)


def test_a_star_is_an_address_only_to_bind() -> None:
    assert Source("tcp://*:5557", bind=True).endpoint == "tcp://*:5557"
    for address in ("tcp://*:5557", "tcp://host:*"):
        message = rf"^{re.escape(repr(address))} is an address to bind, not to connect"
        with pytest.raises(ValueError, match=message):
            Source(address)
        with pytest.raises(ValueError, match=message):
            Source("tcp://host:5557", address)


@pytest.mark.parametrize(
    "address", ["", "tcp://:1", "tcp://h:\uff15", "tcp://h\x1b[31m:1", "ipc://"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"is no address of a socket$"):
        Source(address)
    with pytest.raises(ValueError, match=r"is no address of a socket$"):
        Source("tcp://host:5557", address)


def test_a_replay_socket_that_cannot_be_asked_is_told(
    publisher_of: Open, read: Callable[..., Reader]
) -> None:
    publisher = publisher_of()
    reader = read(Source(publisher.endpoint, "ipc:///" + 200 * "x"))
    reader.until(publisher.has_reader)
    reader.until(lambda: bool(reader.of(Trouble)))
    (trouble,) = reader.of(Trouble)
    assert isinstance(trouble, Trouble) and trouble.what == "replay"
    publisher.publish(batch(0))
    publisher.publish(batch(1), heard=False)
    publisher.publish(batch(2))
    reader.until_batches(0, 2)
    (dropped,) = reader.of(Dropped)
    assert isinstance(dropped, Dropped) and dropped.reason is Reason.GAP
    assert dropped.detail.startswith("the replay socket failed: File name too long")


def test_an_epoch_is_announced_to_the_one_publisher_at_its_endpoint(
    publisher_of: Open, read: Callable[..., Reader]
) -> None:
    publisher = publisher_of(topic=b"kv-events")
    reader = read(Source(publisher.endpoint))
    reader.until(publisher.has_reader)
    publisher.publish(batch(0))
    reader.until_batches(0)
    assert reader.subscriber.announce({publisher.endpoint: "one"}) == []
    (dropped,) = reader.subscriber.announce({publisher.endpoint: "two"})
    assert isinstance(dropped, Dropped) and dropped.reason is Reason.ANNOUNCED
    publisher.publish(batch(1))
    publisher.send_frames([b"another", bytes(8), publisher.batches[0][1]])
    reader.until(lambda: len(reader.batches) == 3)
    assert reader.subscriber.announce({publisher.endpoint: "three"}) == []


def test_a_late_reader_learns_what_is_remembered_without_a_new_event(
    publisher_of: Open, read: Callable[..., Reader]
) -> None:
    publisher = publisher_of()
    for ts in range(4):
        publisher.publish(batch(ts))
    reader = read(Source(publisher.endpoint, publisher.replay))
    reader.until_batches(0, 1, 2, 3)
    publisher.publish(batch(9))
    reader.until_batches(0, 1, 2, 3, 4)
    assert not reader.of(Dropped) + reader.of(Trouble)


def test_a_gap_is_healed(publisher_of: Open, read: Callable[..., Reader]) -> None:
    publisher = publisher_of()
    reader = read(Source(publisher.endpoint, publisher.replay))
    reader.until(publisher.has_reader)
    publisher.publish(batch(0))
    reader.until_batches(0)
    for ts in range(1, 5):
        publisher.publish(batch(ts), heard=ts == 4)
    reader.until_batches(0, 1, 2, 3, 4)
    assert reader.of(Resumed) and not reader.of(Dropped)


def test_only_the_history_that_was_asked_for_is_replayed(
    publisher_of: Open, read: Callable[..., Reader]
) -> None:
    publisher = publisher_of()
    for ts in range(50):
        publisher.publish(batch(ts))
    reader = read(Source(publisher.endpoint, publisher.replay))
    reader.until(lambda: len(reader.batches) == 50)
    reader.until(publisher.has_reader)
    publisher.publish(batch(50), heard=False)
    publisher.publish(batch(51))
    reader.until_batches(49, 50, 51)
    assert publisher.asked[-1] == 49


class DroppingPublisher(Publisher):
    """Its replay queue is too short for a slow reader: replies are lost."""

    def answers(self, start: int) -> Iterable[tuple[bytes, ...]]:
        *batches, end = super().answers(start)
        return [*batches[:4], end]


def test_a_replay_that_loses_replies_is_asked_again(
    opened: ExitStack, read: Callable[..., Reader]
) -> None:
    publisher = DroppingPublisher()
    opened.callback(publisher.close)
    reader = read(Source(publisher.endpoint, publisher.replay))
    reader.until(publisher.has_reader)
    publisher.publish(batch(0))
    reader.until_batches(0)
    for ts in range(1, 12):
        publisher.publish(batch(ts), heard=ts == 11)
    reader.until_batches(*range(12))
    assert not reader.of(Dropped)


class SilentPublisher(Publisher):
    """Its replay socket never comes to the end."""

    def answers(self, start: int) -> Iterable[tuple[bytes, ...]]:
        return []


def test_a_replay_that_never_answers_drops_and_reading_goes_on(
    opened: ExitStack, read: Callable[..., Reader]
) -> None:
    publisher = SilentPublisher()
    opened.callback(publisher.close)
    reader = read(Source(publisher.endpoint, publisher.replay), replay_seconds=0.2)
    reader.until(publisher.has_reader)
    publisher.publish(batch(0))
    reader.until_batches(0)
    publisher.publish(batch(1), heard=False)
    publisher.publish(batch(2))
    reader.until_batches(0, 2)
    (dropped,) = reader.of(Dropped)
    assert isinstance(dropped, Dropped)
    assert dropped.reason is Reason.GAP
    assert dropped.detail == (
        f"the replay socket failed: no complete answer from {publisher.replay} in 0.2 s"
    )


class BreakingPublisher(Publisher):
    """Its answers break off after the first batch, with no end mark."""

    def answers(self, start: int) -> Iterable[tuple[bytes, ...]]:
        return [*super().answers(start)][:1]


def test_a_history_that_breaks_off_is_not_vouched_for(
    opened: ExitStack, read: Callable[..., Reader]
) -> None:
    """The batches that it lacks are removals."""
    publisher = BreakingPublisher()
    opened.callback(publisher.close)
    engine = Engine()
    engine.request(tuple(range(8)), continuation="c", session="s")
    publisher.publish(engine.take())
    engine.evict(0)
    publisher.publish(engine.take())
    reader = read(Source(publisher.endpoint, publisher.replay), replay_seconds=0.2)
    reader.until(lambda: bool(reader.of(Trouble)))
    assert not reader.batches
    publisher.publish(batch(2))
    reader.until_batches(2)
    assert not reader.index.holdings()


class SlowPublisher(Publisher):
    """Its replay socket takes its time, unless it is asked for everything."""

    def answers(self, start: int) -> Iterable[tuple[bytes, ...]]:
        time.sleep(0.7 if start else 0)
        return super().answers(start)


def test_an_older_question_does_not_end_a_newer_one(
    opened: ExitStack, read: Callable[..., Reader]
) -> None:
    """The connection broke between them; the first is never answered."""
    publisher = Publisher(replay=False)
    opened.callback(publisher.close)
    reader = read(Source(publisher.endpoint, publisher.replay), replay_seconds=1.0)
    reader.until(publisher.has_reader)
    for ts in range(4):
        publisher.publish(batch(ts), heard=ts != 2)
    reader.until(lambda: bool(reader.of(Suspended)))
    asked = time.monotonic()
    reader.until(lambda: time.monotonic() > asked + 0.5)
    publisher.close()
    same = SlowPublisher(ports=publisher.ports)
    opened.callback(same.close)
    same.batches.extend(publisher.batches)
    reader.until_batches(0, 1, 2, 3)
    assert time.monotonic() > asked + 1.0
    assert not reader.of(Dropped)


class BabblingPublisher(Publisher):
    """Its replay socket answers with something else."""

    def answers(self, start: int) -> Iterable[tuple[bytes, ...]]:
        return [(b"", b"no number", b"")]


def test_a_malformed_reply_drops_and_reading_goes_on(
    opened: ExitStack, read: Callable[..., Reader]
) -> None:
    publisher = BabblingPublisher()
    opened.callback(publisher.close)
    reader = read(Source(publisher.endpoint, publisher.replay))
    reader.until(publisher.has_reader)
    publisher.publish(batch(0))
    reader.until_batches(0)
    publisher.publish(batch(1), heard=False)
    publisher.publish(batch(2))
    reader.until_batches(0, 2)
    (dropped,) = reader.of(Dropped)
    assert isinstance(dropped, Dropped)
    assert dropped.detail == "the replay socket failed: a malformed reply"


HOSTILE = [
    [b"one frame"],
    [b"", b"short", b""],
    [b"", b"", b"", b""],
    [b"", bytes(8), b""],
    [b"", (5).to_bytes(8, "big"), b"\x93" * 1000],
    [b"", (5).to_bytes(8, "big"), b"\x93\xcb" + bytes(8) + b"\x91" * 500_000],
    [b"\xff\xfe topic", bytes(8), b"\xc1"],
]


@pytest.mark.parametrize("frames", HOSTILE, ids=range(len(HOSTILE)))
def test_any_bytes_are_reported_and_reading_goes_on(
    publisher_of: Open, read: Callable[..., Reader], frames: list[bytes]
) -> None:
    publisher = publisher_of()
    reader = read(Source(publisher.endpoint))
    reader.until(publisher.has_reader)
    publisher.send_frames(frames)
    publisher.publish(batch(0))
    reader.until_batches(0)
    (trouble,) = reader.of(Trouble)
    assert isinstance(trouble, Trouble) and trouble.what == "unreadable"
    assert reader.index.counts["trouble: unreadable"] == 1


def test_a_frame_of_100_mb_is_reported_and_reading_goes_on(
    publisher_of: Open, read: Callable[..., Reader]
) -> None:
    publisher = publisher_of()
    reader = read(Source(publisher.endpoint))
    reader.until(publisher.has_reader)
    publisher.send(7, bytes(100_000_000))
    publisher.publish(batch(0))
    reader.until_batches(0)
    (trouble,) = reader.of(Trouble)
    assert isinstance(trouble, Trouble)
    assert trouble.detail == "batch 7 has 100000000 bytes; 67108864 are read"


def test_more_topics_than_publishers_can_be_are_reported(
    publisher_of: Open, read: Callable[..., Reader]
) -> None:
    publisher = publisher_of()
    reader = read(Source(publisher.endpoint))
    reader.until(publisher.has_reader)
    for topic in range(300):
        publisher.send_frames([str(topic).encode(), bytes(8), b""])
    reader.until(lambda: len(reader.of(Trouble)) == 300)
    last = reader.of(Trouble)[-1]
    assert isinstance(last, Trouble)
    assert last.detail == "more than 256 topics; batch 0 is skipped"


def test_publishers_that_connect_are_told_apart_by_topic(
    opened: ExitStack, read: Callable[..., Reader]
) -> None:
    """As where one reader binds, and each publisher's topic names its pod."""
    publisher = Publisher(topic=b"kv@pod-1")
    opened.callback(publisher.close)
    reader = read(Source(publisher.endpoint, topic="kv@"))
    reader.until(publisher.has_reader)
    publisher.publish(batch(0))
    publisher.send_frames(
        [b"kv@pod-2", bytes(8), publisher.batches[0][1]],
    )
    reader.until(lambda: len(reader.batches) == 2)
    names = [delivery.endpoint for delivery in reader.of(Batch)]
    assert names == [f"{publisher.endpoint} kv@pod-{pod}" for pod in (1, 2)]
    assert not reader.of(Dropped)


def test_a_reader_that_stalls_loses_nothing(
    publisher_of: Open, read: Callable[..., Reader]
) -> None:
    publisher = publisher_of()
    reader = read(Source(publisher.endpoint))
    reader.until(publisher.has_reader)
    for ts in range(20_000):
        publisher.publish(batch(ts))
    reader.until(lambda: len(reader.batches) == 20_000)
    assert not reader.of(Dropped)


def live_and_die(
    publisher: Publisher, generation: int, reader: Reader, *, epochs: bool, busy: bool
) -> None:
    """One life of an engine, from the first admission to the kill."""
    engine, name = Engine(clock=1000.0 * generation), f"c{generation}"
    epoch = f"epoch {generation}" if epochs else None
    lengths = (4, 8, 12) if busy else (4,)
    for length in lengths:
        engine.request(tuple(range(length)), continuation=name, session="s")
        publisher.publish(engine.take(epoch))
    reader.until(lambda: reader.index.prefix(publisher.endpoint, name) == lengths[-1])
    assert [h.continuation_id for h in reader.index.holdings()] == [name]
    publisher.close()
    reader.until(lambda: not reader.index.holdings())


@pytest.mark.parametrize("traffic", [False, True], ids=["silent", "busy"])
@pytest.mark.parametrize(
    ("epochs", "replay", "reasons"),
    [
        (False, False, {Reason.CONNECTION}),
        (True, False, {Reason.EPOCH}),
        (False, True, {Reason.HISTORY, Reason.REGRESSION}),
        (True, True, {Reason.HISTORY, Reason.EPOCH}),
    ],
    ids=["nothing", "epoch", "replay", "both"],
)
def test_killed_and_started_again_on_the_same_port_twenty_times(
    opened: ExitStack,
    read: Callable[..., Reader],
    epochs: bool,
    replay: bool,
    reasons: set[Reason],
    traffic: bool,
) -> None:
    """No phantom coverage, and the reader says how it knew."""
    first = Publisher(replay=replay)
    source = Source(first.endpoint, first.replay if replay else None)
    reader = read(source, replay_seconds=1.0)
    for generation in range(20):
        publisher = Publisher(ports=first.ports, replay=replay) if generation else first
        opened.callback(publisher.close)
        reader.until(publisher.has_reader)
        live_and_die(publisher, generation, reader, epochs=epochs, busy=traffic)
    drops = [d for d in reader.of(Dropped) if isinstance(d, Dropped)]
    assert len(drops) >= 19
    assert {drop.reason for drop in drops} <= reasons


def test_the_last_words_of_a_killed_publisher_are_not_the_next_ones(
    publisher_of: Open, read: Callable[..., Reader]
) -> None:
    publisher = publisher_of()
    reader = read(Source(publisher.endpoint))
    reader.until(publisher.has_reader)
    engine = Engine()
    for length in range(4, 400, 4):
        engine.request(tuple(range(length)), continuation="c", session="s")
        publisher.publish(engine.take())
    reader.until(lambda: bool(reader.batches))
    publisher.close()
    reader.until(lambda: bool(reader.of(Dropped)))
    assert not reader.index.holdings()


def test_frames_of_a_killed_publisher_do_not_outlive_it(
    publisher_of: Open, read: Callable[..., Reader]
) -> None:
    """It hung, so that its history was still awaited; the next one is idle."""
    publisher = publisher_of(replay=False)
    reader = read(Source(publisher.endpoint, publisher.replay), replay_seconds=1.0)
    for length in (4, 8):
        engine = Engine()
        engine.request(tuple(range(length)), continuation="c", session="s")
        if length == 8:
            reader.until(publisher.has_reader)
        publisher.publish(engine.take(), heard=length == 8)
    some = time.monotonic() + 0.3
    reader.until(lambda: time.monotonic() > some)
    publisher.close()
    following = publisher_of(ports=publisher.ports)
    reader.until(lambda: bool(following.asked))
    later = time.monotonic() + 1.5
    reader.until(lambda: time.monotonic() > later)
    assert not reader.batches and not reader.index.holdings()


def test_a_history_that_was_never_told_is_asked_of_the_next_publisher(
    publisher_of: Open, read: Callable[..., Reader]
) -> None:
    publisher = publisher_of(replay=False)
    reader = read(Source(publisher.endpoint, publisher.replay))
    reader.until(publisher.has_reader)
    publisher.close()
    following = publisher_of(ports=publisher.ports)
    following.publish(batch(0), heard=False)
    reader.until_batches(0)
    assert not reader.of(Trouble)


def test_a_connection_that_was_lost_and_is_back_before_anyone_looks(
    publisher_of: Open, read: Callable[..., Reader]
) -> None:
    publisher = publisher_of()
    reader = read(Source(publisher.endpoint, publisher.replay))
    reader.until(publisher.has_reader)
    publisher.publish(batch(0))
    reader.until_batches(0)
    publisher.close()
    following = publisher_of(ports=publisher.ports)
    for ts in range(1000, 1002):
        following.publish(batch(ts), heard=False)
    time.sleep(1.5)
    reader.until_batches(0, 0, 1)
    (dropped,) = reader.of(Dropped)
    assert isinstance(dropped, Dropped) and dropped.reason is Reason.HISTORY


def test_where_publishers_connect_one_may_go_and_the_others_are_read(
    publisher_of: Open, read: Callable[..., Reader], opened: ExitStack
) -> None:
    freed, publisher = publisher_of(), publisher_of(topic=b"stays")
    freed.close()
    reader = read(Source(freed.endpoint, publisher.replay, bind=True))
    context = zmq.Context()
    opened.callback(context.destroy, linger=0)
    stays, goes = context.socket(zmq.XPUB), context.socket(zmq.XPUB)
    for connecting in (stays, goes):
        connecting.connect(freed.endpoint)
        reader.until(lambda at=connecting: bool(at.poll(0)))  # type: ignore[misc]
    publisher.publish(batch(0), heard=False)
    stays.send_multipart([b"stays", bytes(8), publisher.batches[0][1]])
    reader.until_batches(0)
    goes.close()
    reader.until(lambda: bool(reader.of(Resumed)))
    publisher.publish(batch(1), heard=False)
    stays.send_multipart([b"stays", (1).to_bytes(8, "big"), publisher.batches[1][1]])
    reader.until_batches(0, 1)
    assert not reader.of(Dropped)


def test_a_blink_of_the_connection_costs_nothing_where_it_can_be_proven(
    opened: ExitStack, read: Callable[..., Reader]
) -> None:
    publisher = Publisher()
    opened.callback(publisher.close)
    reader = read(Source(publisher.endpoint, publisher.replay))
    reader.until(publisher.has_reader)
    publisher.publish(batch(0))
    reader.until_batches(0)
    history, ports = list(publisher.batches), publisher.ports
    publisher.close()
    reader.until(lambda: bool(reader.of(Suspended)))
    same = Publisher(ports=ports)
    opened.callback(same.close)
    same.batches.extend(history)
    same.seq = 1
    reader.until(lambda: bool(reader.of(Resumed)))
    assert not reader.of(Dropped)


def test_an_address_where_nobody_answers_is_told_until_somebody_does(
    read: Callable[..., Reader], opened: ExitStack
) -> None:
    before = Publisher()
    ports = before.ports
    before.close()
    reader = read(Source(before.endpoint))
    reader.until(lambda: bool(reader.of(Trouble)))
    publisher = Publisher(ports=ports)
    opened.callback(publisher.close)
    reader.until(lambda: len(reader.of(Trouble)) == 2)
    told = [d.what for d in reader.deliveries if isinstance(d, Trouble)]
    assert told == [UNREACHED, REACHED]
