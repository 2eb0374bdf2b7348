# SPDX-License-Identifier: Apache-2.0
"""What is remembered of continuations, and for how long."""

from typing import Any

from starlette.datastructures import Headers

from gateway.labels import Labeled, label
from gateway.lineage import Lineage

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
    lineage.learn(asked, 40)
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


def test_a_chosen_continuation_may_be_of_no_turn_at_all() -> None:
    lineage = Lineage()
    empty = {"model": "m", "messages": [], "continuation_id": "nothing"}
    asked = label("/v1/chat/completions", Headers(), empty, trusted=True)
    lineage.register(asked)
    assert lineage.ancestry.knows("nothing")


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
