# SPDX-License-Identifier: Apache-2.0
"""How much two continuations share: bounds, from bytes and from usage."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from vllm_coordinates.stream.ancestry import (
    ENDLESS,
    Ancestry,
    Fingerprint,
    Fork,
)


def turn(text: str) -> Fingerprint:
    return Fingerprint.of(text.encode())


@pytest.fixture
def ancestry() -> Ancestry:
    """A system prompt of 100 tokens, and two users' questions behind it."""
    tree = Ancestry(template_tokens=4, preamble_tokens=10)
    tree.add_root("root")
    tree.add("system", "root", turn("You are kind."))
    tree.add("ann", "system", turn("How are you?"))
    tree.add("bob", "system", turn("Why?"))
    tree.learn("system", 100)
    return tree


def possible(tree: Ancestry, name: str, other: str, *, end: int = 1) -> int:
    """How far `other` may share `name`'s blocks, the first of which ends at `end`."""
    kin = tree.relatives(name, 0, end)
    found = [ENDLESS for relative, _ in kin.line if relative == other]
    for branch in tree.branches(other):
        above = branch.continuation_id
        found += [
            min(fork.possible, branch.ceiling)
            for fork in kin.forks
            if fork.continuation_id == above and fork.beginning in branch.beginnings
        ]
        found += [
            ENDLESS
            for twin in kin.twins
            if twin.continuation_id == above
            and twin.likeness in branch.twins()
            and twin.child != branch.child
        ]
    return max(found, default=0)


def relatives(
    tree: Ancestry, name: str, start: int = 0, block: int = 1
) -> list[tuple[str, int]]:
    return tree.relatives(name, start, block).line


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300))
def test_a_fingerprint_never_denies_a_common_prefix(
    common: bytes, one: bytes, other: bytes
) -> None:
    assert bound(common + one, common + other) >= len(common)


@given(st.integers(4, 70_000))
def test_a_fingerprint_is_at_most_four_times_too_careful(length: int) -> None:
    one, other = (b"x" * length + byte * 200_000 for byte in (b"a", b"b"))
    assert length <= bound(one, other) < 4 * (length + 1)


def bound(one: bytes, other: bytes) -> int:
    """What two turns' fingerprints let them have in common."""
    mine, theirs = Fingerprint.of(one), Fingerprint.of(other)
    alike = enumerate(zip(mine.keys, theirs.keys, strict=False))
    return mine.common(max(level for level, (a, b) in alike if a == b))


def test_ancestors_share_their_extent_for_sure(ancestry: Ancestry) -> None:
    assert ("system", 100) in relatives(ancestry, "ann")
    assert ("ann", 100) in relatives(ancestry, "system")


def test_siblings_share_at_most_what_their_texts_have_in_common(
    ancestry: Ancestry,
) -> None:
    ancestry.add("eve", "system", turn("How are your cats?"))
    assert possible(ancestry, "ann", "eve") == 100 + 4 + len("How are you?")


def test_siblings_of_other_beginnings_share_less_than_those(ancestry: Ancestry) -> None:
    assert possible(ancestry, "ann", "bob") == 100 + 4 + 3
    forks = ancestry.relatives("ann", 0, 1).forks
    assert forks[0] == Fork("system", (0, b""), 100, 107)


def test_siblings_share_no_block_that_reaches_further(ancestry: Ancestry) -> None:
    assert possible(ancestry, "ann", "bob", end=107) == 107
    assert possible(ancestry, "ann", "bob", end=108) == 0


def test_what_follows_a_sibling_shares_as_much_as_it(ancestry: Ancestry) -> None:
    ancestry.add("bob again", "bob", turn("And then?"))
    assert possible(ancestry, "ann", "bob again") == 107


def test_without_usage_what_continues_a_prefix_bounds_it() -> None:
    tree = Ancestry(template_tokens=4)
    tree.add_root("root")
    tree.add("system", "root", turn("You are kind."))
    for name, text in (("ann", "Hi"), ("bob", "Why?")):
        tree.add(name, "system", turn(text))
    assert possible(tree, "ann", "bob") == ENDLESS
    tree.learn("ann", 120)
    assert possible(tree, "ann", "bob", end=120) == 120
    assert possible(tree, "ann", "bob", end=121) == 0


