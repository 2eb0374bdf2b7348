# SPDX-License-Identifier: Apache-2.0
"""What is remembered of continuations, and for how long."""

from typing import Any

from starlette.datastructures import Headers

from gateway.labels import Labeled, label
from gateway.lineage import Lineage
from gateway.usage import Usage

SYSTEM = {"role": "system", "content": "Be brief."}


def request(*turns: str, **labels: str) -> Labeled:
    """A request of a trusted client."""
    messages = [SYSTEM, *({"role": "user", "content": turn} for turn in turns)]
    body: dict[str, Any] = {"model": "m", "messages": messages, **labels}
    return label("/v1/chat/completions", Headers(), body, trusted=True)


def test_a_continuation_is_known_with_all_before_it() -> None:
    lineage, asked = Lineage(), request("one", "two")
    lineage.register(asked)
    assert all(lineage.ancestry.knows(name) for name in asked.chain.ids)


def test_an_answer_tells_how_long_a_continuation_is() -> None:
    lineage, asked = Lineage(), request("one")
    lineage.register(asked)
    lineage.learn(asked, Usage(40, 0))
    assert lineage.ancestry.extent(asked.continuation_id) == 40


def test_a_chosen_continuation_continues_the_chosen_one_before() -> None:
    lineage = Lineage()
    lineage.register(request("one", continuation_id="first"))
    lineage.register(request("one", "two", continuation_id="second"))
    assert list(lineage.ancestry.chain("second"))[:2] == ["second", "first"]


def test_a_chosen_continuation_cannot_come_to_continue_itself() -> None:
    lineage = Lineage()
    for turns in (("one",), ("one", "two")):
        lineage.register(request(*turns, continuation_id="same"))
    assert next(lineage.ancestry.chain("same")) == "same"


def test_it_remembers_the_most_recent_and_no_more() -> None:
    lineage = Lineage(most=10)
    for number in range(100):
        lineage.register(request(str(number)))
        lineage.register(request(str(number), continuation_id=f"chosen-{number}"))
    assert len(lineage.ancestry) <= 10
    assert lineage.ancestry.knows("chosen-99")


def test_it_forgets_no_position_that_a_remembered_one_continues() -> None:
    lineage = Lineage(most=5)
    long = request("one", "two")
    lineage.register(long)
    for number in range(10):
        lineage.register(request(str(number)))
        lineage.register(long)
    assert lineage.ancestry.knows(long.continuation_id)


class TestCommon:
    """How many tokens other sessions begin with, too."""

    def answered(self, lineage: Lineage, cached: int, *turns: str) -> None:
        asked = request(*turns)
        lineage.register(asked)
        lineage.learn(asked, Usage(200, cached))

    def test_is_what_a_cache_has_of_a_session_s_first_request(self) -> None:
        lineage = Lineage()
        self.answered(lineage, 0, "one")
        self.answered(lineage, 96, "another")
        assert lineage.common(request("a third")) == 96
        assert lineage.common(request("one", "two")) == 96

    def test_stays_known_when_a_cache_has_lost_some_of_it(self) -> None:
        lineage = Lineage()
        for number, cached in enumerate((0, 96, 32)):
            self.answered(lineage, cached, str(number))
        assert lineage.common(request("another")) == 96

    def test_is_not_what_a_session_has_of_itself(self) -> None:
        lineage = Lineage()
        self.answered(lineage, 0, "one")
        self.answered(lineage, 0, "another")
        self.answered(lineage, 160, "one", "two")
        self.answered(lineage, 160, "one")
        assert lineage.common(request("one", "two", "three")) == 0

    def test_of_one_session_only_is_nothing(self) -> None:
        lineage = Lineage()
        self.answered(lineage, 96, "one")
        assert lineage.common(request("one")) == 0
