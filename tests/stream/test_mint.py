# SPDX-License-Identifier: Apache-2.0
"""Ids are equal exactly when model, salt and content up to there are equal."""

from hashlib import blake2b
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from vllm_coordinates.stream import mint
from vllm_coordinates.stream.ancestry import Ancestry

TURNS = st.lists(st.binary(max_size=3), max_size=4)
REQUEST = st.tuples(st.sampled_from("mn"), st.sampled_from([None, "", "s"]), TURNS)


def identity(request: tuple[str, str | None, list[bytes]]) -> str:
    model, salt, turns = request
    name = mint.mint_root(model, salt)
    for turn in turns:
        name = mint.mint(name, turn)
    return name


@given(REQUEST, REQUEST)
def test_ids_are_equal_exactly_when_everything_is(
    one: tuple[str, str | None, list[bytes]], other: tuple[str, str | None, list[bytes]]
) -> None:
    assert (identity(one) == identity(other)) == (one == other)


def test_the_recipe_is_fixed() -> None:
    """Control planes in other languages mint the same ids."""
    spelled = bytes(7) + b"\x04root" + bytes(7) + b"\x01m"
    root = blake2b(spelled, digest_size=20).hexdigest()
    assert mint.mint_root("m") == root
    spelled = bytes(7) + b"\x04turn" + bytes(7) + b"\x28" + root.encode()
    spelled += bytes(7) + b"\x1e" + b'{"content":"Hi","role":"user"}'
    assert mint.chat(ask(ANN)).ids == (blake2b(spelled, digest_size=20).hexdigest(),)


def ask(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **more}


SYSTEM = {"role": "system", "content": "Be kind."}
ANN = {"role": "user", "content": "Hi"}
REPLY = {"role": "assistant", "content": "Hello!"}


class TestChat:
    def test_each_message_is_a_position(self) -> None:
        one, both = mint.chat(ask(SYSTEM)), mint.chat(ask(SYSTEM, ANN))
        assert both.ids[0] == one.continuation_id
        assert len(both.ids) == 2

    def test_a_reply_extends_the_chain_to_where_the_next_request_is(self) -> None:
        chain = mint.chat(ask(ANN)).extend(REPLY).extend(ANN)
        assert mint.chat(ask(ANN, REPLY, ANN)).ids == chain.ids

    def test_the_order_of_keys_means_nothing(self) -> None:
        swapped = dict(reversed(ANN.items()))
        assert mint.chat(ask(swapped)) == mint.chat(ask(ANN))

    @pytest.mark.parametrize(
        "other",
        [
            {"role": "user", "content": "Hi "},
            {"role": "system", "content": "Hi"},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "user", "content": "Hi", "name": None},
        ],
        ids=["content", "role", "parts", "null key"],
    )
    def test_what_a_template_may_tell_apart_is_another_id(self, other: Any) -> None:
        assert mint.chat(ask(other)) != mint.chat(ask(ANN))

    @pytest.mark.parametrize(
        "more",
        [
            {"model": "n"},
            {"cache_salt": "s"},
            {"tools": [{"type": "function"}]},
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"tool_choice": "none"},
            {"response_format": {"type": "json_object"}},
            {"truncate_prompt_tokens": 64},
        ],
        ids=[
            *("model", "salt", "tools", "template"),
            *("tool choice", "format", "truncation"),
        ],
    )
    def test_what_is_before_the_messages_is_in_every_id(self, more: Any) -> None:
        plain, other = mint.chat(ask(ANN)), mint.chat(ask(ANN, **more))
        assert plain.continuation_id != other.continuation_id

    @pytest.mark.parametrize(
        "more", [{"temperature": 1}, {"max_tokens": 5}, {"user": "ann"}]
    )
    def test_what_no_template_renders_is_in_none(self, more: Any) -> None:
        assert mint.chat(ask(ANN, **more)) == mint.chat(ask(ANN))

    @pytest.mark.parametrize(
        ("request_", "message"),
        [
            ({"messages": []}, "model must be a string: ids of two models never meet"),
            ({"model": "m"}, "messages must be a list of turns"),
            (
                {"model": "m", "messages": [], "cache_salt": 1},
                "cache_salt must be a string or absent",
            ),
        ],
    )
    def test_what_is_no_request_is_said(self, request_: Any, message: str) -> None:
        with pytest.raises(ValueError, match=f"^{message}$"):
            mint.chat(request_)


class TestResponses:
    def test_a_string_is_one_turn_and_items_are_one_each(self) -> None:
        assert len(mint.responses({"model": "m", "input": "Hi"}).ids) == 1
        assert len(mint.responses({"model": "m", "input": [ANN, REPLY]}).ids) == 2

    def test_instructions_come_first(self) -> None:
        request = {"model": "m", "input": "Hi", "instructions": "Be kind."}
        assert len(mint.responses(request).ids) == 2

    @pytest.mark.parametrize(
        "more",
        [
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"truncation": "auto"},
            {"previous_input_messages": [{"role": "user"}]},
            {"media_io_kwargs": {"image": {}}},
        ],
        ids=["template", "truncation", "history", "media"],
    )
    def test_what_is_before_the_items_is_in_every_id(self, more: Any) -> None:
        request = {"model": "m", "input": "Hi"}
        plain, other = mint.responses(request), mint.responses(request | more)
        assert plain.continuation_id != other.continuation_id

    def test_a_response_continues_its_parent(self) -> None:
        parent = mint.responses({"model": "m", "input": "Hi"})
        request = {"model": "m", "input": "Go on", "previous_response_id": "resp_1"}
        child = mint.responses(request, parent.continuation_id)
        assert child.start == parent.continuation_id
        tree = Ancestry()
        parent.register(tree)
        child.register(tree)
        assert list(tree.chain(child.continuation_id))[1:] == [
            parent.continuation_id,
            parent.start,
        ]

    def test_a_parent_must_be_given(self) -> None:
        request = {"model": "m", "input": "Hi", "previous_response_id": "resp_1"}
        with pytest.raises(ValueError, match=r"^the request continues previous_respon"):
            mint.responses(request)


