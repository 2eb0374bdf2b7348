# SPDX-License-Identifier: Apache-2.0
"""Requests as the scheduler sees them, and a block pool that takes them in steps."""

import random
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256 as _sha256
from typing import Any

from vllm.distributed.kv_events import KVCacheEvent
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import (
    KVCacheBlock,
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.request import Request

BLOCK_SIZE = 16
VOCABULARY = 151_936
"""Qwen's: the larger it is, the more bytes a token id takes."""

STEP_BLOCKS = 512
"""Blocks of 8192 tokens: what `vllm serve` prefills in one step by default."""

MODES = ("off", "unlabeled", "labeled", "full", "coordinates")
"""`off`: no events. `full` and `coordinates` are labeled, too."""

init_none_hash(sha256)
_hasher = get_request_block_hasher(BLOCK_SIZE, sha256)


def label(name: str) -> str:
    """A label as a control plane mints them: 32 hex digits."""
    return _sha256(name.encode()).hexdigest()[:32]


@cache
def tokens(context: int, num_blocks: int) -> list[int]:
    """The tokens of a prompt that fills blocks; no two contexts share any block."""
    choose = random.Random(context).choices
    return choose(range(VOCABULARY), k=num_blocks * BLOCK_SIZE)


def request(context: int, num_blocks: int, mode: str) -> Request:
    """A request whose prompt fills blocks; equal contexts have equal tokens."""
    labels, extra_args = {}, None
    if mode in ("labeled", "full", "coordinates"):
        labels = {
            "session_id": label("session"),
            "continuation_id": label(str(context)),
        }
    if mode in ("full", "coordinates"):
        extra_args = {"kv_cache_report_mode": mode}
    made: Request = Request(
        request_id=str(context),
        prompt_token_ids=tokens(context, num_blocks),
        sampling_params=SamplingParams(max_tokens=1, extra_args=extra_args),
        pooling_params=None,
        block_hasher=_hasher,
        **labels,
    )
    return made


def pool(num_blocks: int, *, events: bool) -> BlockPool:
    """A pool with room for `num_blocks`: one more is the null block."""
    return BlockPool(num_blocks + 1, True, BLOCK_SIZE, events)


def prefill(
    into: BlockPool,
    request: Request,
    step_blocks: int,
    evicted: Callable[[list[KVCacheEvent]], Any],
    admitted: Callable[[list[KVCacheEvent]], Any],
) -> list[KVCacheBlock]:
    """Takes blocks for a whole prompt and caches them, step by step.

    The scheduler publishes once per step, what was evicted and admitted in one
    batch; here they are kept apart.

    Args:
        into: The pool.
        request: The request.
        step_blocks: Blocks of one step.
        evicted: Called with each step's events after its blocks were taken.
        admitted: Called with them after they were cached.
    """
    blocks: list[KVCacheBlock] = []
    for start, stop in steps(len(request.block_hashes), step_blocks):
        blocks += into.get_new_blocks(stop - start)
        evicted(into.take_events())
        into.cache_full_blocks(request, blocks, start, stop, BLOCK_SIZE, 0)
        admitted(into.take_events())
    return blocks


def steps(num_blocks: int, step_blocks: int) -> Iterator[tuple[int, int]]:
    """The ranges [start, stop) of blocks that the steps of a prompt cover."""
    for start in range(0, num_blocks, step_blocks):
        yield start, min(start + step_blocks, num_blocks)


def free(into: BlockPool, blocks: list[KVCacheBlock]) -> None:
    """Ends the request that held `blocks`: its last block is to be evicted first."""
    into.free_blocks(reversed(blocks))
