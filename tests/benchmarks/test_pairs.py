# SPDX-License-Identifier: Apache-2.0
"""How two things are compared whose speed changes while they are measured."""

from itertools import count

from benchmarks.pairs import Pair, alternate, ratio


def test_the_sides_take_turns_and_each_goes_first_as_often():
    order = []

    def side(name):
        order.append(name)
        return {}

    alternate([Pair("", lambda: side("of"), lambda: side("to"))], rounds=4)

    assert order == ["of", "to", "to", "of"] * 2


def test_every_comparison_is_measured_once_in_each_round():
    taken = alternate([Pair("a", dict, dict), Pair("b", dict, dict)], rounds=3)
    assert {name: len(pairs) for name, pairs in taken.items()} == {"a": 3, "b": 3}


def test_a_machine_that_slows_down_changes_no_ratio():
    slowness = count(1)

    def both():
        slow = next(slowness)
        return [Pair("", lambda: {"s": 3 * slow}, lambda: {"s": 2 * slow})]

    pairs = [alternate(both(), rounds=1)[""][0] for _ in range(9)]

    assert ratio(pairs, "s").median == ratio(pairs, "s").high == 1.5


def test_a_ratio_says_where_the_middle_half_lies():
    pairs = [({"s": value}, {"s": 1}) for value in (5, 1, 4, 2, 3)]
    found = ratio(pairs, "s")
    assert (found.low, found.median, found.high, found.pairs) == (2, 3, 4, 5)
