# SPDX-License-Identifier: Apache-2.0
"""Before and after: how a verb of the vocabulary is put to the test."""

from textwrap import dedent
from typing import Protocol

import pytest
from _pytest.mark import ParameterSet

FILE = "vllm/invented.py"


class Rewrite(Protocol):
    """What edits of all kinds have in common."""

    def apply(self, text: str) -> str: ...


def case(rule: str, edit: Rewrite, before: str, after: str) -> ParameterSet:
    """A rule, with an example: `edit` makes `after` of `before`."""
    return pytest.param(edit, source(before), source(after), id=rule)


def source(text: str) -> str:
    """A source that is written indented, below the line of its opening quotes."""
    return dedent(text).removeprefix("\n")


def check(edit: Rewrite, before: str, after: str) -> None:
    """`edit` makes `after` of `before`, leaves `after` alone, and it is Python."""
    assert edit.apply(before) == after
    assert edit.apply(after) == after
    compile(after, FILE, "exec", dont_inherit=True)


class MemoryTree:
    """A tree that is a dict."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts

    def paths(self, glob: str) -> list[str]:
        return sorted(self.texts)

    def read(self, path: str) -> str | None:
        return self.texts.get(path)

    def write(self, path: str, text: str) -> None:
        self.texts[path] = text
