# SPDX-License-Identifier: Apache-2.0
"""What the index answers, in both languages."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from stream.model import BLOCK, Engine, Tokens, render

from vllm_coordinates.stream import mint
from vllm_coordinates.stream.ancestry import Ancestry, Fingerprint
from vllm_coordinates.stream.index import Index, Prefix
from vllm_coordinates.stream.sequence import Dropped, Reason, Resumed, Suspended
from vllm_coordinates.stream.wire import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    MalformedEvent,
    UnknownEvent,
)


def span(
    name: str, start: int, end: int, *, session: str = "s", **more: Any
) -> BlockStored:
    fields: dict[str, Any] = {
        "block_hashes": [],
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        "session_id": session,
        "continuation_id": name,
        "token_offset": start,
        "num_tokens": end,
    }
    return BlockStored(**fields | more)


def blocks(
    hashes: str, *, parent: str | None = None, name: str | None = None, **more: Any
) -> BlockStored:
    """Blocks whose hashes are letters, of one token for each letter."""
    fields: dict[str, Any] = {
        "block_hashes": [letter.encode() for letter in hashes],
        "parent_block_hash": parent.encode() if parent else None,
        "token_ids": list(range(len(hashes))),
        "block_size": 1,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        "session_id": name and f"session of {name}",
        "continuation_id": name,
    }
    return BlockStored(**fields | more)


def gone(name: str, start: int, end: int, **more: Any) -> BlockRemoved:
    fields: dict[str, Any] = {
        "block_hashes": [],
        "medium": "GPU",
        "group_idx": 0,
        "continuation_id": name,
        "token_offset": start,
        "num_tokens": end,
    }
    return BlockRemoved(**fields | more)


def block_gone(letter: str, **more: Any) -> BlockRemoved:
    fields: dict[str, Any] = {"block_hashes": [letter.encode()], "medium": "GPU"}
    return BlockRemoved(**fields | {"group_idx": 0} | more)


def index_of(*events: Event, ancestry: Ancestry | None = None, **more: Any) -> Index:
    index = Index(ancestry, **more)
    index.apply_batch("e", EventBatch(1.0, list(events), 0))
    return index


def prefixes(tokens: Tokens) -> set[Tokens]:
    return {tokens[:end] for end in range(BLOCK, len(tokens) + 1, BLOCK)}


def family(*names: str) -> Ancestry:
    """Continuations of one root, each continuing the one before by 8 tokens."""
    tree = Ancestry()
    tree.add_root("root")
    for depth, (parent, name) in enumerate(zip(("root", *names), names, strict=False)):
        tree.add(name, parent)
        tree.learn(name, 8 * (depth + 1))
    return tree


class TestCoordinates:
    def test_what_was_reported_is_resident_until_it_is_removed(self) -> None:
        index = index_of(span("c", 0, 16), gone("c", 4, 8))
        assert index.spans("e", "c") == [(0, 4), (8, 16)]
        assert index.prefix("e", "c") == 4

    def test_a_report_after_a_removal_counts(self) -> None:
        index = index_of(span("c", 0, 16), gone("c", 0, 16), span("c", 0, 8))
        assert index.spans("e", "c") == [(0, 8)]

    def test_a_removal_takes_a_shared_position_from_who_continues(self) -> None:
        events = span("one", 0, 8), span("two", 0, 16), gone("one", 4, 8)
        index = index_of(*events, ancestry=family("one", "two"))
        assert index.spans("e", "two") == [(0, 4), (8, 16)]
        assert index.spans("e", "two", doubtful=True) == [(0, 4), (8, 16)]

    def test_a_removal_takes_a_shared_position_from_whom_it_continues(self) -> None:
        events = span("one", 0, 8), span("two", 0, 16), gone("two", 4, 8)
        index = index_of(*events, ancestry=family("one", "two"))
        assert index.spans("e", "one") == [(0, 4)]

    def test_a_removal_before_a_fork_takes_it_from_every_branch(self) -> None:
        tree = family("one")
        for name in ("left", "right"):
            tree.add(name, "one", Fingerprint.of(name.encode()))
        events = span("left", 0, 16), span("right", 0, 16), gone("left", 4, 8)
        index = index_of(*events, ancestry=tree)
        assert index.spans("e", "right") == [(0, 4), (8, 16)]
        assert index.spans("e", "right", doubtful=True) == [(0, 4), (8, 16)]

    def test_a_removal_behind_a_fork_leaves_the_other_branch(self) -> None:
        tree, engine = Ancestry(template_tokens=0), Engine()
        index = Index(tree)
        system, prompts = "Be kind..", {}
        for text in ("Where is my order?", "Cancel it."):
            chain = mint.Chain(mint.mint_root("m"), rooted=True)
            chain = chain.extend(system).extend(text)
            chain.register(tree)
            name = chain.continuation_id
            prompts[name] = render([system, text])
            engine.request(prompts[name], continuation=name, session="s")
        tree.learn(chain.steps[0].continuation_id, len(render([system])))
        first, second = prompts
        for prefix in [p for p in engine.blocks if p not in prefixes(prompts[second])]:
            engine.evict(engine.blocks.index(prefix))
        index.apply_batch("e", engine.take())
        assert index.prefix("e", second) == len(prompts[second]) // BLOCK * BLOCK
        assert index.prefix("e", first) == len(render([system]))

    def test_without_ancestry_a_removal_puts_everyone_in_doubt(self) -> None:
        index = index_of(span("c", 0, 16), span("d", 0, 16), gone("c", 4, 8))
        assert index.spans("e", "d") == [(0, 4), (8, 16)]
        assert index.spans("e", "d", doubtful=True) == [(0, 16)]

    def test_a_doubt_ends_with_the_next_report(self) -> None:
        events = span("c", 0, 8), span("d", 0, 8), gone("c", 0, 8), span("d", 0, 8)
        assert index_of(*events).spans("e", "d") == [(0, 8)]

    @pytest.mark.parametrize("heard", ["e", "f"], ids=["its own", "another"])
    def test_a_doubt_that_nothing_settles_ends_with_the_time_of_any_endpoint(
        self, heard: str
    ) -> None:
        index = index_of(
            span("c", 0, 8), span("d", 0, 8), gone("c", 0, 8), doubt_seconds=9
        )
        for _ in range(5000):
            index.apply_batch(heard, EventBatch(11.0, [], 0))
        assert index.spans("e", "d", doubtful=True) == []

    def test_doubts_by_the_thousand_are_the_same_doubts(self) -> None:
        index = index_of(span("d", 0, 40_000))
        for start in range(0, 20_000, 8):
            index.apply_batch("e", EventBatch(1.0, [gone("c", start, start + 4)], 0))
        held = index.spans("e", "d")
        assert held[:3] == [(4, 8), (12, 16), (20, 24)] and held[-1] == (19_996, 40_000)

    def test_other_endpoints_keep_what_they_have(self) -> None:
        index = index_of(span("c", 0, 8))
        index.apply_batch("f", EventBatch(1.0, [span("c", 0, 8), gone("c", 0, 8)], 0))
        assert index.spans("e", "c") == [(0, 8)]
        assert index.spans("f", "c") == []


class TestHashes:
    def test_a_chain_of_blocks_has_positions(self) -> None:
        index = index_of(blocks("abc", name="c"), blocks("de", parent="c", name="c"))
        assert index.spans("e", "c") == [(0, 5)]

    def test_reuse_in_default_mode_is_seen_through_the_chain(self) -> None:
        index = index_of(blocks("abc", name="c"), blocks("de", parent="c", name="d"))
        assert index.spans("e", "d") == [(0, 5)]
        assert index.spans("e", "c") == [(0, 3)]

    def test_a_removal_is_exact_about_who_shares(self) -> None:
        index = index_of(
            blocks("ab", name="c"),
            blocks("x", parent="b", name="c"),
            blocks("y", parent="b", name="d"),
            block_gone("x"),
        )
        assert index.spans("e", "c") == [(0, 2)]
        assert index.spans("e", "d") == [(0, 3)]

    def test_an_unlabeled_block_is_found_by_whose_chain_it_is_in(self) -> None:
        index = index_of(blocks("ab"), blocks("c", parent="b", name="c"))
        assert index.spans("e", "c") == [(0, 3)]

    def test_the_first_removal_of_a_duplicate_ends_it(self) -> None:
        index = index_of(blocks("a", name="c"), blocks("a", name="d"), block_gone("a"))
        assert index.spans("e", "c") == []

    def test_duplicates_can_be_counted_where_no_report_repeats_them(self) -> None:
        events = blocks("a", name="c"), blocks("a", name="d"), block_gone("a")
        index = index_of(*events, count_duplicates=True)
        assert index.spans("e", "c") == [(0, 1)]
        index.apply_batch("e", EventBatch(2.0, [block_gone("a")], 0))
        assert index.spans("e", "c") == []

    def test_blocks_whose_chain_was_never_seen_have_no_position(self) -> None:
        index = index_of(blocks("de", parent="c", name="c"))
        assert index.spans("e", "c") == []
        index.apply_batch("e", EventBatch(2.0, [blocks("abc")], 0))
        assert index.spans("e", "c") == [(0, 5)]

    def test_masked_blocks_get_their_position_from_another_group(self) -> None:
        masked = blocks("c", name="c", group_idx=1, token_ids=[0, 1, 2])
        index = index_of(masked)
        assert index.spans("e", "c", group=1) == []
        index.apply_batch("e", EventBatch(2.0, [blocks("abc", name="c")], 0))
        assert index.spans("e", "c", group=1) == [(2, 3)]

    def test_the_links_of_a_chain_go_with_its_last_block(self) -> None:
        index = index_of(blocks("abc", name="c"), *map(block_gone, "acb"))
        index.apply_batch("e", EventBatch(2.0, [blocks("c", parent="b", name="c")], 0))
        assert index.spans("e", "c") == []

    def test_a_ring_of_parents_ends(self) -> None:
        ring = blocks("a", parent="b", name="c"), blocks("b", parent="a", name="c")
        index = index_of(*ring, block_gone("a"), block_gone("b"))
        assert index.spans("e", "c") == []


class TestMixedModes:
    def test_a_removal_in_both_languages_ends_both(self) -> None:
        index = index_of(
            blocks("a", name="c"), span("c", 0, 1), gone("c", 0, 1, block_hashes=[b"a"])
        )
        assert index.spans("e", "c") == []

    def test_a_removal_by_hash_alone_leaves_coordinates(self) -> None:
        index = index_of(blocks("a", name="c"), span("d", 0, 4), block_gone("a"))
        assert index.spans("e", "d") == [(0, 4)]


class TestWhatIsNotCounted:
    @pytest.mark.parametrize(
        "other", [{"medium": "CPU"}, {"medium": "STORAGE"}, {"locality": "REMOTE"}]
    )
    def test_other_tiers_are_skipped(self, other: dict[str, str]) -> None:
        index = index_of(
            span("c", 0, 8, **other), span("d", 0, 8), gone("d", 0, 8, **other)
        )
        assert index.spans("e", "c") == []
        assert index.spans("e", "d") == [(0, 8)]
        assert index.counts["other tier"] == 2

    def test_unknown_events_are_skipped(self) -> None:
        index = index_of(span("c", 0, 8), UnknownEvent("BlockMoved"))
        assert index.spans("e", "c") == [(0, 8)]
        assert index.counts["unknown"] == 1

    def test_a_store_without_a_proper_span_is_skipped(self) -> None:
        index = index_of(span("c", 8, 8), span("c", -4, 8), span("c", 9, 4))
        assert index.spans("e", "c") == []
        assert index.counts["no span"] == 3


class TestWhatVoidsEverything:
    @pytest.mark.parametrize(
        "event",
        [
            AllBlocksCleared(),
            MalformedEvent("BlockRemoved", "torn"),
            gone("c", 8, 4),
            BlockRemoved(block_hashes=[], medium="GPU"),
        ],
        ids=["reset", "malformed", "no span", "names nothing"],
    )
    def test_after_it_nothing_is_resident(self, event: Event) -> None:
        index = index_of(span("c", 0, 8), blocks("a", name="d"), event, span("f", 0, 4))
        assert [h.continuation_id for h in index.holdings()] == ["f"]

    def test_a_drop(self) -> None:
        index = index_of(span("c", 0, 8))
        index.apply(Dropped("e", 1.0, Reason.EPOCH, ""))
        assert index.holdings() == []
        assert index.counts["dropped: epoch"] == 1

    def test_a_suspended_endpoint_answers_nothing_until_it_is_resumed(self) -> None:
        index = index_of(span("c", 0, 8))
        index.apply(Suspended("e", 1.0, ""))
        assert index.suspended("e")
        assert not (index.spans("e", "c") or index.longest("c") or index.holdings())
        assert not (index.prefix("e", "c") or index.sharing("e", "c", 0, 8))
        index.apply(Resumed("e", 1.0))
        assert index.spans("e", "c") == [(0, 8)]


class TestGroups:
    FULL: ClassVar[dict[str, Any]] = {
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    WINDOW: ClassVar[dict[str, Any]] = {
        "group_idx": 1,
        "kv_cache_spec_kind": "sliding_window",
        "kv_cache_spec_sliding_window": 9,
    }
    MAMBA: ClassVar[dict[str, Any]] = {"group_idx": 1, "kv_cache_spec_kind": "mamba"}
    STRANGE: ClassVar[dict[str, Any]] = {
        "group_idx": 1,
        "kv_cache_spec_kind": "chunked_local_attention",
    }

    def test_each_group_has_spans_of_its_own(self) -> None:
        index = index_of(
            span("c", 0, 40, **self.FULL), span("c", 24, 40, **self.WINDOW)
        )
        assert index.spans("e", "c", group=1) == [(24, 40)]
        assert index.spans("e", "c") == [(0, 40)]

    def test_a_window_needs_its_last_tokens_only(self) -> None:
        index = index_of(
            span("c", 0, 40, **self.FULL), span("c", 24, 36, **self.WINDOW)
        )
        assert index.prefix("e", "c") == 36

    def test_a_window_that_is_cut_serves_no_such_prefix(self) -> None:
        index = index_of(
            span("c", 0, 40, **self.FULL), span("c", 32, 36, **self.WINDOW)
        )
        assert index.prefix("e", "c") == 0

    def test_the_groups_agree_on_one_length(self) -> None:
        index = index_of(
            span("c", 0, 20, **self.FULL),
            span("c", 0, 12, **self.WINDOW),
            span("c", 28, 40, **self.WINDOW),
        )
        assert index.prefix("e", "c") == 12

    def test_mamba_needs_the_block_that_ends_the_prefix(self) -> None:
        index = index_of(span("c", 0, 40, **self.FULL), span("c", 16, 20, **self.MAMBA))
        assert index.prefix("e", "c") == 20

    def test_an_unknown_kind_needs_everything(self) -> None:
        index = index_of(
            span("c", 0, 40, **self.FULL), span("c", 16, 20, **self.STRANGE)
        )
        assert index.prefix("e", "c") == 0
        assert index.spans("e", "c") == [(16, 20)]


class TestAnswers:
    def test_the_longest_prefix_may_be_an_ancestors(self) -> None:
        index = Index(family("one", "two"))
        index.apply_batch("e", EventBatch(1.0, [span("one", 0, 8)], 0))
        index.apply_batch("f", EventBatch(1.0, [span("two", 0, 16)], 0))
        index.apply_batch("g", EventBatch(1.0, [span("other", 0, 99)], 0))
        assert index.longest("two") == [Prefix("f", "two", 16), Prefix("e", "one", 8)]

    def test_who_shares_a_span(self) -> None:
        index = index_of(
            span("one", 0, 8, session="ann"),
            span("two", 0, 16, session="bob"),
            ancestry=family("one", "two"),
        )
        assert index.sharing("e", "two", 0, 8) == {"ann", "bob"}
        assert index.sharing("e", "two", 8, 16) == {"bob"}

    def test_who_shares_a_block_by_hash(self) -> None:
        index = index_of(blocks("ab", name="c"), blocks("a", name="d"))
        assert index.sharing("e", "c", 0, 1) == {"session of c", "session of d"}
        assert index.sharing("e", "c", 1, 2) == {"session of c"}

    def test_a_holding_says_how_much_of_it_is_shared(self) -> None:
        index = index_of(
            span("one", 0, 8, session="ann"),
            span("two", 0, 16, session="bob"),
            ancestry=family("one", "two"),
        )
        two, one = index.holdings("e")
        assert (two.continuation_id, two.tokens, two.shared) == ("two", 16, 8)
        assert (one.continuation_id, one.tokens, one.shared) == ("one", 8, 8)

    def test_a_holding_is_what_single_questions_are_answered(self) -> None:
        index = index_of(
            span("c", 0, 8),
            span("d", 0, 8),
            blocks("ab", name="c"),
            blocks("x", parent="b", name="d"),
            gone("e", 3, 4),
        )
        held = index.holdings("e")
        assert {h.continuation_id for h in held} == {"c", "d"}
        for one in held:
            certain = list(one.certain)
            assert certain == index.spans("e", one.continuation_id)
            assert one.usable == index.prefix("e", one.continuation_id) == certain[0][1]
            assert one.doubtful == ((3, 4),)

    def test_sessions_rank_by_their_largest_continuation(self) -> None:
        index = index_of(
            span("one", 0, 8, session="ann"),
            span("two", 0, 16, session="ann"),
            span("three", 0, 12, session="bob"),
        )
        assert index.sessions() == [("ann", 16), ("bob", 12)]


@pytest.mark.parametrize("mode", ["incremental", "full", "coordinates"])
def test_one_conversation_is_seen_exactly_as_it_is(mode: str) -> None:
    """No ambiguity, no under-coverage: what is resident is what is answered."""
    tree, engine = Ancestry(), Engine()
    index = Index(tree)
    chain = mint.Chain(mint.mint_root("m"), rooted=True)
    turns = ["You are kind.", "Where is my order?", "On its way.", "Thanks!"]
    for count, turn in enumerate(turns, start=1):
        chain = chain.extend(turn)
        chain.register(tree)
        prompt = render(turns[:count])
        tree.learn(chain.continuation_id, len(prompt))
        engine.request(
            prompt, mode=mode, continuation=chain.continuation_id, session="s"
        )
        index.apply_batch("e", engine.take())
    while engine.blocks:
        held = len(engine.blocks) * BLOCK
        assert index.longest(chain.continuation_id)[0].tokens == held
        engine.evict(len(engine.blocks) - 1)
        index.apply_batch("e", engine.take())
    assert index.holdings() == []


def conversation(written: Callable[[str], Any], **more: Any) -> list[dict[str, Any]]:
    """The requests of four turns, each a text that a client writes its own way."""
    turns: list[dict[str, Any]] = []
    requests = []
    for number in range(4):
        turns = [*turns, {"role": "user", **written(f"question {number} " * 4)}]
        requests.append({"model": "m", "messages": turns, **more})
        turns = [*turns, {"role": "assistant", **written(f"answer {number} " * 4)}]
    return requests


def plain(text: str) -> dict[str, Any]:
    return {"content": text}


@pytest.mark.parametrize(
    "other",
    [
        conversation(plain, tool_choice="auto"),
        conversation(lambda text: {"content": [{"type": "text", "text": text}]}),
        conversation(lambda text: {"content": text, "name": "ann"}),
        conversation(lambda text: {"content": text, "type": "message"}),
    ],
    ids=["a default", "a part", "a name", "a type"],
)
def test_what_is_written_otherwise_and_rendered_alike_is_no_phantom(
    other: list[dict[str, Any]],
) -> None:
    engine, index = Engine(), Index()
    chains = []
    for session, requests in (("ann", conversation(plain)), ("bob", other)):
        for request in requests:
            chain = mint.chat(request)
            chain.register(index.ancestry)
            chains.append(chain)
            tokens = render([text_of(turn) for turn in request["messages"]])
            engine.request(tokens, continuation=chain.continuation_id, session=session)
            index.apply_batch("e", engine.take())
            index.ancestry.learn(chain.continuation_id, len(tokens))
    assert all(index.spans("e", chain.continuation_id) for chain in chains)
    while engine.blocks:
        engine.evict(len(engine.blocks) - 1)
    index.apply_batch("e", engine.take())
    assert not any(index.spans("e", chain.continuation_id) for chain in chains)


def text_of(turn: dict[str, Any]) -> str:
    content = turn["content"]
    return content if isinstance(content, str) else content[0]["text"]


def test_what_the_ancestry_forgot_is_vouched_for_no_more() -> None:
    engine, index = Engine(), Index()
    root = mint.Chain(mint.mint_root("m"), rooted=True)
    first = root.extend("a" * 40)
    again = first.extend("b" * 8)
    again.register(index.ancestry)
    for chain, turns in ((first, ["a" * 40]), (again, ["a" * 40, "b" * 8])):
        engine.request(render(turns), continuation=chain.continuation_id, session="ann")
    index.apply_batch("e", engine.take())
    index.ancestry.forget(again.continuation_id)
    while engine.blocks:
        engine.evict(len(engine.blocks) - 1)
    index.apply_batch("e", engine.take())
    assert not index.spans("e", again.continuation_id)
