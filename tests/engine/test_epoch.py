# SPDX-License-Identifier: Apache-2.0
"""The publisher's epoch: always shown, on the wire where it is asked for."""

from collections.abc import Iterator

import msgspec
import pytest

from engine import served_trees
from engine.conftest import Options
from engine.engine import BLOCK, Engine, fresh_tokens, running


@pytest.fixture(scope="module")
def two_ranks(options: Options) -> Iterator[Engine]:
    """Patched 0.32.0 with two engines, and no word about the epoch."""
    with running(options(served_trees.patched(), data_parallel_size=2)) as started:
        yield started


def batch_after_a_request(engine: Engine) -> list[object]:
    engine.frames()
    engine.complete(fresh_tokens(BLOCK + 1)).raise_for_status()
    [frame] = engine.frames()
    batch: list[object] = msgspec.msgpack.decode(frame.payload)
    return batch


def test_every_rank_shows_an_epoch_of_its_own(two_ranks: Engine) -> None:
    first, second = (source.publisher_epoch for source in two_ranks.sources)
    assert first
    assert second
    assert first != second


def test_an_epoch_stays_while_its_publisher_lives(two_ranks: Engine) -> None:
    assert two_ranks.sources == two_ranks.sources


def test_by_default_a_batch_has_the_three_elements_of_stock(two_ranks: Engine) -> None:
    headers = {"X-data-parallel-rank": "0"}
    two_ranks.complete(fresh_tokens(BLOCK + 1), headers=headers).raise_for_status()
    [frame] = two_ranks.taps[0].read_until(lambda frame: True)
    assert len(msgspec.msgpack.decode(frame.payload)) == 3


def test_with_send_publisher_epoch_the_epoch_is_the_fourth_element(
    engine: Engine,
) -> None:
    [source] = engine.sources
    assert batch_after_a_request(engine)[3:] == [source.publisher_epoch]


def test_a_replayed_batch_carries_the_same_epoch(engine: Engine) -> None:
    engine.complete(fresh_tokens(BLOCK + 1)).raise_for_status()
    live = engine.frames()[-1]
    [replayed] = [f for f in engine.taps[0].replay(live.seq) if f.seq == live.seq]
    assert replayed.payload == live.payload
