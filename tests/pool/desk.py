# SPDX-License-Identifier: Apache-2.0
"""A pool of one full-attention group, for rules that a few steps show."""

from typing import Any

from pool.layouts import PLAIN, Layout
from pool.readers import over_the_wire
from pool.sides import Side
from pool.traffic import Ask, Tokens, Voice

from vllm.v1.core.block_pool import BlockPool
from vllm_coordinates.stream.wire import BlockRemoved, BlockStored

AB = "ab"
"""18 tokens: four full blocks."""


class Desk:
    """Requests come in, are cached whole, and go; then somebody needs room."""

    def __init__(self, layout: Layout = PLAIN, num_blocks: int = 60) -> None:
        self.side = Side(layout, num_blocks, stripped=False)
        self.pool: BlockPool = self.side.pool
        self._names = iter(range(1000))

    def admit(
        self,
        continuation: str,
        voice: Voice = Voice.COORDINATES,
        *,
        session: str = "s",
        blind: bool = False,
        tail: Tokens = (),
    ) -> str:
        """A request's blocks enter the cache; `blind` ones do not look there."""
        name = str(next(self._names))
        ask = Ask(continuation, tail, voice, session)
        assert self.side.start(name, ask, blind=blind) is not None
        for group in self.side.sizes:
            self.side.cache(name, group, 1 << 16, None)
        return name

    def finish(self, *names: str) -> None:
        for name in names:
            self.side.finish(name)

    def evict(self, name: str, *indices: int, group: int = 0) -> None:
        """Some blocks of a request leave the cache."""
        table = self.side.live[name].tables[group]
        for index in indices or range(len(table)):
            self.pool.evict_blocks({table[index].block_id})

    def evict_everything(self) -> None:
        self.finish(*list(self.side.live))
        self.side.churn(1 << 16)

    def events(self) -> list[Any]:
        """What was published since it was last asked."""
        return over_the_wire(self.pool.take_events()).events

    def stored(self) -> list[BlockStored]:
        return [e for e in self.events() if isinstance(e, BlockStored)]

    def removed(self) -> list[BlockRemoved]:
        return [e for e in self.events() if isinstance(e, BlockRemoved)]


def span(event: BlockStored | BlockRemoved) -> tuple[int | None, int | None]:
    return event.token_offset, event.num_tokens
