# SPDX-License-Identifier: Apache-2.0
"""What the gateway remembers of continuations: their kin, their length, their place."""

from collections import OrderedDict

from gateway.labels import Labeled
from vllm_coordinates.stream.ancestry import Ancestry
from vllm_coordinates.stream.index import Index


class Lineage:
    """The `most` recent positions of all that was requested.

    `ancestry` is their kinship, and `index` what is resident of them.
    """

    def __init__(self, most: int = 100_000) -> None:
        self.ancestry = Ancestry()
        self.index = Index(self.ancestry)
        self._most = most
        self._recent: OrderedDict[str, None] = OrderedDict()
        # Labels that a trusted client chose, by the ids that we would have minted.
        self._chosen: dict[str, str] = {}

    def register(self, request: Labeled) -> None:
        """Make the request's positions known, before any event speaks of them."""
        chain = request.chain
        if request.continuation_id == chain.continuation_id:
            chain.register(self.ancestry)
        else:
            self._register_chosen(request)
        steps = [step.continuation_id for step in chain.steps]
        # The deepest is the first to be forgotten: only what nothing continues may be.
        for name in (*reversed(steps), *self.ancestry.chain(request.continuation_id)):
            self._recent[name] = None
            self._recent.move_to_end(name)
        while len(self._recent) > self._most:
            self._forget(self._recent.popitem(last=False)[0])

    def learn(self, request: Labeled, prompt_tokens: int) -> None:
        """An answer said how long the request's prompt was."""
        self.ancestry.learn(request.continuation_id, prompt_tokens)

    def _register_chosen(self, request: Labeled) -> None:
        """Chosen labels say nothing of content; the content beside them does."""
        ids = [step.continuation_id for step in request.chain.steps]
        known = (self._chosen[i] for i in reversed(ids[:-1]) if i in self._chosen)
        self.ancestry.add_root(request.chain.start)
        if not self.ancestry.knows(request.continuation_id):
            parent = next(known, request.chain.start)
            self.ancestry.add(request.continuation_id, parent)
        for own in ids[-1:]:
            self._chosen[own] = request.continuation_id

    def _forget(self, continuation_id: str) -> None:
        self.index.forget(continuation_id)
        self._chosen.pop(continuation_id, None)
