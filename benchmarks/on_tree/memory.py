# SPDX-License-Identifier: Apache-2.0
"""Memory and garbage collections of a process whose pool is full of cached blocks."""

import gc
import sys
from time import thread_time

from vllm.v1.core.block_pool import BlockPool

from . import traffic

_CONTEXT_BLOCKS = 8192
_held: list[BlockPool] = []


def start(num_blocks: int, mode: str) -> None:
    """Makes an empty pool of `num_blocks`."""
    _held.append(traffic.pool(num_blocks, events=mode != "off"))
    # The pages that encoding, hashing and the like need are taken by now.
    _admit(traffic.pool(64, events=True), 0, 64, mode)
    gc.collect()


def resident() -> int:
    """Bytes of the process that are in memory."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def grow(first: int, stop: int, mode: str) -> int:
    """Admits contexts until the pool holds `stop` blocks, of which it holds `first`.

    Returns:
        Bytes of the process that are in memory then.
    """
    for start in range(first, stop, _CONTEXT_BLOCKS):
        _admit(_held[0], start, min(_CONTEXT_BLOCKS, stop - start), mode)
    gc.collect()
    return resident()


def collect() -> dict[str, float]:
    """Runs one full garbage collection.

    Returns:
        CPU seconds of this thread it took, as `collection`.
    """
    start = thread_time()
    gc.collect()
    return {"collection": thread_time() - start}


def map_bytes() -> int:
    """Bytes of the side map by its own objects' sizes; 0 for stock."""
    admissions = getattr(_held[0], "admissions", None)
    if admissions is None:
        return 0
    attributions = admissions.attributions
    return sys.getsizeof(attributions) + sum(map(sys.getsizeof, attributions.values()))


def pass_through(num_contexts: int, first: int, mode: str) -> dict[str, int]:
    """Admits contexts of one block that evict one another, each labeled differently.

    Args:
        num_contexts: How many.
        first: Number of the first; no two calls may share one.
        mode: Of the requests.

    Returns:
        `resident`: bytes of the process in memory afterwards. `containers`: the
        longest that any container of the side map is then, with nothing cached.
    """
    pool = traffic.pool(1000, events=True)
    request = traffic.request(first, 1, mode)
    hashes = request.block_hashes
    for context in range(first, first + num_contexts):
        # Making a million requests would take longer than what is measured.
        if request.continuation_id is not None:
            request.continuation_id = traffic.label(str(context))
        hashes[0] = context.to_bytes(32, "big")
        traffic.free(pool, traffic.prefill(pool, request, 1, len, len))
    pool.free_blocks(pool.get_new_blocks(1000))
    pool.take_events()
    admissions = getattr(pool, "admissions", None)
    fields = vars(admissions).values() if admissions is not None else ()
    gc.collect()
    return {
        "resident": resident(),
        "containers": max(
            (len(f) for f in fields if isinstance(f, dict | list | set)), default=0
        ),
    }


def _admit(pool: BlockPool, context: int, num_blocks: int, mode: str) -> None:
    # Uncached: the tokens of every context are wanted once.
    traffic.tokens.cache_clear()
    request = traffic.request(context, num_blocks, mode)
    traffic.prefill(pool, request, traffic.STEP_BLOCKS, len, len)
