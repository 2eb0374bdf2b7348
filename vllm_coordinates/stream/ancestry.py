# SPDX-License-Identifier: Apache-2.0
"""Which continuations share how much of their token sequences.

The control plane minted the ids, so it knows each one's parent and the bytes
of each turn; what it does not know is tokens. It learns them from usage: the
`prompt_tokens` that a response reports is the *extent* of the request's
continuation, the length in tokens of the prefix that the id names.

Two continuations share all of their nearest common ancestor. How much more is
the question that decides about phantom coverage, and only bounds answer it:

* one is the other's ancestor: any position may be shared, since the engine
  caches generated tokens, too, and the next turn usually repeats them;
* siblings: their turns differ somewhere, so they share at most the common
  prefix of the two turns' texts (a token has a byte at least), and what the
  chat template puts around a turn. That holds where the template renders texts
  as they are: one that trims or joins them can make equal tokens of two texts;
* different roots (model, cache salt): nothing, their block hashes differ.
"""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

ENDLESS = 1 << 62
"""A bound that is none: every position may be shared."""

# A turn is compared by what it begins with: 0, 4, 16, 64, ... bytes.
_MARKS: tuple[int, ...] = (0, *(4**power for power in range(1, 11)))
_RAW = 16


class Fingerprint(NamedTuple):
    """Enough of a turn's text to bound what it has in common with another.

    `length` in bytes; `keys` stand for its first 0, 4, 16, 64, ... 1048576
    bytes, as far as it is that long.
    """

    length: int
    keys: tuple[bytes, ...]

    @classmethod
    def of(cls, turn: bytes) -> "Fingerprint":
        """The fingerprint of the bytes of a turn that a template renders."""
        keys = []
        state, done = hashlib.blake2b(digest_size=8), 0
        for mark in _MARKS:
            if mark > len(turn):
                break
            state.update(turn[done:mark])
            done = mark
            keys.append(turn[:mark] if mark <= _RAW else state.digest())
        return cls(len(turn), tuple(keys))

    def common(self, level: int) -> int:
        """The most that a turn has in common with it which has not its next key."""
        if level + 1 < len(self.keys):
            return _MARKS[level + 1] - 1
        return self.length


Beginning = tuple[int, bytes] | None
"""Turns that begin alike: a level of `Fingerprint.keys` and the key there. None
stands for the turns of unknown text, which may begin like any other."""


class Fork(NamedTuple):
    """All that continues `continuation_id` with a turn of this beginning.

    Positions before `sure` are shared; those before `possible` may be.
    """

    continuation_id: str
    beginning: Beginning
    sure: int
    possible: int


class Branch(NamedTuple):
    """How a continuation goes on from an ancestor, `continuation_id`.

    It is among those of each of the `beginnings`, and shares nothing behind
    `ceiling` with the others.
    """

    continuation_id: str
    beginnings: tuple[Beginning, ...]
    ceiling: int


