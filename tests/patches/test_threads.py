# SPDX-License-Identifier: Apache-2.0
"""No way into the engine drops a label: where session_id goes, continuation_id goes."""

from collections import Counter
from fnmatch import fnmatch
from textwrap import dedent

import pytest

from patches.replay import patched_texts, stock_texts
from patches.uses import Use, uses
from trees import RELEASE_NAMES

EVENTS = "vllm/distributed/kv_events.py"
OF_ANOTHER_KIND = (
    "vllm/distributed/ec_transfer/*",  # of a transfer between encoders
    "vllm/entrypoints/mcp/*",  # of a tool server
    "vllm/profiler/*",  # of a profiler
    "*/realtime/*",  # of speech
)
ON_REMOVALS_ONLY = {
    Use("BlockRemoved", "declares", "NAME str | None"): 1,
    Use("BlockRemoved.__hash__", "reads", "self.NAME"): 1,
}

every_release = pytest.mark.parametrize("release", RELEASE_NAMES)


def threads(texts, name) -> dict[str, Counter[Use]]:
    """The uses of a label's name, by file."""
    found = {
        path: uses(text, name)
        for path, text in texts.items()
        if name in text and not any(fnmatch(path, glob) for glob in OF_ANOTHER_KIND)
    }
    return {path: used for path, used in found.items() if used}


@every_release
def test_both_labels_go_the_same_ways(release):
    texts = patched_texts(release)
    expected = threads(texts, "session_id")
    expected[EVENTS] += Counter(ON_REMOVALS_ONLY)
    assert threads(texts, "continuation_id") == expected


@every_release
def test_the_ways_of_session_id_are_upstreams(release):
    """Nothing of upstream's is turned off, apart from the resolver's body."""
    resolver = "GenerateBaseServing._get_NAME"
    stock = threads(stock_texts(release), "session_id")
    patched = threads(patched_texts(release), "session_id")
    assert stock.keys() == patched.keys()
    for path, used in stock.items():
        lost = used - patched[path]
        assert all(use.owner == resolver for use in lost), path


@every_release
def test_the_ways_are_many(release):
    ways = threads(patched_texts(release), "continuation_id")
    kinds = Counter(use.kind for used in ways.values() for use in used.elements())
    assert len(ways) > 15
    assert kinds["takes"] > 8
    assert kinds["passes"] > 15
    assert kinds["declares"] >= 6


@pytest.mark.parametrize(
    ("text", "use"),
    [
        ("def f(label: str): ...", Use("f", "takes", "str")),
        ("def f(*, label): ...", Use("f", "takes", "")),
        ("f(label=g.label_of(x))", Use("", "passes", "f g.NAME_of(x)")),
        ("f(label)", Use("", "passes", "f NAME")),
        ("class A:\n    label: int = 1", Use("A", "declares", "NAME int")),
        ("def f():\n    label: int = 1", Use("f", "declares", "NAME int")),
        ("a.label = 1", Use("", "sets", "a.NAME 1")),
        ("label = get_label()", Use("", "sets", "NAME get_NAME()")),
        ("label, b = c", Use("", "sets", "NAME")),
        ("if label := b: ...", Use("", "sets", "NAME b")),
        ("x = a.label", Use("", "reads", "a.NAME")),
        ("x = {'label': 1}", Use("", "keys", "")),
        ("x['label'] = 1", Use("", "keys", "")),
        ("def get_label(): ...", Use("", "defines", "get_NAME")),
        ("class A:\n    async def f(self, label): ...", Use("A.f", "takes", "")),
    ],
)
def test_every_way_to_use_a_name_is_seen(text, use):
    assert uses(dedent(text), "label") == Counter([use])


@pytest.mark.parametrize("text", ["labels = 1", "f(labels=a.labels)", "# label"])
def test_another_name_is_not_seen(text):
    assert not uses(text, "label")
