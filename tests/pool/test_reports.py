# SPDX-License-Identifier: Apache-2.0
"""Reports follow admission: what a scheduler publishes of hits, and when."""

import pytest
import torch
from pool.desk import span
from pool.engines import Engine
from pool.layouts import HYBRID, MAMBA, MIXED_SIZES, PLAIN, Layout, full, sliding
from pool.readers import over_the_wire
from pool.traffic import Ask, Voice, request_of

from vllm.pooling_params import PoolingParams
from vllm.v1.request import Request
from vllm_coordinates.stream.wire import BlockRemoved, BlockStored

TELLING = [Voice.FULL, Voice.COORDINATES, Voice.STOCK_FULL]


def next_token(request: Request) -> int:
    return 50 + request.num_output_tokens


class Bench:
    """An engine, and what it published in each step."""

    def __init__(self, layout: Layout = PLAIN, num_blocks: int = 40, **options) -> None:
        self.engine = Engine(layout, num_blocks, **options)
        self._names = iter(range(1000))

    def ask(self, continuation, voice=Voice.COORDINATES, *, max_tokens=1, session="s"):
        name = str(next(self._names))
        ask = Ask(continuation, voice=voice, session=session)
        self.engine.add(request_of(ask, name, max_tokens=max_tokens))
        return name

    def step(self):
        """One step's events, as decoded."""
        self.engine.step(next_token)
        return over_the_wire(self.engine.published.take()).events

    def drain(self):
        events = []
        while self.engine.requests:
            events += self.step()
        self.engine.settle(next_token)
        return events + over_the_wire(self.engine.published.take()).events


def stores(events):
    return [event for event in events if isinstance(event, BlockStored)]


def of_session(session, events):
    return [event for event in stores(events) if event.session_id == session]


def spans(events, group=0):
    return [span(e) for e in stores(events) if e.group_idx == group]


@pytest.mark.parametrize("voice", TELLING, ids=lambda v: v.name)
def test_a_request_that_waits_at_the_head_of_the_queue_is_reported_once(voice):
    bench = Bench(num_blocks=12)
    bench.ask("a", Voice.STOCK)
    bench.drain()
    bench.ask("bc", Voice.STOCK, max_tokens=20)  # 5 of 11 blocks, and growing
    bench.step()
    waiting = bench.ask("abbb", voice)  # 10 blocks
    for _ in range(8):
        assert of_session("s", bench.step()) == []
    reports = of_session("s", bench.drain())
    assert waiting not in bench.engine.requests
    if voice is Voice.COORDINATES:
        assert [span(event) for event in reports] == [(0, 8), (8, 36)]
    else:
        assert [len(event.block_hashes) for event in reports] == [2, 7]


@pytest.mark.parametrize("voice", TELLING, ids=lambda v: v.name)
def test_incremental_requests_report_no_reuse_and_telling_ones_do(voice):
    bench = Bench()
    bench.ask("ab", Voice.STOCK)
    bench.drain()
    bench.ask("ab", Voice.LABELED)
    assert stores(bench.drain()) == []
    bench.ask("ab", voice)
    (report,) = stores(bench.drain())
    assert report.session_id == "s"
    assert report.continuation_id == ("ab" if voice.labeled else None)


def test_chunks_of_a_prompt_are_spans_that_touch():
    bench = Bench(max_num_batched_tokens=8)
    bench.ask("dd")
    assert spans(bench.drain()) == [(0, 8), (8, 16), (16, 24), (24, 28)]


def test_generated_tokens_are_admitted_under_the_requests_continuation():
    bench = Bench()
    bench.ask("a", max_tokens=10)
    assert spans(bench.drain()) == [(0, 8), (8, 12), (12, 16)]