class TestMessages:
    @staticmethod
    def text(text: str, *, marked: bool = False) -> dict[str, Any]:
        block: dict[str, Any] = {"type": "text", "text": text}
        return block | {"cache_control": {"type": "ephemeral"}} if marked else block

    def test_markers_and_ends_of_messages_are_positions(self) -> None:
        request = ask(
            {"role": "user", "content": [self.text("a", marked=True), self.text("b")]},
            system=[self.text("s"), self.text("t", marked=True)],
            tools=[{"name": "t"}],
        )
        chain = mint.messages(request)
        assert [step.marked for step in chain.steps] == [False, False, True, True, True]
        assert len(chain.ids) == 3

    def test_moving_a_marker_changes_no_id(self) -> None:
        chains = [
            mint.messages(
                ask(
                    {
                        "role": "user",
                        "content": [
                            self.text("a", marked=one),
                            self.text("b", marked=two),
                        ],
                    }
                )
            )
            for one, two in ((True, False), (False, True))
        ]
        one, other = ([s.continuation_id for s in c.steps] for c in chains)
        assert one == other

    @pytest.mark.parametrize(
        "more",
        [{"thinking": {"type": "disabled"}}, {"output_config": {"effort": "low"}}],
        ids=["thinking", "effort"],
    )
    def test_what_is_before_the_messages_is_in_every_id(self, more: Any) -> None:
        plain, other = mint.messages(ask(ANN)), mint.messages(ask(ANN, **more))
        assert plain.continuation_id != other.continuation_id

    def test_a_string_is_one_text_block(self) -> None:
        one = mint.messages(ask({"role": "user", "content": "a"}, system="s"))
        block = {"role": "user", "content": [self.text("a")]}
        assert mint.messages(ask(block, system=[self.text("s")])) == one

    def test_a_marker_in_a_tool_s_result_is_one_behind_it(self) -> None:
        def chain(*, marked: bool) -> mint.Chain:
            result = {"type": "tool_result", "content": [self.text("a", marked=marked)]}
            content = [result, self.text("b")]
            return mint.messages(ask({"role": "user", "content": content}))

        marked, plain = chain(marked=True), chain(marked=False)
        assert marked.continuation_id == plain.continuation_id
        assert marked.ids[0] == plain.steps[0].continuation_id

    def test_a_billing_header_is_in_no_id(self) -> None:
        def chain(*system: str, inline: str = "") -> mint.Chain:
            turns = [{"role": "system", "content": inline}] if inline else []
            blocks = [self.text(text) for text in system]
            return mint.messages(ask(*turns, ANN, system=blocks))

        header = "x-anthropic-billing-header: cc_version=1; cch="
        assert chain(f"{header}1", "Be kind.") == chain("Be kind.")
        assert chain("Be kind.", inline=f"{header}2") == chain("Be kind.")

    def test_system_blocks_are_not_system_messages(self) -> None:
        blocks = mint.messages(ask(ANN, system=[self.text("a"), self.text("b")]))
        turns = ({"role": "system", "content": text} for text in "ab")
        assert mint.messages(ask(*turns, ANN)) != blocks

    def test_a_message_of_no_block_is_a_turn(self) -> None:
        empty = {"role": "assistant", "content": []}
        assert mint.messages(ask(ANN, empty)) != mint.messages(ask(ANN))

    def test_a_block_more_continues_the_message(self) -> None:
        short = mint.messages(ask({"role": "user", "content": [self.text("a")]}))
        blocks = [self.text("a"), self.text("b")]
        longer = mint.messages(ask({"role": "user", "content": blocks}))
        assert longer.steps[0].continuation_id == short.continuation_id

    def test_two_blocks_are_not_two_messages(self) -> None:
        blocks = [self.text("a"), self.text("b")]
        one = mint.messages(ask({"role": "user", "content": blocks}))
        two = mint.messages(ask(*({"role": "user", "content": [b]} for b in blocks)))
        assert one.continuation_id != two.continuation_id


@pytest.mark.parametrize(
    ("turn", "bounded"),
    [
        (ANN, True),
        ({"role": "user", "content": [{"type": "text", "text": "Hi"}]}, True),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}, False),
        ({"role": "assistant", "content": "x", "tool_calls": []}, False),
        ({"role": "assistant", "content": "x", "reasoning_content": "y"}, False),
        ({"role": "user", "content": "x", "name": "ann"}, False),
        ({"role": "user", "content": []}, False),
        ({"tools": []}, False),
        ("Hi", True),
    ],
)
def test_text_bounds_tokens_only_where_it_is_all_that_is_rendered(
    turn: Any, bounded: bool
) -> None:
    (step,) = mint.Chain("root", rooted=True).extend(turn).steps
    assert (step.turn is not None) is bounded


def test_a_lone_surrogate_has_no_bytes() -> None:
    with pytest.raises(UnicodeEncodeError):
        mint.chat(ask({"role": "user", "content": "\ud800"}))
