# SPDX-License-Identifier: Apache-2.0
"""A source text seen through its syntax: scopes, anchors and neat insertions.

Everything here is read-only apart from `splice`; the verbs in `edits` decide
what goes where.
"""

import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ast_grep_py import SgNode, SgRoot

_DEFINITIONS = {
    *("class_definition", "function_definition"),
    *("mod_item", "function_item"),
}
_SUITES = {"block", "module"}
_FILES = {"module", "source_file"}


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
            The definition nodes, without decorators. More than one when a name
            is defined more than once (overloads, a property and its setter);
            none when the text as a whole makes no sense to the parser.
        """
        nodes = [self.root] if self.root.kind() in _FILES else []
        for name in filter(None, dotted.split(".")):
            nodes = [
                found
                for node in nodes
                for found in _definitions(node)
                if _field(found, "name").text() == name
            ]
        return nodes

    def line_start(self, node: SgNode) -> int:
        """The offset of the start of the line on which `node` begins."""
        return self.text.rfind("\n", 0, start(node)) + 1

    def line_end(self, node: SgNode) -> int:
        """The offset of the end of the line on which `node` ends.

        A trailing comment belongs to its statement, so an insertion after a
        statement goes here and not to the statement's own end.
        """
        newline = self.text.find("\n", end(node))
        return len(self.text) if newline < 0 else newline

    def line_indent(self, node: SgNode) -> str:
        """The white space that starts the line on which `node` begins."""
        line = self.text[self.line_start(node) : start(node)]
        return line[: len(line) - len(line.lstrip())]

    def starts_line(self, node: SgNode) -> bool:
        """Whether nothing but white space stands before `node` on its line."""
        return not self.text[self.line_start(node) : start(node)].strip()

    def rest_of_line(self, node: SgNode) -> str:
        """What follows `node` on the line on which it ends."""
        return self.text[end(node) : self.line_end(node)]

    def has_own_lines(self, node: SgNode) -> bool:
        """Whether `node` shares its lines with nothing but a comment."""
        rest = self.rest_of_line(node).strip()
        return self.starts_line(node) and (not rest or rest.startswith("#"))

    def comments_start(self, statement: SgNode) -> int:
        """`line_start`, or that of the comments which stand right above it.

        They belong to their statement, so an insertion before it goes here.
        """
        first = statement
        for comment in _comments_above(statement):
            level = _column(comment) == _column(statement)
            if not level or not self.starts_line(comment) or _gap(comment, first) > 1:
                break
            first = comment
        return self.line_start(first)

    def has_lines(self, block: str, at: int) -> bool:
        """Whether the lines of `block` stand at `at`, as whole lines."""
        stop = at + len(block)
        return (
            self.text.startswith(block, at)
            and self.text[at - 1 : at] in ("", "\n")
            and self.text[stop : stop + 1] in ("", "\n")
        )

    def ends_lines(self, block: str, at: int) -> bool:
        """Whether the lines of `block` are the last ones before a line's start."""
        begin = at - len(block) - 1
        return begin >= 0 and self.has_lines(block, begin)

    def splice(self, insertions: Iterable[Insertion]) -> str:
        """The text with all `insertions` made; the same one twice is made once.

        Raises:
            ValueError: Two of them replace overlapping parts.
        """
        pieces: list[str] = []
        done = 0
        for each in dict.fromkeys(sorted(insertions, key=lambda i: (i.start, i.end))):
            if each.start < done:
                raise ValueError(f"{each.text!r} would go into what is replaced")
            pieces += [self.text[done : each.start], each.text]
            done = each.end
        return "".join([*pieces, self.text[done:]])


def language_of(path: str) -> str:
    """The language that a file is written in, as ast-grep calls it."""
    return "rust" if path.endswith(".rs") else "python"


def in_unix_lines(text: str, rewrite: Callable[[str], str]) -> str:
    """`rewrite(text)` for a `rewrite` that knows lines to end in `\\n` only.

    A text whose lines end in `\\r\\n`, every one, keeps it so.
    """
    if "\r\n" not in text or text.count("\r\n") != text.count("\n"):
        return rewrite(text)
    return rewrite(text.replace("\r\n", "\n")).replace("\n", "\r\n")


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
    return definition if definition.kind() in _FILES else _field(definition, "body")


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


def _comments_above(statement: SgNode) -> Iterator[SgNode]:
    """The comments before a statement, the nearest first."""
    # Those before the first statement of a suite stand before the suite.
    suite = statement.parent()
    nodes = [*statement.prev_all(), *(suite.prev_all() if suite else [])]
    for node in nodes:
        if node.kind() != "comment":
            return
        yield node


def _column(node: SgNode) -> int:
    return node.range().start.column


def _gap(above: SgNode, below: SgNode) -> int:
    """How many lines `below` starts under the end of `above`."""
    return below.range().start.line - above.range().end.line


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
