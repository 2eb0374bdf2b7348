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
  as they are: one that trims or joins them can make equal tokens of two texts.
  And no more than the shorter of them holds, since that one ends there;
* *twins*, siblings that may be rendered alike though they are written
  differently: those of one text, or, where a text is not known, those that
  are equally long. Any position may be shared;
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
_SEPARATOR_TOKENS = 2


class Fingerprint(NamedTuple):
    """Enough of a turn's text to bound what it has in common with another.

    `length` in bytes; `keys` stand for its first 0, 4, 16, 64, ... 1048576
    bytes, as far as it is that long, and `whole` for all of it. `between` is
    how many tokens a template may put between its parts.
    """

    length: int
    keys: tuple[bytes, ...]
    whole: bytes
    between: int = 0

    @classmethod
    def of(cls, turn: bytes, *, parts: int = 1) -> "Fingerprint":
        """The fingerprint of the bytes of a turn that a template renders."""
        keys = []
        state, done = hashlib.blake2b(digest_size=8), 0
        for mark in _MARKS:
            if mark > len(turn):
                break
            state.update(turn[done:mark])
            done = mark
            keys.append(turn[:mark] if mark <= _RAW else state.digest())
        state.update(turn[done:])
        between = (parts - 1) * _SEPARATOR_TOKENS
        return cls(len(turn), tuple(keys), state.digest(), between)

    def common(self, level: int) -> int:
        """The most that a turn has in common with it which has not its next key."""
        if level + 1 < len(self.keys):
            return _MARKS[level + 1] - 1 + self.between
        return self.length + self.between


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
    `ceiling` with the others, but for its twins. `child` is what follows the
    ancestor, and `turn` what it adds, if that is known.
    """

    continuation_id: str
    beginnings: tuple[Beginning, ...]
    ceiling: int
    child: str
    turn: Fingerprint | None

    def twins(self) -> "tuple[Likeness, ...]":
        """What makes another branch a twin of this one."""
        if self.turn is None:
            return ("known", self.ceiling), ("unknown", self.ceiling)
        return ("text", self.turn.whole), ("unknown", self.ceiling)


Likeness = tuple[str, int | bytes]
"""One text; or a length, of turns whose text is `known` or `unknown`."""


class Twin(NamedTuple):
    """All that continues `continuation_id` by a branch of this `likeness`.

    Each may share any position, but for what follows `child`, which is nearer kin.
    """

    continuation_id: str
    likeness: Likeness
    child: str


class Kin(NamedTuple):
    """Who else may hold a block.

    `line` has the ancestors and what continues the continuation, each with how
    many tokens they are sure to share (what lies behind may be); `forks` and
    `twins` are those behind which there may be others.
    """

    line: list[tuple[str, int]]
    forks: list[Fork]
    twins: list[Twin]


class _Node:
    __slots__ = (
        "anchored",
        "beginnings",
        "ceiling",
        "children",
        "extent",
        "name",
        "opening",
        "parent",
        "texts",
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
        # How many children have a turn of unknown text, and which of each text.
        self.unbounded = 0
        self.texts: dict[bytes, int] = {}
        # Whether a template may put its preamble behind it.
        self.opening = False

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
            node.opening = True
            self._anchor(node)

    def add(
        self,
        continuation_id: str,
        parent: str,
        turn: Fingerprint | None = None,
        *,
        opening: bool = False,
    ) -> None:
        """Make a continuation known that adds one turn to its parent.

        Without `turn` (its bytes are unknown, or do not render in order) the
        continuation may share with a sibling all that the shorter one holds,
        and anything where they are equally long. `opening` is a turn before
        the first message, such as the tools. A second `add` of one id changes
        nothing: an id names one prefix for good. Raises ValueError where the
        parent continues the continuation itself.
        """
        node = self._node(continuation_id)
        if node.parent is not None or node.anchored:
            return
        # What nothing continues yet is nobody's ancestor.
        known = node.children or continuation_id == parent
        if known and continuation_id in self.chain(parent):
            raise ValueError(f"{continuation_id!r} cannot continue itself")
        above = self._node(parent)
        node.parent, node.turn, node.opening = above, turn, opening
        if turn is None:
            above.unbounded += 1
        else:
            node.beginnings = tuple(enumerate(turn.keys))
            above.texts[turn.whole] = above.texts.get(turn.whole, 0) + 1
        above.children[continuation_id] = node
        if node.ceiling < ENDLESS:
            self._void_shorter(node, self._least(above))
            self._lower(above, node.ceiling)
        if above.anchored:
            self._anchor(node)

    def learn(self, continuation_id: str, prompt_tokens: int) -> None:
        """Take a response's `usage.prompt_tokens` as the continuation's extent.

        Less than an ancestor's is no extent, but a prompt that was truncated: it
        would bound for good what the whole chain shares, so it is not learned, or
        forgotten again where the ancestor's comes later.
        """
        node = self._nodes.get(continuation_id)
        if node is None or node.parent is None:
            return
        if prompt_tokens >= self._least(node.parent):
            self._void_shorter(node, prompt_tokens)
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
            if node.turn is None:
                node.parent.unbounded -= 1
            else:
                left = node.parent.texts.pop(node.turn.whole) - 1
                if left:
                    node.parent.texts[node.turn.whole] = left
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
            yield Branch(
                node.parent.name, node.beginnings, node.ceiling, node.name, node.turn
            )
            node = node.parent

    def relatives(self, continuation_id: str, start: int, block: int) -> Kin:
        """Who else may hold a block of `continuation_id` at `start`.

        `block` is the least number of tokens that a block there holds: two
        sequences share a block only where they agree to its end. Nobody where
        the continuation is not known.
        """
        node = self._nodes.get(continuation_id)
        if node is None:
            return Kin([], [], [])
        sure = node.extent or 0
        line = [(below.name, sure) for below in node.below()]
        forks: list[Fork] = []
        twins: list[Twin] = []
        branch, above, end = node, node.parent, start + block
        while above is not None:
            sure = above.extent or 0
            line.append((above.name, sure))
            if len(above.children) > 1:
                if branch.ceiling >= end:
                    self._add_forks(forks, above, branch, sure, end)
                self._add_twins(twins, above, branch)
            branch, above = above, above.parent
        return Kin(line, forks, twins)

    @staticmethod
    def _add_twins(twins: list[Twin], above: _Node, branch: _Node) -> None:
        turn, name = branch.turn, branch.name
        if turn is None:
            twins.append(Twin(above.name, ("unknown", branch.ceiling), name))
            return
        if above.texts[turn.whole] > 1:
            twins.append(Twin(above.name, ("text", turn.whole), name))
        if above.unbounded:
            twins.append(Twin(above.name, ("known", branch.ceiling), name))

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
        limit += self._preamble if above.opening else self._template
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

    def _void_shorter(self, node: _Node, least: int) -> None:
        """Forget the lengths below that contradict one of `least` tokens here."""
        if node.ceiling >= least:
            return
        family = [node, *node.below()]
        for member in family:
            if member.extent is not None and member.extent < least:
                member.extent = None
        line, above = [], node.parent
        while above is not None:
            line.append(above)
            above = above.parent
        # What is below comes behind in the family, so it is renewed before.
        for member in [*reversed(family), *line]:
            below = (child.ceiling for child in member.children.values())
            own = ENDLESS if member.extent is None else member.extent
            member.ceiling = min(own, *below) if member.children else own

    @staticmethod
    def _lower(node: _Node | None, ceiling: int) -> None:
        while node is not None and node.ceiling > ceiling:
            node.ceiling = ceiling
            node = node.parent
