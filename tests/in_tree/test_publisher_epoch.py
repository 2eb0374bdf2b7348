# SPDX-License-Identifier: Apache-2.0
"""A publisher's epoch: who gets it, where it is shown, and how it looks on the wire."""

import re
from dataclasses import asdict, fields
from pathlib import Path

import msgspec
import pytest
import zmq

from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    EventBatch,
    EventPublisherFactory,
    NullEventPublisher,
    ZmqEventPublisher,
)
from vllm.distributed.publisher_epoch import (
    EpochEventBatch,
    mint_publisher_epoch,
    publisher_options,
    with_epoch,
)

NO_EPOCH = "sends no publisher_epoch; remove send_publisher_epoch"
EVENTS = [
    [],
    [AllBlocksCleared()],
    [BlockRemoved([b"a"], medium="GPU"), AllBlocksCleared()],
]


def options(**changed: object) -> dict[str, object]:
    """What the factory hands over: a configuration, but what chose the publisher."""
    config = asdict(KVEventsConfig(**changed))
    chose = {"enable_kv_cache_events", "publisher"}
    return {name: config[name] for name in config.keys() - chose}


OURS = {"send_publisher_epoch", "publisher_epoch", "coordinates"}
UPSTREAMS = options().keys() - OURS


class PlugIn(NullEventPublisher):
    """A publisher that knows the fields of upstream only."""

    def __init__(
        self,
        data_parallel_rank,
        endpoint,
        replay_endpoint,
        buffer_steps,
        hwm,
        max_queue_size,
        topic,
    ) -> None:
        super().__init__(data_parallel_rank)


class TakesAll(NullEventPublisher):
    """A publisher that takes whatever comes."""

    def __init__(self, data_parallel_rank=0, **kwargs) -> None:
        super().__init__(data_parallel_rank)
        self.kwargs = kwargs


class Aware(TakesAll):
    """A publisher that knows the epoch, and nothing of coordinates."""

    def __init__(self, data_parallel_rank, endpoint, send_publisher_epoch) -> None:
        super().__init__(data_parallel_rank)


class TestOptions:
    def test_the_configuration_has_upstreams_fields_and_three_of_ours(self):
        assert {f.name for f in fields(KVEventsConfig)} >= UPSTREAMS | OURS

    def test_upstreams_publisher_takes_its_fields_and_ours_but_the_epoch(self):
        taken = publisher_options(ZmqEventPublisher, options())
        assert taken.keys() == UPSTREAMS | {"send_publisher_epoch", "coordinates"}

    def test_a_plug_in_gets_what_upstream_gives_it(self):
        given = options(topic="a", hwm=7, coordinates=False)
        taken = publisher_options(PlugIn, given)
        assert taken == {name: given[name] for name in UPSTREAMS}

    def test_a_publisher_that_takes_all_gets_all_but_the_epoch(self):
        given = options(send_publisher_epoch=True, coordinates=False)
        taken = publisher_options(TakesAll, given)
        assert taken.keys() == given.keys() - {"publisher_epoch"}
        assert taken["send_publisher_epoch"] is True

    def test_a_field_that_upstream_adds_reaches_a_plug_in_or_is_its_own_fault(self):
        taken = publisher_options(PlugIn, {**options(), "another": 1})
        assert taken["another"] == 1

    def test_a_publisher_gets_those_of_ours_that_it_names(self):
        taken = publisher_options(Aware, options(send_publisher_epoch=True))
        assert "coordinates" not in taken
        assert taken["send_publisher_epoch"] is True

    def test_an_epoch_is_not_asked_from_one_that_has_none(self):
        with pytest.raises(ValueError, match=NO_EPOCH) as caught:
            publisher_options(PlugIn, options(send_publisher_epoch=True))
        assert repr(PlugIn) in str(caught.value)

    @pytest.mark.parametrize("publisher", [ZmqEventPublisher, PlugIn, TakesAll])
    @pytest.mark.parametrize("epoch", ["mine", ""])
    def test_nobody_else_mints_one(self, epoch, publisher):
        with pytest.raises(ValueError, match=r"^publisher_epoch is minted by the publ"):
            publisher_options(publisher, options(publisher_epoch=epoch))

    def test_what_is_handed_in_stays_as_it_is(self):
        given = options()
        publisher_options(ZmqEventPublisher, given)
        assert given == options()


