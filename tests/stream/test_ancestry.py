# SPDX-License-Identifier: Apache-2.0
"""How much two continuations share: bounds, from bytes and from usage."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from vllm_coordinates.stream.ancestry import ENDLESS, Ancestry, Fingerprint, Relative


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


def possible(tree: Ancestry, name: str, other: str) -> int:
    """How far `other` may share blocks of one token with `name`; 0 if not at all."""
    found = [
        r.possible for r in tree.relatives(name, 0, 1) if r.continuation_id == other
    ]
    return found[0] if found else 0


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300))
def test_a_fingerprint_never_denies_a_common_prefix(
    common: bytes, one: bytes, other: bytes
) -> None:
    mine, theirs = Fingerprint.of(common + one), Fingerprint.of(common + other)
    assert mine.common(theirs) >= len(common)


@given(st.integers(16, 70_000))
def test_a_fingerprint_is_at_most_four_times_too_careful(length: int) -> None:
    mine = Fingerprint.of(b"x" * length + b"a" * 200_000)
    theirs = Fingerprint.of(b"x" * length + b"b" * 200_000)
    assert length <= mine.common(theirs) < 4 * (length + 1)


def test_ancestors_share_their_extent_for_sure(ancestry: Ancestry) -> None:
    assert Relative("system", 100, ENDLESS) in ancestry.relatives("ann", 0, 1)
    assert Relative("ann", 100, ENDLESS) in ancestry.relatives("system", 0, 1)


def test_siblings_share_at_most_what_their_bytes_have_in_common(
    ancestry: Ancestry,
) -> None:
    ancestry.add("eve", "system", turn("How old are you?"))
    assert possible(ancestry, "ann", "bob") == 100 + 4
    assert possible(ancestry, "ann", "eve") == 100 + 4 + len("How ")


def test_siblings_share_no_block_that_reaches_further(ancestry: Ancestry) -> None:
    at = {start: ancestry.relatives("ann", start, 16) for start in (80, 96)}
    assert Relative("bob", 100, 104) in at[80]
    assert "bob" not in [relative.continuation_id for relative in at[96]]


def test_what_follows_a_sibling_shares_as_much_as_it(ancestry: Ancestry) -> None:
    ancestry.add("bob again", "bob", turn("And then?"))
    assert possible(ancestry, "ann", "bob again") == 104


def test_without_usage_what_continues_a_prefix_bounds_it() -> None:
    tree = Ancestry(template_tokens=4)
    tree.add_root("root")
    tree.add("system", "root", turn("You are kind."))
    for name, text in (("ann", "Hi"), ("bob", "Why?")):
        tree.add(name, "system", turn(text))
    assert possible(tree, "ann", "bob") == ENDLESS
    tree.learn("bob", 120)
    assert possible(tree, "ann", "bob") == 120
    assert Relative("bob", 0, 120) in tree.relatives("ann", 0, 1)


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
