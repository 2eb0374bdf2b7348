# SPDX-License-Identifier: Apache-2.0
"""The verbs of a semantic patch: each names a place by syntax and states a change.

A place is a file, a scope (a dotted path of class and function names) and, for
most verbs, an anchor: an ast-grep pattern, in which `$X` stands for one node and
`$$$X` for any number. Text that goes in takes its neighbour's indentation and
comma. What is already there is left alone, so an edit applied twice changes
nothing.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from ast_grep_py import SgNode

from . import definitions
from .lists import add_last, keyword_name
from .source import (
    Insertion,
    Source,
    end,
    in_unix_lines,
    indent,
    language_of,
    start,
    statement_of,
)

_LISTS = {"list", "set", "tuple"}


class MisplacedEdit(Exception):
    """An edit found another number of places than it states.

    Args:
        file: The file that was searched.
        anchor: The place in words.
        expected: The number of places the edit states.
        found: The number of places it found.
    """

    def __init__(self, file: str, anchor: str, expected: int, found: int) -> None:
        super().__init__(
            f"{anchor} was found {_times(found)} in {file}, expected {_times(expected)}"
        )
        self.file = file
        self.anchor = anchor
        self.expected = expected
        self.found = found


class Tree(Protocol):
    """The sources that a patch rewrites; paths are like `"vllm/v1/request.py"`."""

    def paths(self, glob: str) -> Iterable[str]:
        """The files that match a glob, in order."""

    def read(self, path: str) -> str | None:
        """A file's text as rewritten so far; None where there is no such file."""

    def write(self, path: str, text: str) -> None:
        """Give a file another text."""


@dataclass(frozen=True)
class Site:
    """One place of an edit: the span that identifies it, and what to do there.

    Attributes:
        anchor: Character offsets (start, end) of the syntax that names the place.
        change: The insertion to make; None where it has been made already.
    """

    anchor: tuple[int, int]
    change: Insertion | None


class Edit(ABC):
    """A change to a tree of sources.

    Attributes:
        since: The first release that needs the edit, e.g. `"0.31.0"`; "" is all.
    """

    since: str

    @abstractmethod
    def rewrite(self, tree: Tree) -> None:
        """Make the change.

        Raises:
            MisplacedEdit: The tree has not the places that the edit states.
        """


@dataclass(frozen=True, kw_only=True)
class FileEdit(Edit):
    """A change to every matching place of one file.

    Attributes:
        file: Path of the file in vLLM's tree, e.g. `"vllm/v1/request.py"`.
        scope: Dotted path of the class or function to look in; "" is the module.
        places: How many places there must be, no fewer and no more.
    """

    file: str
    scope: str = ""
    places: int = 1
    since: str = ""

    @abstractmethod
    def where(self) -> str:
        """The anchor in words, for messages: what is looked for, and in what."""

    @abstractmethod
    def sites_in(self, source: Source, scope: SgNode) -> list[Site]:
        """The edit's places within one definition."""

    def sites(self, text: str) -> list[Site]:
        """All places in a file's text, with the change each one needs."""
        source = self._parsed(text)
        return [
            site
            for scope in source.scopes(self.scope)
            for site in self.sites_in(source, scope)
        ]

    def apply(self, text: str) -> str:
        """The file's text with the change made.

        Raises:
            MisplacedEdit: There are more or fewer places than `places`.
        """
        return in_unix_lines(text, self._apply)

    def rewrite(self, tree: Tree) -> None:
        text = tree.read(self.file)
        if text is None:
            raise MisplacedEdit(self.file, "the file", 1, 0)
        tree.write(self.file, self.apply(text))

    def _apply(self, text: str) -> str:
        sites = self.sites(text)
        if len(sites) != self.places:
            raise MisplacedEdit(self.file, self.where(), self.places, len(sites))
        return self._parsed(text).splice(
            s.change for s in sites if s.change is not None
        )

    def _parsed(self, text: str) -> Source:
        return Source(text, language_of(self.file))


@dataclass(frozen=True, kw_only=True)
class _AtAnchor(FileEdit):
    """An edit that looks for an ast-grep pattern inside its scope."""

    anchor: str
    text: str

    def where(self) -> str:
        return f"`{self.anchor}`{self._in_scope()}"

    def sites_in(self, source: Source, scope: SgNode) -> list[Site]:
        return [
            Site((start(node), end(node)), self.change(source, node))
            for node in scope.find_all(pattern=self.anchor)
            if self.fits(source, node)
        ]

    def fits(self, source: Source, node: SgNode) -> bool:
        """Whether what matches the anchor is a place for this verb."""
        return True

    @abstractmethod
    def change(self, source: Source, node: SgNode) -> Insertion | None:
        """What to do at one anchor; None where it is done already."""

    def _in_scope(self) -> str:
        return f" in {self.scope}" if self.scope else ""


