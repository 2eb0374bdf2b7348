# SPDX-License-Identifier: Apache-2.0
"""Minting continuation ids from content.

    root            = H(model, cache salt)
    continuation_id = H(parent continuation_id, canonical bytes of the next turn)

Two ids are equal exactly when model, cache salt and the bytes of every turn up
to there are equal. H is BLAKE2b of 160 bits, written as 40 hex digits; each
part is preceded by its length, so no two lists of parts look the same.

The canonical bytes of a turn are its JSON value with keys sorted, no blanks
and UTF-8 unescaped: what a client may write differently without meaning
anything else, and nothing more. A null key is not an absent one, and a string
is not a list of one text part, since chat templates tell them apart. Numbers
that JSON lacks (NaN, infinities) are null.

What makes a turn:

* chat completions: a *head*, where the request has any of the fields that a
  template renders before or around the messages (`tools`, `documents`,
  `chat_template`, `chat_template_kwargs`, `reasoning_effort`, ...); then each
  message;
* responses: the head has `instructions`, `tools`, ...; then each input item. A
  request with `previous_response_id` continues the continuation that the
  caller passes as `parent`;
* messages (Anthropic): the head has `thinking`, `output_config`, ...; then each
  tool, each block of the system prompt, each content block of each message, in
  the order in which that API caches them.
  The positions that count are those behind a `cache_control` marker and the
  ends of messages; the marker itself is no content, so moving it changes no id.
  A string is one text block there, and Claude Code's billing header, another
  one in each request, is left out, both as vLLM reads them.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from .ancestry import Ancestry, Fingerprint

_encode = msgspec.json.Encoder(order="sorted").encode

# What the tokens of a whole prompt depend on beside its turns.
_CHAT_HEAD = (
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "reasoning_effort",
    "response_format",
    "tool_choice",
    "tools",
    "truncate_prompt_tokens",
    "truncation_side",
)
_RESPONSES_HEAD = (
    "chat_template_kwargs",
    "instructions",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "previous_input_messages",
    "reasoning",
    "text",
    "tool_choice",
    "tools",
    "truncation",
)
_MESSAGES_HEAD = (
    "chat_template_kwargs",
    "mm_processor_kwargs",
    "output_config",
    "thinking",
    "tool_choice",
)
_PLAIN = frozenset(("content", "role", "type"))
_BILLING = "x-anthropic-billing-header"


class _Turn(NamedTuple):
    """A JSON value that is one turn; see `Step` for the rest."""

    value: Any
    marked: bool = True
    opening: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One turn further: the id behind it, and what is known of its text.

    `marked` says whether the request asks for caching up to here, or a message
    ends here. `turn` is None where its text says nothing about token counts.
    `opening` is what comes before the first message: a head, a tool.
    """

    continuation_id: str
    turn: Fingerprint | None
    marked: bool = True
    opening: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """The positions of a request, from where it starts; immutable.

    `start` is a root, or the continuation that the request continues.
    """

    start: str
    rooted: bool
    steps: tuple[Step, ...] = ()

    @property
    def continuation_id(self) -> str:
        """The label of the whole request: the last position's id."""
        return self.steps[-1].continuation_id if self.steps else self.start

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the positions that count, first to last."""
        return tuple(step.continuation_id for step in self.steps if step.marked)

    def extend(self, *turns: Any, marked: bool = True) -> "Chain":
        """The chain with more turns, each any JSON value: a reply, say."""
        return self._extend(_Turn(turn, marked) for turn in turns)

    def _extend(self, turns: Iterable[_Turn]) -> "Chain":
        steps = list(self.steps)
        parent = self.continuation_id
        for value, marked, opening in turns:
            parent = mint(parent, canonical(value))
            steps.append(Step(parent, _fingerprint(value), marked, opening))
        return Chain(self.start, self.rooted, tuple(steps))

    def register(self, ancestry: Ancestry) -> None:
        """Make every position known to `ancestry`."""
        if self.rooted:
            ancestry.add_root(self.start)
        parent = self.start
        for step in self.steps:
            ancestry.add(step.continuation_id, parent, step.turn, opening=step.opening)
            parent = step.continuation_id


def mint_root(model: str, cache_salt: str | None = None) -> str:
    """The empty prefix of a model (or LoRA adapter, by its name) and a salt.

    No salt and an empty one are different, as they are to the engine.
    """
    parts = [b"root", model.encode()]
    return _digest(parts if cache_salt is None else [*parts, cache_salt.encode()])


def mint(parent: str, turn: bytes) -> str:
    """The continuation that adds `turn`, its canonical bytes, to `parent`."""
    return _digest([b"turn", parent.encode(), turn])


def canonical(turn: Any) -> bytes:
    """The canonical bytes of a JSON value (see the module's docstring).

    Raises TypeError for what JSON has no form for, UnicodeEncodeError for a
    lone surrogate.
    """
    return _encode(turn)


def chat(request: Mapping[str, Any]) -> Chain:
    """The chain of a chat completion request, the body as a mapping.

    Raises ValueError where `model` or `messages` is missing or of another type.
    """
    messages = _list(request, "messages")
    chain = _rooted(request)._extend(_head(request, _CHAT_HEAD))
    return chain.extend(*messages)


def responses(request: Mapping[str, Any], parent: str | None = None) -> Chain:
    """The chain of a Responses request, the body as a mapping.

    `parent` is the continuation of the turn that `previous_response_id` names;
    that turn must have had the same instructions and tools, since these are
    rendered first and the API does not carry them over. Raises ValueError where
    a field is missing or of another type, and where `previous_response_id` is
    given without `parent`.
    """
    given = request.get("input")
    items = [given] if isinstance(given, str) else _list(request, "input")
    if parent is not None:
        chain = Chain(parent, rooted=False)
    elif request.get("previous_response_id") is not None:
        raise ValueError(
            "the request continues previous_response_id"
            f" {request['previous_response_id']!r}: pass its continuation as parent"
        )
    else:
        chain = _rooted(request)
    return chain._extend(_head(request, _RESPONSES_HEAD)).extend(*items)


def messages(request: Mapping[str, Any]) -> Chain:
    """The chain of an Anthropic messages request, the body as a mapping.

    Raises ValueError where `model` or `messages` is missing or of another type.
    """
    return _rooted(request)._extend(_blocks_in_order(request))


def _blocks_in_order(request: Mapping[str, Any]) -> Iterator[_Turn]:
    """The turns of a messages request, and whether the position behind each counts."""
    yield from _head(request, _MESSAGES_HEAD, marked=False)
    for tool in _blocks(request.get("tools")):
        yield _block("tool", tool)._replace(opening=True)
    system = _but_billing(_blocks(request.get("system")))
    for position, block in enumerate(system):
        yield _block("system", block, opens=not position)
    for message in _list(request, "messages"):
        if not isinstance(message, Mapping):
            raise ValueError("each of messages must be an object")
        role, blocks = message.get("role"), _blocks(message.get("content"))
        if role == "system" and blocks and not (blocks := _but_billing(blocks)):
            continue
        # A message of no block is rendered, too: its frame is.
        blocks = blocks or [None]
        for position, block in enumerate(blocks):
            last = position == len(blocks) - 1
            yield _block(role, block, opens=not position, last=last)


def _block(role: Any, block: Any, *, opens: bool = True, last: bool = False) -> _Turn:
    content, marked = _without_markers(block)
    # Two blocks of one message are rendered otherwise than two messages.
    return _Turn([role, content, opens], marked or last)


def _without_markers(block: Any) -> tuple[Any, bool]:
    """A block without its `cache_control` markers, and whether it had one."""
    if not isinstance(block, Mapping):
        return block, False
    marked = block.get("cache_control") is not None
    plain = {key: block[key] for key in block if key != "cache_control"}
    # A tool's result has blocks of its own.
    if isinstance(inner := plain.get("content"), list):
        parts = [_without_markers(part) for part in inner]
        plain["content"] = [part for part, _ in parts]
        marked = marked or any(inside for _, inside in parts)
    return plain, marked


def _but_billing(blocks: list[Any]) -> list[Any]:
    """The blocks but for Claude Code's billing header, a hash for each request."""
    return [
        block
        for block in blocks
        if not (_part_text(_without_markers(block)[0]) or "").startswith(_BILLING)
    ]


def _rooted(request: Mapping[str, Any]) -> Chain:
    model, salt = request.get("model"), request.get("cache_salt")
    if not isinstance(model, str):
        raise ValueError("model must be a string: ids of two models never meet")
    if salt is not None and not isinstance(salt, str):
        raise ValueError("cache_salt must be a string or absent")
    return Chain(mint_root(model, salt), rooted=True)


def _head(
    request: Mapping[str, Any], fields: Iterable[str], *, marked: bool = True
) -> list[_Turn]:
    """A turn before the first one, where the request has one of the fields."""
    head = {field: request[field] for field in fields if field in request}
    return [_Turn(head, marked, opening=True)] if head else []


def _list(request: Mapping[str, Any], field: str) -> list[Any]:
    found = request.get(field)
    if not isinstance(found, list):
        raise ValueError(f"{field} must be a list of turns")
    return found


def _blocks(content: Any) -> list[Any]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else [content]


def _fingerprint(turn: Any) -> Fingerprint | None:
    """Of all that a template renders of a turn but its frame; None if that is more.

    Two such turns' tokens diverge where their texts do, or as many tokens later
    as are put between their parts.
    """
    texts = _texts(turn)
    if texts is None:
        return None
    return Fingerprint.of("".join(texts).encode(), parts=len(texts))


def _texts(turn: Any) -> list[str] | None:
    """The parts of a turn, if they are text and all there is."""
    if isinstance(turn, str):
        return [turn]
    content: Any
    if isinstance(turn, list):
        # One block of a message: [role, block, whether it opens the message].
        content = turn[1:2]
    elif isinstance(turn, Mapping) and turn.keys() <= _PLAIN:
        content = turn.get("content")
    else:
        return None
    if isinstance(content, str):
        return [content]
    texts = [_part_text(part) for part in content] if isinstance(content, list) else []
    known = [text for text in texts if text is not None]
    return known if texts and len(known) == len(texts) else None


def _part_text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.keys() <= {"type", "text"}:
        text = part.get("text")
        return text if isinstance(text, str) else None
    return None


def _digest(parts: Iterable[bytes]) -> str:
    state = hashlib.blake2b(digest_size=20)
    for part in parts:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)
    return state.hexdigest()
