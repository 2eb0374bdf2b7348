# SPDX-License-Identifier: Apache-2.0
"""A source text seen through its syntax: scopes, anchors and neat insertions.

Everything here is read-only apart from `splice`; the verbs in `edits` decide
what goes where.
"""

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ast_grep_py import SgNode, SgRoot

_DEFINITIONS = {"class_definition", "function_definition"}
_SUITES = {"block", "module"}


@dataclass(frozen=True, order=True)
class Insertion:
    """Text to put into a source at `start`, in place of what lies before `end`.

    Both are character offsets into the source's text; equal offsets insert.
    """

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Source:
    """One file's text, parsed."""

    text: str
    language: str = "python"

    @cached_property
    def root(self) -> SgNode:
        return SgRoot(self.text, self.language).root()

    def scopes(self, dotted: str) -> list[SgNode]:
        """The class or function definitions called `dotted`.

        Args:
            dotted: A path of names, e.g. `"BlockPool.touch"`; the empty
                string names the module itself.

        Returns:
            The definition nodes, without decorators. More than one when the
            name is defined more than once (overloads, branches).
        """
        nodes = [self.root]
        for name in filter(None, dotted.split(".")):
            nodes = [
                found
                for node in nodes
                for found in _definitions(node)
                if _field(found, "name").text() == name
            ]
        return nodes

    def line_indent(self, node: SgNode) -> str:
        """The white space that starts the line on which `node` begins."""
        begin = self.text.rfind("\n", 0, start(node)) + 1
        line = self.text[begin : start(node)]
        return line[: len(line) - len(line.lstrip())]

    def starts_line(self, node: SgNode) -> bool:
        """Whether nothing but white space stands before `node` on its line."""
        begin = self.text.rfind("\n", 0, start(node)) + 1
        return not self.text[begin : start(node)].strip()

    def line_end(self, node: SgNode) -> int:
        """The offset of the end of the line on which `node` ends.

        A trailing comment belongs to its statement, so an insertion after a
        statement goes here and not to the statement's own end.
        """
        newline = self.text.find("\n", end(node))
        return len(self.text) if newline < 0 else newline

    def splice(self, insertions: Iterable[Insertion]) -> str:
        """The text with all `insertions` made; those at one place keep order."""
        pieces: list[str] = []
        done = 0
        for each in sorted(insertions, key=lambda i: (i.start, i.end)):
            pieces += [self.text[done : each.start], each.text]
            done = each.end
        return "".join([*pieces, self.text[done:]])


def start(node: SgNode) -> int:
    """The character offset at which `node` starts."""
    return node.range().start.index


def end(node: SgNode) -> int:
    """The character offset at which `node` ends."""
    return node.range().end.index


def statement_of(node: SgNode) -> SgNode:
    """The statement that holds `node`: the ancestor that stands in a suite."""
    for candidate in [node, *node.ancestors()]:
        parent = candidate.parent()
        if parent is not None and parent.kind() in _SUITES:
            return candidate
    return node


def body_of(definition: SgNode) -> SgNode:
    """The suite of a class or function; a module is its own."""
    return definition if definition.kind() == "module" else _field(definition, "body")


def statements(suite: SgNode) -> list[SgNode]:
    """The statements of a suite, comments left out."""
    return [n for n in suite.children() if n.is_named() and n.kind() != "comment"]


def docstring_of(suite: SgNode) -> SgNode | None:
    """The suite's docstring statement, if it has one."""
    first = next(iter(statements(suite)), None)
    return first if first is not None and is_string(first) else None


def is_string(statement: SgNode) -> bool:
    """Whether the statement is a string standing alone."""
    children = statement.children()
    return statement.kind() == "expression_statement" and (
        len(children) == 1 and children[0].kind() in {"string", "concatenated_string"}
    )


def is_annotated(statement: SgNode) -> bool:
    """Whether the statement declares a name with a type: `x: int`, `x: int = 1`."""
    first = statement.child(0) if statement.kind() == "expression_statement" else None
    return (
        first is not None
        and first.kind() == "assignment"
        and first.field("type") is not None
    )


def indent(text: str, prefix: str) -> str:
    """`text` as a block of lines, each indented by `prefix` but the empty ones."""
    return textwrap.indent(textwrap.dedent(text).strip("\n"), prefix)


def _definitions(node: SgNode) -> Iterator[SgNode]:
    for child in statements(body_of(node)):
        if child.kind() == "decorated_definition":
            child = _field(child, "definition")
        if child.kind() in _DEFINITIONS:
            yield child


def _field(node: SgNode, name: str) -> SgNode:
    found = node.field(name)
    assert found is not None, f"{node.kind()} has no {name}"
    return found