class _Node:
    __slots__ = (
        "anchored",
        "beginnings",
        "ceiling",
        "children",
        "extent",
        "name",
        "parent",
        "turn",
        "unbounded",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.parent: _Node | None = None
        self.turn: Fingerprint | None = None
        self.beginnings: tuple[Beginning, ...] = (None,)
        self.anchored = False
        self.extent: int | None = None
        # The least extent known at or below: nothing is longer than what
        # continues it, so it bounds the extent where usage has not told it.
        self.ceiling = ENDLESS
        self.children: dict[str, _Node] = {}
        # How many children have a turn of unknown text.
        self.unbounded = 0

    def below(self) -> "list[_Node]":
        found = list(self.children.values())
        for node in found:
            if node.children:
                found += node.children.values()
        return found


class Ancestry:
    """The tree of minted continuations; its roots are (model, cache salt).

    `template_tokens` bounds the tokens that the chat template puts around a
    turn, and `preamble_tokens` what it may put before the first one. They only
    matter to siblings, see the module's docstring. That a template renders a
    prefix to the same tokens whatever follows is assumed; where it does not,
    the block hashes differ and so does the truth.
    """

    def __init__(self, *, template_tokens: int = 8, preamble_tokens: int = 256) -> None:
        self._template = template_tokens
        self._preamble = preamble_tokens
        self._nodes: dict[str, _Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def knows(self, continuation_id: str) -> bool:
        """Whether the chain from the continuation up to its root is known."""
        node = self._nodes.get(continuation_id)
        return node is not None and node.anchored

    def add_root(self, root: str) -> None:
        """Make `root` known: the empty prefix of one model and cache salt."""
        node = self._node(root)
        if node.parent is None and not node.anchored:
            node.extent = node.ceiling = 0
            self._anchor(node)

    def add(
        self, continuation_id: str, parent: str, turn: Fingerprint | None = None
    ) -> None:
        """Make a continuation known that adds one turn to its parent.

        Without `turn` (its bytes are unknown, or do not render in order) the
        continuation may share anything with its siblings. A second `add` of
        one id changes nothing: an id names one prefix for good. Raises
        ValueError where the parent continues the continuation itself.
        """
        node = self._node(continuation_id)
        if node.parent is not None or node.anchored:
            return
        # What nothing continues yet is nobody's ancestor.
        known = node.children or continuation_id == parent
        if known and continuation_id in self.chain(parent):
            raise ValueError(f"{continuation_id!r} cannot continue itself")
        above = self._node(parent)
        node.parent, node.turn = above, turn
        if turn is None:
            above.unbounded += 1
        else:
            node.beginnings = tuple(enumerate(turn.keys))
        above.children[continuation_id] = node
        self._lower(above, node.ceiling)
        if above.anchored:
            self._anchor(node)

    def learn(self, continuation_id: str, prompt_tokens: int) -> None:
        """Take a response's `usage.prompt_tokens` as the continuation's extent.

        Less than an ancestor's is no extent, but a prompt that was truncated: it
        would bound for good what the whole chain shares, so it is not learned.
        """
        node = self._nodes.get(continuation_id)
        if node is None or node.parent is None:
            return
        if prompt_tokens >= self._least(node.parent):
            node.extent = prompt_tokens
            self._lower(node, prompt_tokens)

    def forget(self, continuation_id: str) -> bool:
        """Drop a continuation that nothing continues; False where something does.

        What is forgotten is unknown from then on: answers about it err to
        under-coverage.
        """
        node = self._nodes.get(continuation_id)
        if node is None or node.children:
            return False
        del self._nodes[continuation_id]
        if node.parent is not None:
            del node.parent.children[continuation_id]
            node.parent.unbounded -= node.turn is None
        return True

    def extent(self, continuation_id: str) -> int | None:
        """The continuation's length in tokens, where usage has told it."""
        node = self._nodes.get(continuation_id)
        return None if node is None else node.extent

    def chain(self, continuation_id: str) -> Iterator[str]:
        """The continuation and its ancestors, nearest first, the root last."""
        node = self._nodes.get(continuation_id)
        if node is None:
            yield continuation_id
        while node is not None:
            yield node.name
            node = node.parent

    def branches(self, continuation_id: str) -> Iterator[Branch]:
        """How the continuation goes on from each of its ancestors, nearest first."""
        node = self._nodes.get(continuation_id)
        while node is not None and node.parent is not None:
            yield Branch(node.parent.name, node.beginnings, node.ceiling)
            node = node.parent

    def relatives(
        self, continuation_id: str, start: int, block: int
    ) -> tuple[list[tuple[str, int]], list[Fork]]:
        """Who else may hold a block of `continuation_id` at `start`.

        `block` is the least number of tokens that a block there holds: two
        sequences share a block only where they agree to its end. First come
        its ancestors and what continues it, each with how many tokens they are
        sure to share (what lies behind may be); then the forks behind which
        there may be others. Empty where the continuation is not known.
        """
        node = self._nodes.get(continuation_id)
        if node is None:
            return [], []
        sure = node.extent or 0
        found = [(below.name, sure) for below in node.below()]
        forks: list[Fork] = []
        branch, above, end = node, node.parent, start + block
        while above is not None:
            sure = above.extent or 0
            found.append((above.name, sure))
            if len(above.children) > 1 and branch.ceiling >= end:
                self._add_forks(forks, above, branch, sure, end)
            branch, above = above, above.parent
        return found, forks

    def _add_forks(
        self, forks: list[Fork], above: _Node, branch: _Node, sure: int, end: int
    ) -> None:
        turn, ceiling = branch.turn, branch.ceiling
        if turn is None:
            forks.append(Fork(above.name, (0, b""), sure, ceiling))
        if turn is None or above.unbounded:
            forks.append(Fork(above.name, None, sure, ceiling))
        if turn is None:
            return
        limit = above.ceiling if above.extent is None else above.extent
        limit += self._preamble if above.parent is None else self._template
        for level, beginning in enumerate(branch.beginnings):
            possible = min(limit + turn.common(level), ceiling)
            if possible >= end:
                forks.append(Fork(above.name, beginning, sure, possible))

    def _node(self, name: str) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node(name)
        return node

    @staticmethod
    def _anchor(node: _Node) -> None:
        node.anchored = True
        for below in node.below():
            below.anchored = True

    @staticmethod
    def _least(node: _Node | None) -> int:
        """What nothing that continues the node can be shorter than."""
        while node is not None:
            if node.extent is not None:
                return node.extent
            node = node.parent
        return 0

    @staticmethod
    def _lower(node: _Node | None, ceiling: int) -> None:
        while node is not None and node.ceiling > ceiling:
            node.ceiling = ceiling
            node = node.parent
