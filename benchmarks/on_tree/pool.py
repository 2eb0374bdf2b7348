# SPDX-License-Identifier: Apache-2.0
"""Seconds that a block pool takes to admit and to evict contexts, by mode."""

import gc
from dataclasses import dataclass
from itertools import cycle, islice
from time import thread_time

from vllm.distributed.kv_events import KVCacheEvent
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.request import Request

from . import traffic

# The modes of the contexts that follow one another, in a pool with room for each once.
_TRAFFIC = {
    **{mode: (mode,) for mode in traffic.MODES},
    "mixed": ("unlabeled", "labeled"),
    "mixed-coordinates": ("unlabeled", "coordinates"),
}


@dataclass
class _Scene:
    pool: BlockPool
    requests: "cycle[Request]"
    requests_at_once: int
    step_blocks: int


_scenes: dict[str, _Scene] = {}


def prepare(scenes: dict[str, tuple[str, int, int]]) -> None:
    """Makes a pool for each scene, and fills it.

    Args:
        scenes: Name -> what its contexts are (of `_TRAFFIC`), the blocks of each,
            and the blocks of one scheduler step.
    """
    for name, (kind, num_blocks, step_blocks) in scenes.items():
        modes = _TRAFFIC[kind]
        # Twice as many contexts as the pool has room for: none is there already.
        requests = [
            traffic.request(context, num_blocks, mode)
            for context, mode in enumerate(modes * 2)
        ]
        pool = traffic.pool(len(modes) * num_blocks, events=kind != "off")
        _scenes[name] = _Scene(pool, cycle(requests), len(modes), step_blocks)
        for _ in (0, 1):
            measure(name)
    gc.collect()
    gc.freeze()


def measure(name: str) -> dict[str, float]:
    """Admits a context of each kind, each of which evicts an older one.

    Returns:
        CPU seconds of this thread per block, for `admission` and for `eviction`.
    """
    scene = _scenes[name]
    spent = {"admission": 0.0, "eviction": 0.0}
    mark = 0.0

    def charge(what: str) -> None:
        nonlocal mark
        now = thread_time()
        spent[what] += now - mark
        mark = now

    def evicted(events: list[KVCacheEvent]) -> None:
        charge("eviction")

    def admitted(events: list[KVCacheEvent]) -> None:
        charge("admission")

    num_blocks = 0
    for request in islice(scene.requests, scene.requests_at_once):
        gc.collect()
        mark = thread_time()
        blocks = traffic.prefill(
            scene.pool, request, scene.step_blocks, evicted, admitted
        )
        traffic.free(scene.pool, blocks)
        num_blocks += len(blocks)
    return {what: seconds / num_blocks for what, seconds in spent.items()}
