# SPDX-License-Identifier: Apache-2.0
"""Batches of real pool events, and what the real publisher makes of them."""

import gc
import time

from vllm.distributed.kv_events import KVCacheEvent, KVEventBatch

from . import publishing, traffic

_MOST_BATCHES = 10_000
_publisher = publishing.start(buffer_steps=_MOST_BATCHES)

Batches = list[list[KVCacheEvent]]
"""The events of each batch."""

_batches: dict[str, dict[str, Batches]] = {}


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
        name: {side: _publish(batches)[0] for side, batches in sides.items()}
        for name, sides in _batches.items()
    }


def measure(name: str) -> dict[str, float]:
    """Publishes a scene's batches.

    Returns:
        CPU seconds of this process until they were sent, for `admission` and for
        `eviction`.
    """
    return {side: _publish(batches)[1] for side, batches in _batches[name].items()}


def _play(mode: str, num_blocks: int, step_blocks: int) -> dict[str, Batches]:
    """One context admitted by an empty pool, then evicted by one that is not cached."""
    pool = traffic.pool(num_blocks, events=True)
    batches: dict[str, Batches] = {"admission": [], "eviction": []}

    def keep(events: list[KVCacheEvent], side: str) -> None:
        if events:  # The scheduler publishes no empty batch.
            batches[side].append(events)

    request = traffic.request(0, num_blocks, mode)
    blocks = traffic.prefill(
        pool,
        request,
        step_blocks,
        evicted=lambda events: None,
        admitted=lambda events: keep(events, "admission"),
    )
    traffic.free(pool, blocks)
    for start, stop in traffic.steps(num_blocks, step_blocks):
        pool.get_new_blocks(stop - start)
        keep(pool.take_events(), "eviction")
    return batches


def _publish(batches: Batches) -> tuple[int, float]:
    """Bytes of the payloads, and CPU seconds of this process until they were sent."""
    made = [KVEventBatch(ts=time.time(), events=events) for events in batches]
    _publisher._buffer.clear()
    gc.collect()
    start = time.process_time()
    for batch in made:
        _publisher.publish(batch)
    publishing.drain(_publisher)
    took = time.process_time() - start
    return sum(len(payload) for _, payload in _publisher._buffer), took