def test_turns_of_unknown_bytes_may_share_everything(ancestry: Ancestry) -> None:
    ancestry.add("picture", "system")
    assert possible(ancestry, "ann", "picture") == ENDLESS


def test_other_roots_share_nothing(ancestry: Ancestry) -> None:
    ancestry.add_root("salted")
    ancestry.add("salted system", "salted", turn("You are kind."))
    assert possible(ancestry, "system", "salted system") == 0
    assert possible(ancestry, "system", "salted") == 0


def test_a_chain_is_known_once_it_reaches_a_root() -> None:
    tree = Ancestry()
    tree.add("late", "later")
    assert not tree.knows("late")
    tree.add("later", "root")
    tree.add_root("root")
    assert tree.knows("late") and list(tree.chain("late")) == ["late", "later", "root"]


def test_a_continuation_cannot_continue_itself() -> None:
    tree = Ancestry()
    tree.add("b", "a")
    with pytest.raises(ValueError, match=r"^'a' cannot continue itself$"):
        tree.add("a", "b")


def test_only_what_nothing_continues_is_forgotten(ancestry: Ancestry) -> None:
    assert not ancestry.forget("system")
    assert ancestry.forget("ann") and not ancestry.knows("ann")
    assert not ancestry.forget("ann")
    assert possible(ancestry, "bob", "ann") == 0


def test_a_truncated_prompt_bounds_nothing(ancestry: Ancestry) -> None:
    ancestry.add("next", "ann", turn("Fine."))
    ancestry.learn("ann", 120)
    for tokens in (-1, 20, 119):
        ancestry.learn("next", tokens)
        assert ancestry.extent("next") is None
        assert possible(ancestry, "ann", "next") == ENDLESS
        assert possible(ancestry, "bob", "ann") > 100
    ancestry.learn("next", 120)
    assert ancestry.extent("next") == 120


def test_the_longer_length_of_an_ancestor_voids_what_contradicts_it(
    ancestry: Ancestry,
) -> None:
    ancestry.add("next", "ann", turn("Fine."))
    ancestry.add("eve", "system", turn("How are your cats?"))
    ancestry.learn("next", 110)
    assert possible(ancestry, "eve", "ann") == 110
    ancestry.learn("ann", 160)
    assert ancestry.extent("next") is None and ancestry.extent("ann") == 160
    assert possible(ancestry, "eve", "ann") == 100 + 4 + 15


@pytest.mark.parametrize("text", ["Hi", None], ids=["one text", "no text"])
def test_turns_that_may_be_one_share_what_comes_behind_them(
    ancestry: Ancestry, text: str | None
) -> None:
    for name in ("one", "other"):
        ancestry.add(name, "system", None if text is None else turn(text))
        ancestry.add(f"{name} again", name, turn("And then?"))
        ancestry.learn(name, 120)
        ancestry.learn(f"{name} again", 150)
    assert possible(ancestry, "one again", "other again", end=150) == ENDLESS
    assert possible(ancestry, "one again", "ann", end=150) == 0


def test_turns_of_unknown_text_and_other_lengths_are_not_one(
    ancestry: Ancestry,
) -> None:
    for name, tokens in (("one", 120), ("other", 130)):
        ancestry.add(name, "system")
        ancestry.learn(name, tokens)
    ancestry.learn("ann", 130)
    assert possible(ancestry, "one", "other", end=110) == 120
    assert possible(ancestry, "one", "other", end=121) == 0
    assert possible(ancestry, "other", "ann", end=131) == ENDLESS


def test_the_preamble_may_be_behind_the_tools_too() -> None:
    tree = Ancestry(template_tokens=4, preamble_tokens=10)
    tree.add_root("root")
    tree.add("tools", "root", opening=True)
    for name in ("ann", "bob"):
        tree.add(name, "tools", turn(name))
        tree.learn(name, 40)
    tree.learn("tools", 20)
    assert possible(tree, "ann", "bob") == 20 + 10 + 3
