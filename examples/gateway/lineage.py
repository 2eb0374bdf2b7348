# SPDX-License-Identifier: Apache-2.0
"""What the gateway remembers of continuations: kinship, and how long they are."""

from collections import OrderedDict

from gateway.labels import Labeled
from gateway.usage import Usage
from vllm_coordinates.stream.ancestry import Ancestry


class Lineage:
    """The `most` recent positions of all that was requested.

    `ancestry` is what the index is to know of their kinship.
    """

    def __init__(self, most: int = 100_000) -> None:
        self.ancestry = Ancestry()
        self._most = most
        self._recent: OrderedDict[str, None] = OrderedDict()
        # Labels that a trusted client chose, by the ids that we would have minted.
        self._chosen: dict[str, str] = {}
        # Which session came by a position; None where several did.
        self._passed: dict[str, str | None] = {}
        self._common: dict[str, int] = {}

    def register(self, request: Labeled) -> None:
        """Make the request's positions known, before any event speaks of them."""
        chain = request.chain
        if request.continuation_id == chain.continuation_id:
            chain.register(self.ancestry)
        else:
            self._register_chosen(request)
        steps = [step.continuation_id for step in chain.steps]
        for name in steps:
            if self._passed.setdefault(name, request.session_id) != request.session_id:
                self._passed[name] = None
        # The deepest is the first to be forgotten: only what nothing continues may be.
        for name in (*reversed(steps), *self.ancestry.chain(request.continuation_id)):
            self._recent[name] = None
            self._recent.move_to_end(name)
        while len(self._recent) > self._most:
            self._forget(self._recent.popitem(last=False)[0])

    def learn(self, request: Labeled, usage: Usage) -> None:
        """Take an answer's usage into account."""
        new = self.ancestry.extent(request.continuation_id) is None
        self.ancestry.learn(request.continuation_id, usage.prompt_tokens)
        for step in request.chain.steps[-2:-1]:
            before = step.continuation_id
            if new and self._passed.get(before, "") is None:
                # The session's first request: what is cached of it, others computed.
                known = self._common.get(before, 0)
                self._common[before] = max(known, usage.cached_tokens)

    def common(self, request: Labeled) -> int:
        """How many tokens other sessions are known to begin with as this one does.

        They are those of a system prompt and tools, say, as far as an engine has found
        them cached: no usage tells how long a part of a prompt is.
        """
        names = (step.continuation_id for step in reversed(request.chain.steps))
        return next((self._common[name] for name in names if name in self._common), 0)

    def _register_chosen(self, request: Labeled) -> None:
        """Chosen labels say nothing of content; the content beside them does."""
        ids = [step.continuation_id for step in request.chain.steps]
        known = (self._chosen[i] for i in reversed(ids[:-1]) if i in self._chosen)
        self.ancestry.add_root(request.chain.start)
        if not self.ancestry.knows(request.continuation_id):
            parent = next(known, request.chain.start)
            self.ancestry.add(request.continuation_id, parent)
        self._chosen[ids[-1]] = request.continuation_id

    def _forget(self, continuation_id: str) -> None:
        self.ancestry.forget(continuation_id)
        for remembered in (self._chosen, self._passed, self._common):
            remembered.pop(continuation_id, None)
