# SPDX-License-Identifier: Apache-2.0
"""Labels of blocks: what is kept of them, and what is let go."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from vllm_coordinates.stream import hashes as module
from vllm_coordinates.stream import spans
from vllm_coordinates.stream.hashes import Hashes
from vllm_coordinates.stream.wire import BlockStored

BLOCK = 4
GROUPS = st.sampled_from((0, 1, None))
CHAINS = st.sampled_from((b"a", b"ab", b"abc", b"ax", b"axy"))
NAMES = st.sampled_from("cdef")
SESSIONS = st.sampled_from("st") | st.none()


def stored(
    chain: bytes,
    name: str | None,
    session: str | None = "s",
    *,
    parent: bytes | None = None,
    group: int | None = 0,
) -> BlockStored:
    """One block per letter, each letter its hash."""
    return BlockStored(
        block_hashes=[bytes([letter]) for letter in chain],
        parent_block_hash=parent,
        token_ids=[0] * BLOCK * len(chain),
        block_size=BLOCK,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        group_idx=group,
        session_id=session,
        continuation_id=name,
    )


def test_a_block_that_every_session_reuses_keeps_its_latest_labels() -> None:
    hashes = Hashes()
    for number in range(1000):
        hashes.store(stored(b"ab", f"c{number}", f"s{number}"))
    names = {f"c{number}" for number in range(936, 1000)}
    assert {name for name, _ in hashes.labels(0, b"a")} == names
    assert hashes.continuations() == names
    assert hashes.spans(0, "c935") == []
    assert hashes.spans(0, "c936") == [0, 8]
    assert len(hashes.sessions(0, "c999", 0, 4)) == 64


def test_a_label_that_is_reported_again_outlives_older_ones() -> None:
    hashes = Hashes()
    for number in range(1000):
        hashes.store(stored(b"a", f"c{number}"))
        hashes.store(stored(b"a", "again"))
    assert hashes.spans(0, "again") == [0, 4]
    assert len(hashes.labels(0, b"a")) == 64


def test_a_continuation_with_a_block_of_its_own_still_finds_the_shared_ones() -> None:
    hashes = Hashes()
    hashes.store(stored(b"ab", "first"))
    hashes.store(stored(b"x", "first", parent=b"b"))
    for number in range(1000):
        hashes.store(stored(b"ab", f"c{number}"))
    assert ("first", "s") not in hashes.labels(0, b"a")
    assert hashes.spans(0, "first") == [0, 12]


def test_a_continuation_that_is_forgotten_is_found_nowhere() -> None:
    hashes = Hashes()
    for group in (0, 1):
        hashes.store(stored(b"ab", "c", "s", group=group))
        hashes.store(stored(b"ab", "c", "t", group=group))
        hashes.store(stored(b"ab", "d", "u", group=group))
    hashes.forget("c")
    hashes.forget("never heard of")
    for group in (0, 1):
        assert hashes.spans(group, "c") == []
        assert hashes.spans(group, "d") == [0, 8]
        assert hashes.sessions(group, "d", 0, 8) == {"u"}
        assert hashes.resident(group, b"a")
    assert hashes.continuations() == {"d"}
    assert hashes.remove(0, b"a")


def test_what_another_session_uses_is_shared_up_to_its_last_block() -> None:
    hashes = Hashes()
    hashes.store(stored(b"abc", "first"))
    hashes.store(stored(b"x", "second", parent=b"b"))
    hashes.store(stored(b"y", "third", parent=b"c"))
    hashes.remove(0, b"a")
    found = hashes.residency(0, {"first": {"s"}, "second": {"t"}, "third": {"s"}})
    assert found == {
        "first": ([4, 12], [4, 8]),
        "second": ([4, 12], [4, 8]),
        "third": ([4, 16], [4, 8]),
    }


class AnyLabels(RuleBasedStateMachine):
    """Any reports, removals and forgetting, with room for three labels a block."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(module, "_MOST_LABELS", 3)
        self.hashes = Hashes()
        self.reported: set[tuple[int | None, bytes, str, str | None]] = set()

    def teardown(self) -> None:
        self.patch.undo()

    @rule(
        chain=CHAINS,
        name=NAMES | st.none(),
        session=SESSIONS,
        group=GROUPS,
        parent=st.none() | st.sampled_from((b"a", b"c", b"y")),
    )
    def store(
        self,
        chain: bytes,
        name: str | None,
        session: str | None,
        group: int | None,
        parent: bytes | None,
    ) -> None:
        self.hashes.store(stored(chain, name, session, parent=parent, group=group))
        if name is not None:
            for letter in chain:
                self.reported.add((group, bytes([letter]), name, session))
                assert (name, session) in self.hashes.labels(group, bytes([letter]))

    @rule(letter=st.sampled_from(b"abcxy"), group=GROUPS)
    def remove(self, letter: int, group: int | None) -> None:
        block_hash = bytes([letter])
        self.hashes.remove(group, block_hash)
        self.reported = {
            each for each in self.reported if each[:2] != (group, block_hash)
        }

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        self.hashes.forget(name)
        self.reported = {each for each in self.reported if each[2] != name}

    @invariant()
    def labels_are_reported_ones_and_lead_to_their_blocks(self) -> None:
        names: set[str] = set()
        for group in (0, 1, None):
            for letter in b"abcxy":
                block_hash = bytes([letter])
                labels = self.hashes.labels(group, block_hash)
                found = {(group, block_hash, *label) for label in labels}
                reported = {e for e in self.reported if e[:2] == (group, block_hash)}
                assert found <= reported
                assert len(found) <= 3
                for name, _ in labels:
                    names.add(name)
                    assert block_hash in self.hashes._labeled[group][name]
        assert self.hashes.continuations() == names

    @invariant()
    def all_at_once_is_what_each_is_alone(self) -> None:
        sessions = {"c": {"s"}, "d": {"s"}, "e": {"s", "t"}, "f": set[str]()}
        for group in (0, 1, None):
            found = self.hashes.residency(group, sessions)
            walks = {
                name: [block for *_, block in self.hashes._walk(group, name)]
                for name in found
            }
            for name, (held, shared) in found.items():
                assert held == self.hashes.spans(group, name)
                own = sessions[name]
                others = {
                    id(block)
                    for other, walk in walks.items()
                    if sessions[other] - own
                    for block in walk
                }
                exact = spans.gathered(
                    (start, end)
                    for start, end, block in self.hashes._walk(group, name)
                    if id(block) in others
                )
                assert spans.common(held, shared) == shared
                assert spans.common(shared, exact) == exact
                if not forks(self.hashes, group, name):
                    assert shared == exact


def forks(hashes: Hashes, group: int | None, name: str) -> bool:
    """Whether two chains of the continuation's have the same position."""
    tips = hashes._labeled.get(group, {}).get(name, ())
    ends = [hashes.end(block_hash) for block_hash, _ in hashes._chains(tips)]
    return len(ends) > len(set(ends))


TestAnyLabels = AnyLabels.TestCase
TestAnyLabels.settings = settings(max_examples=200, stateful_step_count=25)
