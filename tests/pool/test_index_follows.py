# SPDX-License-Identifier: Apache-2.0
"""The kit's own index, fed by a real block pool, believes what is there."""

import os

from hypothesis import settings
from hypothesis.stateful import invariant
from pool.readers import stretches
from pool.test_pool_machine import PoolHistory
from pool.traffic import CONTINUATIONS

from vllm_coordinates.stream.ancestry import Ancestry
from vllm_coordinates.stream.index import Index


class FollowedHistory(PoolHistory):
    def begin_following(self) -> None:
        ancestry = Ancestry()
        ancestry.add_root("root")
        for name in sorted(CONTINUATIONS, key=len):
            ancestry.add(name, name[:-1] or "root")
        self.index = Index(ancestry)
        self.readers.followers.append(
            lambda batch: self.index.apply_batch("engine", batch)
        )

    @invariant()
    def the_index_believes_what_is_there(self) -> None:
        if not hasattr(self, "index"):
            self.begin_following()
        if self.pool.kv_event_queue:
            return
        for continuation in self.lineage.sequences:
            for group in self.sizes:
                resident = self.readers.resident(group, continuation)
                held = self.index.spans("engine", continuation, group=group)
                for start, end in held:
                    assert resident.issuperset(stretches(start, end))
        if not self.pool.cached_block_hash_to_block._cache:
            assert not [h for h in self.index.holdings("engine") if h.certain]


FollowedHistory.TestCase.settings = settings(
    PoolHistory.TestCase.settings,
    max_examples=int(os.environ.get("POOL_EXAMPLES", "200")) // 4,
)
TestFollowedHistory = FollowedHistory.TestCase