class _InsertAfter(_AtAnchor):
    def fits(self, source: Source, node: SgNode) -> bool:
        return source.has_own_lines(statement_of(node))

    def change(self, source: Source, node: SgNode) -> Insertion | None:
        statement = statement_of(node)
        block = indent(self.text, source.line_indent(statement))
        at = source.line_end(statement)
        done = source.has_lines(block, at + 1)
        return None if done else Insertion(at, at, "\n" + block)


class _InsertBefore(_AtAnchor):
    def fits(self, source: Source, node: SgNode) -> bool:
        return source.has_own_lines(statement_of(node))

    def change(self, source: Source, node: SgNode) -> Insertion | None:
        statement = statement_of(node)
        block = indent(self.text, source.line_indent(statement))
        at = source.comments_start(statement)
        # The block may be a comment: then it is one of those above the statement.
        ends = (at, source.line_start(statement))
        done = any(source.ends_lines(block, stop) for stop in ends)
        return None if done else Insertion(at, at, block + "\n")


class _Replace(_AtAnchor):
    def sites_in(self, source: Source, scope: SgNode) -> list[Site]:
        done = [
            Site(found.span(), None)
            for found in self._replacement().finditer(
                source.text, start(scope), end(scope)
            )
        ]
        inside = [site.anchor for site in done]
        todo = [
            site
            for site in super().sites_in(source, scope)
            if not any(s <= site.anchor[0] and site.anchor[1] <= e for s, e in inside)
        ]
        return done + todo

    def change(self, source: Source, node: SgNode) -> Insertion | None:
        prefix = source.line_indent(node)
        text = indent(self.text, prefix).removeprefix(prefix)
        return Insertion(start(node), end(node), text)

    def _replacement(self) -> re.Pattern[str]:
        """The text, wherever it stands: white space follows its place."""
        words = r"\s+".join(map(re.escape, self.text.split()))
        return re.compile(rf"(?<!\w){words}(?!\w)")


class _ReplaceCondition(_AtAnchor):
    def where(self) -> str:
        return f"`if {self.anchor}:`{self._in_scope()}"

    def sites_in(self, source: Source, scope: SgNode) -> list[Site]:
        # What another edit puts in may hold the anchor; it is not meant then.
        found = _conditions(scope, self.text) or _conditions(scope, self.anchor)
        return [Site((start(c), end(c)), self.change(source, c)) for c in found]

    def change(self, source: Source, node: SgNode) -> Insertion | None:
        done = node.text() == self.text
        return None if done else Insertion(start(node), end(node), self.text)


class _AddArgument(_AtAnchor):
    def fits(self, source: Source, node: SgNode) -> bool:
        arguments = node.field("arguments")
        return arguments is not None and arguments.kind() == "argument_list"

    def change(self, source: Source, node: SgNode) -> Insertion | None:
        arguments = node.field("arguments")
        assert arguments is not None
        name = self.text.partition("=")[0].strip()
        if any(keyword_name(child) == name for child in arguments.children()):
            return None
        return add_last(source, arguments, self.text)


class _AddElement(_AtAnchor):
    def fits(self, source: Source, node: SgNode) -> bool:
        into = node.get_match("INTO")
        return into is not None and into.kind() in _LISTS

    def change(self, source: Source, node: SgNode) -> Insertion | None:
        into = node.get_match("INTO")
        assert into is not None
        if any(child.text() == self.text for child in into.children()):
            return None
        return add_last(source, into, self.text)


@dataclass(frozen=True, kw_only=True)
class _InDefinition(FileEdit):
    """An edit of a definition itself, named by its scope alone.

    Attributes:
        text: What is brought in.
        change: What to do to the definition; a function of `definitions`.
        part: The part of the definition that it needs, for messages.
        fits: Whether the definition has that part.
    """

    text: str
    change: Callable[[Source, SgNode, str], Insertion | None]
    part: str = "the body"
    fits: Callable[[Source, SgNode], bool] = definitions.has_body

    def where(self) -> str:
        return f"{self.part} of {self.scope or 'the module'}"

    def sites_in(self, source: Source, scope: SgNode) -> list[Site]:
        if not self.fits(source, scope):
            return []
        name = scope.field("name")
        anchor = (0, 0) if name is None else (start(name), end(name))
        return [Site(anchor, self.change(source, scope, self.text))]


