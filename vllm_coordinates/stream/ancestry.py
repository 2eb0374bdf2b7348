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
  prefix of the two turns' bytes (a token has a byte at least), and what the
  chat template puts around a turn;
* different roots (model, cache salt): nothing, their block hashes differ.
"""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

ENDLESS = 1 << 62
"""A bound that is none: every position may be shared."""

_HEAD = 16
_MARKS: tuple[int, ...] = tuple(_HEAD << 2 * power for power in range(1, 9))


class Fingerprint(NamedTuple):
    """Enough of a turn's bytes to bound what it has in common with another.

    `length` in bytes; `head` is the first 16 of them; `digests` are hashes of
    the first 64, 256, ... 1048576 bytes, as far as the turn is that long.
    """

    length: int
    head: bytes
    digests: tuple[bytes, ...]

    @classmethod
    def of(cls, turn: bytes) -> "Fingerprint":
        """The fingerprint of a turn's canonical bytes."""
        digests = []
        state, done = hashlib.blake2b(digest_size=8), 0
        for mark in _MARKS:
            if mark > len(turn):
                break
            state.update(turn[done:mark])
            done = mark
            digests.append(state.digest())
        return cls(len(turn), turn[:_HEAD], tuple(digests))

    def common(self, other: "Fingerprint") -> int:
        """At most how many leading bytes the two turns have in common."""
        for position, (one, two) in enumerate(zip(self.head, other.head, strict=False)):
            if one != two:
                return position
        digests = zip(self.digests, other.digests, strict=False)
        for power, (mine, theirs) in enumerate(digests):
            if mine != theirs:
                return _MARKS[power] - 1
        return min(self.length, other.length)


class Relative(NamedTuple):
    """A continuation that may share a removed position.

    Positions before `sure` are shared; those before `possible` may be.
    """

    continuation_id: str
    sure: int
    possible: int


class _Node:
    __slots__ = ("anchored", "ceiling", "children", "extent", "name", "parent", "turn")

    def __init__(self, name: str) -> None:
        self.name = name
        self.parent: _Node | None = None
        self.turn: Fingerprint | None = None
        self.anchored = False
        self.extent: int | None = None
        # The least extent known at or below: nothing is longer than what
        # continues it, so it bounds the extent where usage has not told it.
        self.ceiling = ENDLESS
        self.children: dict[bytes | None, list[_Node]] = {}

    def below(self) -> "Iterator[_Node]":
        stack = list(chain.from_iterable(self.children.values()))
        while stack:
            node = stack.pop()
            yield node
            for siblings in node.children.values():
                stack += siblings


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
        if continuation_id in self.chain(parent):
            raise ValueError(f"{continuation_id!r} cannot continue itself")
        above = self._node(parent)
        node.parent, node.turn = above, turn
        above.children.setdefault(turn.head if turn else None, []).append(node)
        self._lower(above, node.ceiling)
        if above.anchored:
            self._anchor(node)

    def learn(self, continuation_id: str, prompt_tokens: int) -> None:
        """Take a response's `usage.prompt_tokens` as the continuation's extent."""
        node = self._nodes.get(continuation_id)
        if node is not None and node.parent is not None and prompt_tokens >= 0:
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
            head = node.turn.head if node.turn else None
            siblings = node.parent.children[head]
            siblings.remove(node)
            if not siblings:
                del node.parent.children[head]
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

    def relatives(self, continuation_id: str, start: int, block: int) -> list[Relative]:
        """Who else may hold a block of `continuation_id` at `start`.

        `block` is the least number of tokens that a block there holds: two
        sequences share a block only where they agree to its end. Empty where
        the continuation is not known.
        """
        node = self._nodes.get(continuation_id)
        if node is None:
            return []
        sure = node.extent or 0
        found = [Relative(below.name, sure, ENDLESS) for below in node.below()]
        branch, above = node, node.parent
        while above is not None:
            found.append(Relative(above.name, above.extent or 0, ENDLESS))
            self._add_siblings(found, above, branch, start + block)
            branch, above = above, above.parent
        return found

    def _add_siblings(
        self, found: list[Relative], above: _Node, branch: _Node, end: int
    ) -> None:
        if branch.ceiling < end:
            return
        sure = above.extent or 0
        limit = above.ceiling if above.extent is None else above.extent
        limit += self._preamble if above.parent is None else self._template
        for sibling in self._siblings(above, branch, within=limit + _HEAD > end):
            if sibling.turn is None or branch.turn is None:
                possible = ENDLESS
            else:
                possible = limit + branch.turn.common(sibling.turn)
            possible = min(possible, branch.ceiling, sibling.ceiling)
            if possible >= end:
                found.append(Relative(sibling.name, sure, possible))
                found += (Relative(n.name, sure, possible) for n in sibling.below())

    @staticmethod
    def _siblings(above: _Node, branch: _Node, *, within: bool) -> "Iterator[_Node]":
        # Turns that differ in their first bytes share less than those bytes,
        # so far behind the fork only the few that begin alike are looked at.
        if within or branch.turn is None:
            groups: Iterable[list[_Node]] = above.children.values()
        else:
            heads = (branch.turn.head, None)
            groups = (above.children.get(head, []) for head in heads)
        return (n for siblings in groups for n in siblings if n is not branch)

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
    def _lower(node: _Node | None, ceiling: int) -> None:
        while node is not None and node.ceiling > ceiling:
            node.ceiling = ceiling
            node = node.parent
