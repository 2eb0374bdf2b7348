# SPDX-License-Identifier: Apache-2.0
"""Whose a cached hash is, and what its removal says."""

import pytest
from pool.desk import AB, Desk, span
from pool.layouts import MIXED_SIZES, PLAIN
from pool.traffic import Voice, key_of

from vllm.distributed.kv_events import BlockRemoved
from vllm.v1.core.block_pool import BlockPool

LABELED = (Voice.LABELED, Voice.LABELED_ALONE, Voice.FULL, Voice.COORDINATES)
UNLABELED = (Voice.STOCK, Voice.STOCK_SESSION, Voice.STOCK_FULL)


def labels(desk: Desk) -> list[str | None]:
    return [event.continuation_id for event in desk.removed()]


@pytest.mark.parametrize("voice", [v for v in LABELED if v is not Voice.COORDINATES])
def test_a_removal_names_the_continuation_and_the_prefix_length(voice):
    desk = Desk()
    desk.evict(desk.admit(AB, voice), 2)
    (removal,) = desk.removed()
    assert removal.continuation_id == AB
    assert span(removal) == (None, 12)
    assert len(removal.block_hashes) == 1


def test_a_removal_in_coordinates_names_the_span_and_no_hash():
    desk = Desk()
    desk.evict(desk.admit(AB), 2)
    (removal,) = desk.removed()
    assert (removal.continuation_id, span(removal)) == (AB, (8, 12))
    assert removal.block_hashes == []


@pytest.mark.parametrize("voice", UNLABELED)
def test_what_only_unlabeled_requests_admitted_is_not_attributed(voice):
    desk = Desk()
    name = desk.admit(AB, voice)
    assert not desk.pool.admissions.attributions
    desk.evict(name)
    assert labels(desk) == [None] * 4


@pytest.mark.parametrize("first", LABELED)
@pytest.mark.parametrize("second", Voice)
@pytest.mark.parametrize("blind", [False, True], ids=["reuse", "duplicate"])
def test_the_first_labeled_admission_wins_while_the_hash_stays(first, second, blind):
    desk = Desk()
    one = desk.admit(AB, first)
    two = desk.admit("abc", second, session="t", blind=blind)
    desk.evict(two, 0, 1, 2, 3)
    desk.evict(one, 0, 1, 2, 3)
    assert set(labels(desk)) == {AB}


def test_sharing_from_a_second_session_changes_nothing():
    desk = Desk()
    one = desk.admit(AB, session="s")
    before = dict(desk.pool.admissions.attributions)
    desk.admit(AB, session="t")
    assert desk.pool.admissions.attributions == before
    desk.evict(one)
    assert set(labels(desk)) == {AB}


def test_who_admits_a_hash_after_it_left_is_its_first_admitter():
    desk = Desk()
    desk.evict(desk.admit("a"))
    desk.evict(desk.admit("ab", blind=True), 0, 1)
    assert labels(desk) == ["a", "ab"]


def test_the_last_duplicate_is_labeled_and_the_attribution_goes_with_it():
    desk = Desk()
    one, two = desk.admit("a", Voice.LABELED), desk.admit("a", Voice.STOCK, blind=True)
    desk.evict(one)
    assert len(desk.pool.admissions.attributions) == 2
    desk.evict(two)
    assert labels(desk) == ["a"] * 4
    assert not desk.pool.admissions.attributions


def test_an_attribution_survives_a_move_between_blocks():
    desk = Desk()
    one = desk.admit(AB, Voice.LABELED)
    before = dict(desk.pool.admissions.attributions)
    desk.events()
    assert desk.side.move(one, 0, 1) is not None
    assert desk.events() == []
    assert desk.pool.admissions.attributions == before
    desk.evict_everything()
    assert set(labels(desk)) == {AB}


