# SPDX-License-Identifier: Apache-2.0
"""Traffic without labels, the same on a stock tree and on a patched one.

Run by itself it plays every scene on the vLLM it imports and writes a JSON object:
scene -> steps. What a step holds, see `play`.
"""

import json
import logging
import random
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from pool.engines import Engine, seen_by_workers
from pool.layouts import LAYOUTS, MAMBA, Layout
from pool.ledger import resident_end
from pool.placement import placement
from pool.traffic import CONTINUATIONS, Ask, Voice, request_of

from vllm.distributed.kv_events import BlockStored, KVEventBatch
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock, maybe_convert_block_hash
from vllm.v1.request import Request

try:
    from vllm.distributed.event_shape import shape_unlabeled
except ImportError:  # a stock tree
    shape_unlabeled = None

Step = dict[str, Any]
SCENES: dict[str, tuple[Layout, Voice, bool]] = {
    f"{layout.name}, {voice.name}{', offload' * offload}": (layout, voice, offload)
    for layout in LAYOUTS
    for voice in (Voice.STOCK_SESSION, Voice.STOCK_FULL)
    for offload in (False, True)
    if not (offload and layout is MAMBA)
}


# Few, but the longest request must fit, or it keeps everyone waiting for ever. Stock
# 0.30.0 and 0.31.0 do not survive every size: where a hit of a mamba layout ends in a
# partial entry, full mode's report raises an IndexError in the scheduler.
NUM_BLOCKS = {"plain": 16, "hybrid": 48, "mixed sizes": 36, "mamba": 36}


class Reports:
    """Keeps reports of reuse apart from the other events, and what is true of them.

    Stock makes them at each lookup, of every block of the hit's list. `due` holds
    what it would say if it said it once, on admission, of blocks that are there.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.said: list[object] = []
        self.due: list[object] = []
        self._watch_pool(engine.pool)
        coordinator = engine.manager.coordinator
        allocate = coordinator.allocate_new_computed_blocks

        def allocate_new_computed_blocks(
            request_id: str,
            new_computed_blocks: Sequence[Sequence[KVCacheBlock]],
            **rest: Any,
        ) -> None:
            allocate(request_id, new_computed_blocks, **rest)
            request = engine.requests[request_id]
            if request.kv_cache_report_mode == "full":
                for group, blocks in enumerate(new_computed_blocks):
                    self.due += self._runs(request, group, blocks)

        coordinator.allocate_new_computed_blocks = allocate_new_computed_blocks

    def _watch_pool(self, pool: BlockPool) -> None:
        emit = pool.emit_cached_block_events

        def emit_cached_block_events(*args: Any, **options: Any) -> None:
            already = len(pool.kv_event_queue)
            emit(*args, **options)
            self.said += pool.kv_event_queue[already:]

        pool.emit_cached_block_events = emit_cached_block_events  # type: ignore

    def _runs(
        self, request: Request, group: int, blocks: Sequence[KVCacheBlock]
    ) -> list[object]:
        manager = self.engine.manager.coordinator.single_type_managers[group]
        size, pool = manager.block_size, self.engine.pool
        runs: list[list[int]] = []
        for i, block in enumerate(blocks):
            end = (i + 1) * size
            if resident_end(pool, request, group, block, i, size) == end:
                if runs and runs[-1][-1] == i - 1:
                    runs[-1].append(i)
                else:
                    runs.append([i])
        per_block = size // pool.hash_block_size
        names = [maybe_convert_block_hash(h) for h in request.block_hashes]
        names = names[per_block - 1 :: per_block]
        return [
            [
                group,
                names[run[0] : run[-1] + 1],
                names[run[0] - 1] if run[0] else None,
                list(request.all_token_ids[run[0] * size : (run[-1] + 1) * size]),
                request.session_id,
            ]
            for run in runs
        ]


def play(scene: str) -> list[Step]:
    """The scene, step by step.

    Returns:
        For each step `events`, hexadecimal msgpack of each; `reports`, which of
        them report reuse; `due`, the reports that a stock engine owes once it
        admits the requests it admits in this step; `said`, those that were made in
        the same form; `seen`, what workers are told and how blocks lie.
    """
    layout, voice, offload = SCENES[scene]
    chance = random.Random(scene)
    num_blocks = NUM_BLOCKS[layout.name]
    engine = Engine(layout, num_blocks, max_num_batched_tokens=32, offload=offload)
    reports = Reports(engine)
    steps = []
    for number in range(160):
        if chance.random() < 0.4:
            ask = Ask(chance.choice(CONTINUATIONS), voice=voice)
            tokens = chance.randint(1, 9)
            engine.add(request_of(ask, str(number), max_tokens=tokens))
        if chance.random() < 0.1 and engine.requests:
            engine.abort(chance.choice(sorted(engine.requests)))
        if chance.random() < 0.05:
            engine.manager.evict_blocks({chance.randrange(1, num_blocks)})
        if chance.random() < 0.02:
            engine.scheduler.reset_prefix_cache(not offload)
        output = engine.step(lambda request: 50 + request.num_output_tokens % 7)
        events = engine.published.take()
        told = {id(event) for event in reports.said}
        which = [i for i, event in enumerate(events) if id(event) in told]
        steps.append(
            {
                "events": _encode(events),
                "reports": which,
                "said": [_outline(events[i]) for i in which],
                "due": list(reports.due),
                "seen": repr((seen_by_workers(output), placement(engine.pool))),
            }
        )
        reports.said.clear()
        reports.due.clear()
    return steps


def _encode(events: list[Any]) -> list[str]:
    """Each event as the publisher's thread encodes it."""
    batch = KVEventBatch(0.0, events)
    if shape_unlabeled is not None:
        shape_unlabeled(batch, BlockStored)
    return [msgspec.msgpack.encode(event).hex() for event in batch.events]


def _outline(event: Any) -> list[object]:
    return [
        event.group_idx,
        event.block_hashes,
        event.parent_block_hash,
        list(event.token_ids),
        event.session_id,
    ]


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    json.dump({scene: play(scene) for scene in SCENES}, sys.stdout)
