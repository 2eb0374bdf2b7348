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

from .source import (
    Insertion,
    Source,
    body_of,
    docstring_of,
    end,
    indent,
    is_annotated,
    is_string,
    start,
    statement_of,
    statements,
)

_IMPORTS = {"import_statement", "import_from_statement"}
_PARAMETERS = {"typed_parameter", "typed_default_parameter", "default_parameter"}


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
        source = Source(text)
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
        sites = self.sites(text)
        if len(sites) != self.places:
            raise MisplacedEdit(self.file, self.where(), self.places, len(sites))
        return Source(text).splice(s.change for s in sites if s.change is not None)

    def rewrite(self, tree: Tree) -> None:
        text = tree.read(self.file)
        if text is None:
            raise MisplacedEdit(self.file, "the file", 1, 0)
        tree.write(self.file, self.apply(text))

    def _in_scope(self) -> str:
        return f" in {self.scope}" if self.scope else ""


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
        ]

    @abstractmethod
    def change(self, source: Source, node: SgNode) -> Insertion | None:
        """What to do at one anchor; None where it is done already."""


class _InsertAfter(_AtAnchor):
    def change(self, source: Source, node: SgNode) -> Insertion | None:
        statement = statement_of(node)
        text = indent(self.text, source.line_indent(statement))
        at = source.line_end(statement)
        if source.text.startswith("\n" + text, at):
            return None
        return Insertion(at, at, "\n" + text)


class _InsertBefore(_AtAnchor):
    def change(self, source: Source, node: SgNode) -> Insertion | None:
        statement = statement_of(node)
        prefix = source.line_indent(statement)
        text = indent(self.text, prefix) + "\n"
        at = start(statement) - len(prefix)
        if source.text.endswith(text, 0, at):
            return None
        return Insertion(at, at, text)