def test_a_refused_reset_keeps_attributions_and_a_granted_one_clears_them():
    desk = Desk()
    one = desk.admit(AB, Voice.LABELED)
    before = dict(desk.pool.admissions.attributions)
    assert desk.side.reset() is False
    assert desk.pool.admissions.attributions == before
    desk.finish(one)
    assert desk.side.reset() is True
    assert not desk.pool.admissions.attributions
    desk.events()
    desk.evict(desk.admit("a", Voice.STOCK))
    assert labels(desk) == [None, None]


def test_a_partial_entry_and_the_full_one_it_becomes_are_removed_by_their_lengths():
    desk = Desk(MIXED_SIZES)
    name = desk.side.start("p", _ask("ab"))
    assert name is not None
    desk.side.cache_partial("p", 0, 2, replace=False)
    desk.side.cache("p", 0, 9, None)
    desk.finish("p")
    desk.side.churn(1 << 16)
    assert [(type(e).__name__, span(e)) for e in desk.events()] == [
        ("BlockStored", (8, 12)),
        ("BlockRemoved", (8, 12)),
        ("BlockStored", (0, 16)),
        ("BlockRemoved", (0, 16)),
    ]


def _ask(continuation):
    from pool.traffic import Ask

    return Ask(continuation)


def test_upstreams_own_callers_without_a_request_record_nothing():
    desk = Desk()
    one = desk.admit("a", Voice.LABELED)
    request = desk.side.live[one].request
    block = desk.pool.get_new_blocks(1)[0]
    desk.pool._insert_block_hash(key_of(request, 4, 7), block, num_tokens=4)
    assert len(desk.pool.admissions.attributions) == 2
    desk.events()
    desk.pool.evict_blocks({block.block_id})
    (removal,) = desk.removed()
    assert (removal.group_idx, removal.continuation_id) == (7, None)


def test_nothing_is_recorded_where_events_are_off():
    desk = Desk()
    desk.pool.enable_kv_cache_events = False
    desk.evict(desk.admit(AB), 0)
    assert not desk.pool.admissions.attributions
    assert desk.pool.kv_event_queue == []


def test_another_tiers_pool_says_nothing_of_labels_on_removals():
    pool = BlockPool(60, True, 4, enable_kv_cache_events=True, medium="CPU")
    desk = Desk()
    desk.side.pool = desk.side.manager.block_pool = desk.pool = pool
    name = desk.admit(AB)
    desk.evict(name)
    desk.evict(desk.admit(AB, Voice.LABELED))
    removals = [e for e in pool.take_events() if isinstance(e, BlockRemoved)]
    assert len(removals) == 8
    for removal in removals:
        assert len(removal.block_hashes) == 1
        assert removal.continuation_id is None
        assert removal.num_tokens is removal.token_offset is None
    assert not pool.admissions.attributions


@pytest.mark.parametrize("layout", [PLAIN, MIXED_SIZES], ids=repr)
@pytest.mark.parametrize("voice", Voice)
def test_a_removal_that_bears_hashes_bears_one_whose_block_has_left(layout, voice):
    desk = Desk(layout)
    name = desk.admit(AB, voice)
    request = desk.side.live[name].request
    if layout is MIXED_SIZES:  # one block under two hashes
        assert desk.side.cache_partial(name, 0, 2, replace=False)
    due = len(desk.pool.cached_block_hash_to_block)
    seen = 0

    class Queue(list):
        def append(self, event) -> None:
            nonlocal seen
            if isinstance(event, BlockRemoved) and event.block_hashes:
                seen += 1
                assert len(event.block_hashes) == 1
                lengths = range(4, 20, 4)
                group = event.group_idx
                (key,) = (
                    key
                    for key in (key_of(request, n, group) for n in lengths)
                    if _wire(key) == event.block_hashes[0]
                )
                cached = desk.pool.cached_block_hash_to_block
                assert cached.get_one_block(key) is None
            super().append(event)

    desk.pool.kv_event_queue = Queue()
    desk.evict_everything()
    assert seen == (0 if voice is Voice.COORDINATES else due)


def _wire(key):
    from pool.traffic import named

    return named(key)[1]
