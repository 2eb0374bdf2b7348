# SPDX-License-Identifier: Apache-2.0
"""Batches of real pool events, and what the publisher makes of them."""

import time
from time import thread_time

import msgspec

from vllm.distributed.kv_events import EventBatch, KVCacheEvent, KVEventBatch

from . import traffic

_batches: dict[str, dict[str, list[KVEventBatch]]] = {}
_encoder = msgspec.msgpack.Encoder()


def prepare(scenes: dict[str, tuple[str, int, int]]) -> dict[str, dict[str, int]]:
    """Plays scenes, and keeps their batches.

    Args:
        scenes: Name -> the mode, the blocks of the context, and the blocks of one
            scheduler step.

    Returns:
        Scene -> bytes of the admission's batches and of the eviction's.
    """
    for name, (mode, num_blocks, step_blocks) in scenes.items():
        _batches[name] = _play(mode, num_blocks, step_blocks)
    return {
        name: {side: sum(map(len, _encode(batches))) for side, batches in sides.items()}
        for name, sides in _batches.items()
    }


def measure(name: str) -> dict[str, float]:
    """Encodes a scene's batches.

    Returns:
        CPU seconds of this thread, for `admission` and for `eviction`.
    """
    spent = {}
    for side, batches in _batches[name].items():
        start = thread_time()
        _encode(batches)
        spent[side] = thread_time() - start
    return spent


def _play(mode: str, num_blocks: int, step_blocks: int) -> dict[str, list[EventBatch]]:
    """One context admitted by an empty pool, then evicted by one that is not cached."""
    pool = traffic.pool(num_blocks, events=True)
    batches: dict[str, list[EventBatch]] = {"admission": [], "eviction": []}

    def publish(events: list[KVCacheEvent], side: str) -> None:
        # What the scheduler and the publisher do between a step and the encoder.
        if events:
            batch = KVEventBatch(ts=time.time(), events=events)
            batch.data_parallel_rank = 0
            batches[side].append(batch)

    request = traffic.request(0, num_blocks, mode)
    blocks = traffic.prefill(
        pool,
        request,
        step_blocks,
        evicted=lambda events: None,
        admitted=lambda events: publish(events, "admission"),
    )
    traffic.free(pool, blocks)
    for start, stop in traffic.steps(num_blocks, step_blocks):
        pool.get_new_blocks(stop - start)
        publish(pool.take_events(), "eviction")
    return batches


def _encode(batches: list[EventBatch]) -> list[bytes]:
    return [_encoder.encode(batch) for batch in batches]
