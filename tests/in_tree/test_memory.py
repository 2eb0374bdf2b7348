# SPDX-License-Identifier: Apache-2.0
"""Nothing keeps the labels of requests that are gone."""

import gc
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pool.engines import Engine
from pool.layouts import PLAIN
from pool.traffic import HASH_BLOCK
from starlette.requests import Request as HttpRequest

from trees import RELEASE_NAMES
from vllm.entrypoints.generate.base.coordinates import (
    resolve_continuation_id,
    resolve_label,
)
from vllm.entrypoints.openai.responses.lineage import ResponseLineage
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.coordinates import admit_coordinates, without_labels
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.request import Request

# In the newest release the figure that was promised; in the others enough to see it.
REQUESTS, FEWER_REQUESTS = 100_000, 20_000
WARM_UP = 5_000
# A label that is kept is a block of memory, and what keeps it is others.
SLACK = 2_000
AT_ONCE = 50


AssertFlat = Callable[[Callable[[int], None]], None]


@pytest.fixture
def assert_flat(release: str) -> AssertFlat:
    """So many requests leave as many blocks of memory as the first ones did."""
    requests = REQUESTS if release == RELEASE_NAMES[-1] else FEWER_REQUESTS

    def check(serve: Callable[[int], None]) -> None:
        for number in range(WARM_UP):
            serve(number)
        gc.collect()
        before = sys.getallocatedblocks()
        for number in range(WARM_UP, WARM_UP + requests):
            serve(number)
        gc.collect()
        assert sys.getallocatedblocks() - before < SLACK

    return check


def labels(number: int) -> dict[str, str]:
    return {"session_id": f"session {number}", "continuation_id": f"turn {number}"}


def test_the_measure_notices_a_label_that_is_kept(assert_flat: AssertFlat) -> None:
    kept: dict[str, str] = {}

    def serve(number: int) -> None:
        kept[f"session {number}"] = f"turn {number}"

    with pytest.raises(AssertionError):
        assert_flat(serve)


def test_the_frontend_keeps_none(assert_flat: AssertFlat) -> None:
    def serve(number: int) -> None:
        given = labels(number)
        header = [(b"x-session-id", given["session_id"].encode())]
        http = HttpRequest({"type": "http", "headers": header})
        xargs = {"continuation_id": given["continuation_id"]}
        request = SimpleNamespace(vllm_xargs=xargs)
        assert resolve_label("session_id", request, http)
        assert resolve_continuation_id(request, http, None)
        without_labels(SamplingParams(extra_args=xargs))

    assert_flat(serve)


def test_the_lineage_keeps_none_of_responses_that_are_gone(
    assert_flat: AssertFlat,
) -> None:
    store: dict[str, Any] = {}
    lineage = ResponseLineage(store, None)

    def serve(number: int) -> None:
        request = ResponsesRequest(input="a", store=True, session_id=f"s {number}")
        lineage.complete(request, None)
        response = SimpleNamespace(id=request.request_id)
        lineage.remember(request, response)
        store[response.id] = response
        child = ResponsesRequest(input="a", previous_response_id=response.id)
        lineage.complete(child, None)
        assert child.session_id == f"s {number}"
        del store[response.id]

    assert_flat(serve)


def test_the_engine_core_keeps_none_beyond_its_cache(assert_flat: AssertFlat) -> None:
    engine = Engine(
        PLAIN, num_blocks=257, max_num_batched_tokens=8 * AT_ONCE, max_num_seqs=AT_ONCE
    )
    hasher = get_request_block_hasher(HASH_BLOCK, sha256)

    def serve(number: int) -> None:
        tokens = [number % 997, number // 997, *range(6)]
        request = Request(
            request_id=str(number),
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            block_hasher=hasher,
            **labels(number),
        )
        admit_coordinates(request, None)
        engine.add(request)
        if number % AT_ONCE == 0:
            engine.step(lambda request: 1)
            engine.published.take()

    assert_flat(serve)