def test_a_preempted_request_reports_what_is_left_of_it_when_it_resumes():
    bench = Bench(num_blocks=12)
    bench.ask("dd", max_tokens=12, session="one")
    bench.ask("cc", max_tokens=24, session="two")
    events, preempted = [], set()
    while bench.engine.requests:
        output = bench.engine.step(next_token)
        preempted |= output.preempted_req_ids or set()
        events += over_the_wire(bench.engine.published.take()).events
    assert preempted == {"1"}
    believed: set[int] = set()
    for event in events:
        if getattr(event, "continuation_id", None) != "cc":
            continue
        blocks = set(range(event.token_offset // 4, event.num_tokens // 4))
        if isinstance(event, BlockRemoved):
            assert blocks <= believed
            believed -= blocks
        else:
            believed |= blocks
    assert believed == set(range((10 + 24 - 1) // 4))


@pytest.mark.parametrize("layout", [PLAIN, HYBRID, MIXED_SIZES, MAMBA], ids=repr)
def test_steps_in_flight_change_nothing_that_is_told(layout):
    told = []
    for overlap in (False, True):
        bench = Bench(layout, overlap=overlap)
        bench.ask("ab", max_tokens=9)
        events = bench.drain()
        bench.ask("abd", max_tokens=2, session="t")
        events += bench.drain()
        told.append({(e.group_idx, span(e), e.session_id) for e in stores(events)})
    assert told[0] == told[1]


def test_a_sliding_window_group_reports_the_runs_that_are_there():
    bench = Bench(Layout("window", (full(), sliding(8))))
    bench.ask("ddd", Voice.COORDINATES)
    admitted = bench.drain()
    assert spans(admitted, 0) == spans(admitted, 1) == [(0, 44)]
    bench.ask("ddd", Voice.COORDINATES, session="t")
    reused = bench.drain()
    assert spans(reused, 0) == [(0, 44)]
    # A window of 8 tokens needs two blocks before the next token; the others of
    # the hit are null blocks.
    assert spans(reused, 1) == [(36, 44)]


def test_in_full_mode_null_blocks_are_not_named_and_the_run_has_its_parent():
    bench = Bench(Layout("window", (full(), sliding(8))))
    bench.ask("ddd", Voice.STOCK)
    admitted = {e.group_idx: e for e in stores(bench.drain())}
    bench.ask("ddd", Voice.STOCK_FULL)
    reused = {e.group_idx: e for e in stores(bench.drain())}
    assert reused[0].block_hashes == admitted[0].block_hashes
    assert reused[0].parent_block_hash is None
    assert reused[1].block_hashes == admitted[1].block_hashes[9:]
    assert reused[1].parent_block_hash == admitted[1].block_hashes[8]
    assert reused[1].token_ids == admitted[1].token_ids[36:]


def test_every_store_in_coordinates_says_what_kind_of_group_it_is_of():
    bench = Bench(HYBRID)
    bench.ask("ab")
    kinds = {e.group_idx: e.kv_cache_spec_kind for e in stores(bench.drain())}
    assert kinds == {0: "full_attention", 1: "sliding_window", 2: "sliding_window"}


def test_a_copied_mamba_state_stays_attributed():
    bench = Bench(MAMBA, num_blocks=60)
    bench.ask("ab", max_tokens=8)  # 18 tokens: the state at 16 is in a block's middle
    bench.drain()
    admissions = bench.engine.pool.admissions
    cached = bench.engine.pool.cached_block_hash_to_block
    assert len(admissions.attributions) == len(cached) > 0


def test_pooling_requests_pass_through_with_the_default_mode():
    bench = Bench()
    request = Request(
        request_id="pool",
        prompt_token_ids=list(Ask("ab").tokens),
        sampling_params=None,
        pooling_params=PoolingParams(task="embed"),
        block_hasher=request_of(Ask("ab"), "x")._block_hasher,
        session_id="s",
        continuation_id="ab",
    )
    assert request.kv_cache_report_mode == "incremental"
    bench.engine.add(request)
    output = bench.engine.scheduler.schedule()
    bench.engine.scheduler.update_from_output(output, _pooled(torch.zeros(1)))
    (store,) = stores(over_the_wire(bench.engine.published.take()).events)
    assert (len(store.block_hashes), store.continuation_id) == (4, "ab")


def _pooled(data):
    from vllm.v1.outputs import ModelRunnerOutput

    return ModelRunnerOutput(
        req_ids=["pool"], req_id_to_index={"pool": 0}, pooler_output=[data]
    )


def test_once_coordinates_are_off_a_reuse_is_not_reported_by_hash_instead():
    bench = Bench()
    bench.ask("a")
    bench.drain()
    bench.engine.pool.admissions.fail("hold")
    bench.ask("a")
    bench.ask("ab")
    assert all(event.num_tokens is None for event in stores(bench.drain()))
    bench.ask("ab")
    assert stores(bench.drain()) == []
    bench.ask("ab", Voice.FULL)
    assert len(stores(bench.drain())) == 1