class TestFactory:
    """`EventPublisherFactory.create`, which upstream's engine calls."""

    def test_a_plug_in_is_made_as_before(self, monkeypatch):
        registry = {**EventPublisherFactory._registry, "mine": PlugIn}
        monkeypatch.setattr(EventPublisherFactory, "_registry", registry)
        config = KVEventsConfig(enable_kv_cache_events=True)
        object.__setattr__(config, "publisher", "mine")
        assert type(EventPublisherFactory.create(config)) is PlugIn
        object.__setattr__(config, "send_publisher_epoch", True)
        with pytest.raises(ValueError, match=NO_EPOCH):
            EventPublisherFactory.create(config)

    @pytest.mark.parametrize(
        "config", [None, KVEventsConfig(), KVEventsConfig(send_publisher_epoch=True)]
    )
    def test_without_events_there_is_no_publisher(self, config):
        assert type(EventPublisherFactory.create(config)) is NullEventPublisher


class TestMinting:
    def test_an_epoch_is_32_hex_digits(self):
        assert re.fullmatch("[0-9a-f]{32}", mint_publisher_epoch())

    def test_no_two_are_alike(self):
        assert len({mint_publisher_epoch() for _ in range(1000)}) == 1000


@pytest.mark.parametrize("events", EVENTS, ids=len)
@pytest.mark.parametrize("rank", [None, 0, 3])
class TestWire:
    def test_the_epoch_is_a_fourth_element_behind_stocks_bytes(self, rank, events):
        batch = EventBatch(ts=1.5, events=events, data_parallel_rank=rank)

        stock = msgspec.msgpack.encode(batch)
        sent = msgspec.msgpack.encode(with_epoch(batch, "e" * 32))

        # An array of three, then of four: one byte tells, and what follows is added.
        assert (stock[0], sent[0]) == (0x93, 0x94)
        assert sent[1:] == stock[1:] + msgspec.msgpack.encode("e" * 32)

    def test_it_can_be_read_back(self, rank, events):
        batch = EventBatch(ts=1.5, events=events, data_parallel_rank=rank)
        sent = msgspec.msgpack.encode(with_epoch(batch, "e"))
        read = msgspec.msgpack.decode(sent, type=EpochEventBatch)
        assert (read.ts, read.data_parallel_rank) == (1.5, rank)
        assert read.publisher_epoch == "e"
        assert len(read.events) == len(events)

    def test_a_reader_that_knows_three_elements_reads_them(self, rank, events):
        batch = EventBatch(ts=1.5, events=events, data_parallel_rank=rank)
        sent = msgspec.msgpack.encode(with_epoch(batch, "e"))
        read = msgspec.msgpack.decode(sent, type=EventBatch)
        assert (read.ts, read.data_parallel_rank) == (1.5, rank)


def published(folder: Path, **config: object) -> tuple[KVEventsConfig, list[object]]:
    """What a real publisher says of itself, and a batch as it came over its socket."""
    endpoint = f"ipc://{folder}/events"
    publisher = EventPublisherFactory.create(
        KVEventsConfig(enable_kv_cache_events=True, endpoint=endpoint, **config)
    )
    context = zmq.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.subscribe(b"")
    subscriber.connect(endpoint)
    try:
        # What is published before the publisher knows of its subscriber is lost.
        for _ in range(600):
            publisher.publish(EventBatch(ts=1.5, events=[AllBlocksCleared()]))
            if subscriber.poll(50):
                break
        _, _, payload = subscriber.recv_multipart(zmq.NOBLOCK)
    finally:
        context.destroy(linger=0)
        publisher.shutdown()
    return publisher.get_publisher_config(), msgspec.msgpack.decode(payload)


class TestPublisher:
    def test_by_default_a_batch_is_stocks(self, tmp_path):
        _, batch = published(tmp_path)
        stock = EventBatch(1.5, [AllBlocksCleared()], data_parallel_rank=0)
        assert batch == msgspec.to_builtins(stock)

    def test_with_send_publisher_epoch_it_carries_the_publishers(self, tmp_path):
        shown, batch = published(tmp_path, send_publisher_epoch=True)
        assert len(batch) == 4
        assert batch[3] == shown.publisher_epoch

    @pytest.mark.parametrize("coordinates", [True, False])
    @pytest.mark.parametrize("send", [True, False])
    def test_it_is_always_shown_with_the_rest_of_its_configuration(
        self, send, coordinates, tmp_path
    ):
        options = {"send_publisher_epoch": send, "coordinates": coordinates}
        shown, _ = published(tmp_path, **options)
        assert re.fullmatch("[0-9a-f]{32}", shown.publisher_epoch)
        assert {name: getattr(shown, name) for name in options} == options

    def test_another_publisher_has_another(self, tmp_path):
        epochs = {published(tmp_path)[0].publisher_epoch for _ in range(2)}
        assert len(epochs) == 2