def insert_after(
    file: str, scope: str, anchor: str, text: str, *, places: int = 1, since: str = ""
) -> FileEdit:
    """Put statements after the one that holds `anchor`."""
    return _InsertAfter(
        file=file, scope=scope, anchor=anchor, text=text, places=places, since=since
    )


def insert_before(
    file: str, scope: str, anchor: str, text: str, *, places: int = 1, since: str = ""
) -> FileEdit:
    """Put statements before the one that holds `anchor`."""
    return _InsertBefore(
        file=file, scope=scope, anchor=anchor, text=text, places=places, since=since
    )


def replace(
    file: str, scope: str, anchor: str, text: str, *, places: int = 1, since: str = ""
) -> FileEdit:
    """Put an expression or statement in the place of `anchor`."""
    return _Replace(
        file=file, scope=scope, anchor=anchor, text=text, places=places, since=since
    )


def replace_condition(
    file: str, scope: str, anchor: str, text: str, *, places: int = 1, since: str = ""
) -> FileEdit:
    """Give the `if` statements whose condition is `anchor`, to the letter, another."""
    return _ReplaceCondition(
        file=file, scope=scope, anchor=anchor, text=text, places=places, since=since
    )


def add_argument(
    file: str, scope: str, anchor: str, text: str, *, places: int = 1, since: str = ""
) -> FileEdit:
    """Give the calls that match `anchor` one more keyword argument, at the end."""
    return _AddArgument(
        file=file, scope=scope, anchor=anchor, text=text, places=places, since=since
    )


def add_element(
    file: str, scope: str, anchor: str, text: str, *, places: int = 1, since: str = ""
) -> FileEdit:
    """Give the tuple, list or set that `$INTO` of `anchor` stands for one more."""
    return _AddElement(
        file=file, scope=scope, anchor=anchor, text=text, places=places, since=since
    )


def add_import(file: str, text: str, *, since: str = "") -> FileEdit:
    """Import at the top of a module, among the imports of the same package."""
    return _InDefinition(file=file, text=text, change=definitions.import_, since=since)


def add_field(file: str, cls: str, text: str, *, since: str = "") -> FileEdit:
    """Declare a field after the last one of a class.

    `text` is the declaration, with the comment or string that explains it.
    """
    return _InDefinition(
        file=file, scope=cls, text=text, change=definitions.field, since=since
    )


def add_parameter(file: str, function: str, text: str, *, since: str = "") -> FileEdit:
    """Give a function one more parameter: the last one, before any `**kwargs`.

    Last, so that no caller's positional arguments shift.
    """
    return _InDefinition(
        file=file,
        scope=function,
        text=text,
        change=definitions.parameter,
        part="the signature",
        fits=definitions.has_signature,
        since=since,
    )


def add_method(file: str, cls: str, text: str, *, since: str = "") -> FileEdit:
    """Define a method at the end of a class, or a function at a module's end."""
    return _InDefinition(
        file=file, scope=cls, text=text, change=definitions.method, since=since
    )


def prepend_to(file: str, function: str, text: str, *, since: str = "") -> FileEdit:
    """Put statements first in a function, after its docstring."""
    return _InDefinition(
        file=file, scope=function, text=text, change=definitions.first, since=since
    )


def append_to(file: str, function: str, text: str, *, since: str = "") -> FileEdit:
    """Put statements last in a function, which must not end by leaving it."""
    return _InDefinition(
        file=file,
        scope=function,
        text=text,
        change=definitions.last,
        part="a reachable end",
        fits=definitions.has_end,
        since=since,
    )


def replace_body(
    file: str, function: str, text: str, *, of: str = "", since: str = ""
) -> FileEdit:
    """Hand a function's body, but its docstring, to `text`.

    `of` is what `body_digest` makes of the body that goes: one that upstream has
    changed is not replaced unseen.
    """
    if not of:
        return _InDefinition(
            file=file, scope=function, text=text, change=definitions.body, since=since
        )
    return _InDefinition(
        file=file,
        scope=function,
        text=text,
        change=definitions.body,
        part=f"the body {of}",
        fits=lambda source, node: definitions.has_known_body(source, node, text, of),
        since=since,
    )


def _conditions(scope: SgNode, text: str) -> list[SgNode]:
    """The conditions of `if` statements that are `text`, to the letter."""
    conditions = [s.field("condition") for s in scope.find_all(kind="if_statement")]
    return [c for c in conditions if c is not None and c.text() == text]


def _times(count: int) -> str:
    return {0: "nowhere", 1: "once", 2: "twice"}.get(count, f"{count} times")
