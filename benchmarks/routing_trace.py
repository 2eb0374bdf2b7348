# SPDX-License-Identifier: Apache-2.0
"""What is played: turns of sessions, the same for every router.

Replies are part of the script, so a trace is the same tokens at each replay: what an
engine generates is measured and thrown away. That makes the ceiling computable: how
much of a prompt the engine could at best have had in its cache.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Template
from tokenizers import Tokenizer

from cpu_engine.tiny_model import CHAT_TEMPLATE, CORPUS

BLOCK = 32

Message = dict[str, str]

# The published experiment's: input tokens of each continuation, and pairs.
CONTINUATION_TOKENS = 6653
PARENT_TOKENS = 6600
PAIRS = 12


@dataclass(frozen=True)
class Turn:
    """One request of a trace.

    Attributes:
        name: Unique in the trace.
        session: Whose it is: a sub-agent has its parent's.
        parent: The turn that it continues; None opens a session.
        pause: Seconds after the parent's answer, or after the start: the tool call.
        messages: The whole prompt.
        tokens: Of the prompt.
        ceiling: Of them, those that an engine has if nothing is ever evicted and
            everything was served by it.
        common: Of them, those that other sessions begin with, too.
    """

    name: str
    session: str
    parent: str | None
    pause: float
    messages: tuple[Message, ...]
    tokens: int
    ceiling: int
    common: int


class Writer:
    """Writes turns, and knows how many tokens they are."""

    def __init__(self, model: Path, seed: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._template = Template(CHAT_TEMPLATE)
        self._random = random.Random(seed)
        self._words = sorted(set(CORPUS.split()))
        # A word's tokens are its own: no merge crosses a blank.
        self._lengths = {
            f" {w}": len(self._tokenizer.encode(f" {w}").ids) for w in self._words
        }
        self.random = self._random

    def prose(self, tokens: int) -> str:
        """Text of about that many tokens, or a few more."""
        words: list[str] = []
        count = 0
        while count < tokens:
            words.append(f" {self._random.choice(self._words)}")
            count += self._lengths[words[-1]]
        return "".join(words)

    def tokens(self, messages: tuple[Message, ...]) -> list[int]:
        """What the engine makes of the messages."""
        prompt = self._template.render(messages=messages, add_generation_prompt=True)
        ids: list[int] = self._tokenizer.encode(prompt).ids
        return ids

    def filled(self, messages: tuple[Message, ...], tokens: int) -> tuple[Message, ...]:
        """The messages, the last one made longer so that all are that many tokens."""
        *before, last = messages
        missing = tokens - len(self.tokens(messages))
        full = (*before, {**last, "content": last["content"] + missing * " a"})
        assert len(self.tokens(full)) == tokens
        return full

    def turn(
        self,
        name: str,
        session: str,
        messages: tuple[Message, ...],
        *,
        parent: Turn | None = None,
        pause: float = 0.0,
        others: tuple[Message, ...] = (),
    ) -> Turn:
        """A turn; `others` is what other sessions begin with."""
        tokens = self.tokens(messages)

        def shared(before: tuple[Message, ...]) -> int:
            alike = _common(tokens, self.tokens(before)) if before else 0
            # The last token is always computed: its logits are what is wanted.
            return min(alike, len(tokens) - 1) // BLOCK * BLOCK

        return Turn(
            name,
            session,
            parent and parent.name,
            pause,
            messages,
            len(tokens),
            ceiling=max(shared(parent.messages if parent else ()), shared(others)),
            common=shared(others),
        )


def pairs(model: Path) -> list[Turn]:
    """The published case: a long turn, and its continuation, one after the other.

    Every second pair has another session's request in between, so that taking turns
    brings half of the continuations back by chance, as in the published runs.
    """
    writer = Writer(model, seed=1)
    trace: list[Turn] = []
    for number in range(PAIRS):
        session = f"pair-{number}"
        opening = _user(writer.prose(PARENT_TOKENS - 100))
        first = writer.turn(
            f"{session}.0", session, writer.filled((opening,), PARENT_TOKENS)
        )
        trace.append(first)
        if number % 2:
            other = (_user(writer.prose(100)),)
            trace.append(writer.turn(f"other-{number}", f"other-{number}", other))
        messages = (*first.messages, _reply(writer.prose(10)), _user("And?"))
        messages = writer.filled(messages, CONTINUATION_TOKENS)
        trace.append(writer.turn(f"{session}.1", session, messages, parent=first))
    return trace


@dataclass(frozen=True)
class Load:
    """An agentic workload.

    Attributes:
        sessions: How many there are.
        turns: Of each session.
        forks: Every so manieth session sends out a sub-agent half-way, which continues
            from where the session is, for half as many turns.
        system: Tokens of the system prompt and tools, which all share.
        turn: Tokens of a tool's result, least and most.
        pause: Seconds of a tool call, least and most.
        spread: Seconds within which the sessions begin.
    """

    sessions: int = 16
    turns: int = 6
    forks: int = 3
    system: int = 1000
    turn: tuple[int, int] = (150, 350)
    pause: tuple[float, float] = (0.5, 3.0)
    spread: float = 6.0


def agents(model: Path, load: Load) -> list[Turn]:
    """Sessions with tool calls, some of which fork, all behind one system prompt."""
    writer = Writer(model, seed=2)
    system = {"role": "system", "content": writer.prose(load.system)}
    others = (system, _user("Hello"))

    def continued(turn: Turn, turns: int, suffix: str = "") -> Iterator[Turn]:
        for number in range(turns):
            result = _user(writer.prose(writer.random.randint(*load.turn)))
            turn = writer.turn(
                f"{turn.name}{suffix}.{number + 1}",
                turn.session,
                (*turn.messages, _reply(writer.prose(30)), result),
                parent=turn,
                pause=writer.random.uniform(*load.pause),
                others=others,
            )
            yield turn

    trace: list[Turn] = []
    for number in range(load.sessions):
        session = f"session-{number}"
        opening = _user(writer.prose(writer.random.randint(*load.turn)))
        first = writer.turn(
            f"{session}.0",
            session,
            (system, opening),
            pause=writer.random.uniform(0, load.spread),
            others=others,
        )
        trace += (first, *continued(first, load.turns - 1))
        if number % load.forks == 0:
            fork = trace[-1 - load.turns // 2]
            trace += continued(fork, load.turns // 2, "-agent")
    return trace


def strangers(model: Path, count: int) -> list[Turn]:
    """Requests that share nothing with each other."""
    writer = Writer(model, seed=3)
    return [
        writer.turn(f"stranger-{n}", f"stranger-{n}", (_user(writer.prose(400)),))
        for n in range(count)
    ]


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _reply(content: str) -> Message:
    return {"role": "assistant", "content": content}


def _common(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