class _Replace(_AtAnchor):
    def sites_in(self, source: Source, scope: SgNode) -> list[Site]:
        # White space aside: a replacement takes the indentation of its place.
        done_already = re.compile(r"\s+".join(map(re.escape, self.text.split())))
        done = [
            Site(found.span(), None)
            for found in done_already.finditer(source.text, start(scope), end(scope))
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


class _ReplaceCondition(_AtAnchor):
    def where(self) -> str:
        return f"`if {self.anchor}:`{self._in_scope()}"

    def sites_in(self, source: Source, scope: SgNode) -> list[Site]:
        conditions = [
            condition
            for statement in scope.find_all(kind="if_statement")
            if (condition := statement.field("condition")) is not None
            and condition.text() in (self.anchor, self.text)
        ]
        return [Site((start(c), end(c)), self.change(source, c)) for c in conditions]

    def change(self, source: Source, node: SgNode) -> Insertion | None:
        if node.text() == self.text:
            return None
        return Insertion(start(node), end(node), self.text)


class _AddArgument(_AtAnchor):
    def change(self, source: Source, node: SgNode) -> Insertion | None:
        arguments = node.field("arguments")
        assert arguments is not None, f"{self.anchor} is not a call"
        name = self.text.partition("=")[0].strip()
        if any(keyword_name(child) == name for child in arguments.children()):
            return None
        return append_to_list(source, arguments, self.text)


class _AddElement(_AtAnchor):
    def change(self, source: Source, node: SgNode) -> Insertion | None:
        into = node.get_match("INTO")
        assert into is not None, f"{self.anchor} has no $INTO"
        if any(child.text() == self.text for child in into.children()):
            return None
        return append_to_list(source, into, self.text)


@dataclass(frozen=True, kw_only=True)
class _InDefinition(FileEdit):
    """An edit of a definition itself, named by its scope alone."""

    text: str
    change: Callable[[Source, SgNode, str], Insertion | None]

    def where(self) -> str:
        return f"the definition of {self.scope}" if self.scope else "the module's top"

    def sites_in(self, source: Source, scope: SgNode) -> list[Site]:
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
    return _InDefinition(file=file, text=text, change=_import, since=since)


def add_field(file: str, cls: str, text: str, *, since: str = "") -> FileEdit:
    """Declare a field after the last one of a class.

    `text` is the declaration, with the comment or string that explains it.
    """
    return _InDefinition(file=file, scope=cls, text=text, change=_field_, since=since)


def add_parameter(file: str, function: str, text: str, *, since: str = "") -> FileEdit:
    """Give a function one more parameter: the last one, before any `**kwargs`.

    Last, so that no caller's positional arguments shift.
    """
    return _InDefinition(
        file=file, scope=function, text=text, change=_parameter, since=since
    )


def add_method(file: str, cls: str, text: str, *, since: str = "") -> FileEdit:
    """Define a method at the end of a class, or a function at a module's end."""
    return _InDefinition(file=file, scope=cls, text=text, change=_method, since=since)


def prepend_to(file: str, function: str, text: str, *, since: str = "") -> FileEdit:
    """Put statements first in a function, after its docstring."""
    return _InDefinition(
        file=file, scope=function, text=text, change=_first, since=since
    )


def append_to(file: str, function: str, text: str, *, since: str = "") -> FileEdit:
    """Put statements last in a function."""
    return _InDefinition(
        file=file, scope=function, text=text, change=_last, since=since
    )


def replace_body(file: str, function: str, text: str, *, since: str = "") -> FileEdit:
    """Hand a function's body, but its docstring, to `text`."""
    return _InDefinition(
        file=file, scope=function, text=text, change=_body, since=since
    )


def append_to_list(source: Source, bracketed: SgNode, text: str) -> Insertion | None:
    """One more item for `(...)`, `[...]` or `{...}`, laid out as its neighbours.

    The item goes last, but before `**kwargs` of a parameter list.
    """
    children = bracketed.children()
    items = [c for c in children if c.is_named() and c.kind() != "comment"]
    ahead = [c for c in items if c.kind() == "dictionary_splat_pattern"]
    if ahead:
        at = start(ahead[0])
        return Insertion(at, at, f"{text},{gap_before(source, ahead[0])}")
    if not items:
        return Insertion(end(children[0]), end(children[0]), text)
    at = end(items[-1])
    return Insertion(at, at, f",{gap_before(source, items[-1])}{text}")


def gap_before(source: Source, item: SgNode) -> str:
    """What separates `item` from the one before it: a line of its own, or a space."""
    return "\n" + source.line_indent(item) if source.starts_line(item) else " "


def keyword_name(node: SgNode) -> str | None:
    """The name of a keyword argument; None for any other node."""
    name = node.field("name") if node.kind() == "keyword_argument" else None
    return None if name is None else name.text()


def parameter_name(node: SgNode) -> str | None:
    """The name that a parameter binds; None for punctuation and separators."""
    if node.kind() == "identifier":
        return node.text()
    if node.kind() in _PARAMETERS:
        first = node.child(0)
        return None if first is None else first.text()
    return None


def _import(source: Source, module: SgNode, text: str) -> Insertion | None:
    top = [s for s in statements(module) if s.kind() in _IMPORTS]
    if any(statement.text() == text for statement in top):
        return None
    name = _imported(Source(text).root.child(0))
    package = name.partition(".")[0]
    kin = [s for s in top if _imported(s).partition(".")[0] == package] or top
    ahead = [s for s in kin if _imported(s) <= name]
    if not kin:
        return _first(source, module, text)
    if not ahead:
        return Insertion(start(kin[0]), start(kin[0]), text + "\n")
    at = source.line_end(ahead[-1])
    return Insertion(at, at, "\n" + text)


def _imported(statement: SgNode | None) -> str:
    """The module that an import statement names, for the order of imports."""
    name = (
        statement.field("module_name") or statement.field("name") if statement else None
    )
    return "" if name is None else name.text()


def _field_(source: Source, cls: SgNode, text: str) -> Insertion | None:
    body = body_of(cls)
    if _declares(body, text):
        return None
    members = statements(body)
    fields = [i for i, member in enumerate(members) if is_annotated(member)]
    at = fields[-1] if fields else 0
    gap = "\n"
    # A string right after a field is its documentation.
    if fields and at + 1 < len(members) and is_string(members[at + 1]):
        at += 1
        gap = "\n\n"
    prefix = source.line_indent(members[at])
    place = source.line_end(members[at])
    return Insertion(place, place, gap + indent(text, prefix))


def _declares(body: SgNode, text: str) -> bool:
    wanted, present = (
        {s.text().partition(":")[0] for s in statements(suite) if is_annotated(s)}
        for suite in (Source(text).root, body)
    )
    return wanted <= present


def _parameter(source: Source, function: SgNode, text: str) -> Insertion | None:
    parameters = function.field("parameters")
    assert parameters is not None
    name = text.partition(":")[0].partition("=")[0].strip()
    if any(parameter_name(child) == name for child in parameters.children()):
        return None
    return append_to_list(source, parameters, text)


def _method(source: Source, owner: SgNode, text: str) -> Insertion | None:
    body = body_of(owner)
    wanted = [_named(s) for s in statements(Source(text).root)]
    if set(wanted) <= {_named(s) for s in statements(body)}:
        return None
    last = statements(body)[-1]
    top_level = owner.kind() == "module"
    prefix = "" if top_level else source.line_indent(last)
    gap = "\n\n\n" if top_level else "\n\n"
    at = source.line_end(last)
    return Insertion(at, at, gap + indent(text, prefix))


def _named(statement: SgNode) -> str:
    if statement.kind() == "decorated_definition":
        inner = statement.field("definition")
        assert inner is not None
        statement = inner
    name = statement.field("name")
    return statement.text() if name is None else name.text()


def _first(source: Source, function: SgNode, text: str) -> Insertion | None:
    body = body_of(function)
    docstring = docstring_of(body)
    members = statements(body)
    after_docstring = members if docstring is None else members[1:]
    first = members[0]
    prefix = source.line_indent(first)
    block = indent(text, prefix)
    if after_docstring and _starts_with(source, after_docstring, block):
        return None
    if docstring is None:
        at = start(first) - len(prefix)
        return Insertion(at, at, block + "\n")
    at = source.line_end(docstring)
    return Insertion(at, at, "\n" + block)


def _starts_with(source: Source, members: list[SgNode], block: str) -> bool:
    return source.text.startswith(block.lstrip(), start(members[0]))


def _last(source: Source, function: SgNode, text: str) -> Insertion | None:
    last = statements(body_of(function))[-1]
    block = indent(text, source.line_indent(last))
    at = source.line_end(last)
    if source.text.endswith("\n" + block, 0, at):
        return None
    return Insertion(at, at, "\n" + block)


def _body(source: Source, function: SgNode, text: str) -> Insertion | None:
    body = body_of(function)
    members = statements(body)[0 if docstring_of(body) is None else 1 :]
    first = members[0]
    block = indent(text, source.line_indent(first)).lstrip()
    if source.text[start(first) : end(members[-1])] == block:
        return None
    return Insertion(start(first), end(members[-1]), block)


def _times(count: int) -> str:
    return {0: "nowhere", 1: "once", 2: "twice"}.get(count, f"{count} times")
