# SPDX-License-Identifier: Apache-2.0
"""Thread a new name wherever upstream threads an old one.

A value that upstream passes from a request to the engine goes through dozens of
signatures and calls. `twin("session_id", "continuation_id")` gives each of them
the new name beside the old: parameters, arguments, assignments. `threads` reads
the same places with another parser, so that what the twin missed is noticed.
"""

import ast
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from ast_grep_py import SgNode

from .edits import Edit, MisplacedEdit, Tree
from .lists import add_beside, add_last, keyword_name, parameter_name
from .source import Insertion, Source, in_unix_lines, statement_of

_LISTS = {"argument_list", "parameters", "lambda_parameters"}


@dataclass(frozen=True, kw_only=True)
class Twin(Edit):
    """The threading of one name beside another through a whole tree.

    Attributes:
        old: The name that upstream threads.
        new: The name that goes with it.
        within: Globs of the paths to look in.
        outside: Globs of paths where `old` means something else.
        places: How many places there must be in all.
    """

    old: str
    new: str
    within: tuple[str, ...]
    outside: tuple[str, ...]
    places: int
    since: str = ""

    def rewrite(self, tree: Tree) -> None:
        found = 0
        changed: dict[str, str] = {}
        for path, text in self.files(tree):
            changed[path], places = self._thread(text)
            found += places
        if found != self.places:
            where = ", ".join(self.within)
            anchor = f"a place that threads {self.old}"
            raise MisplacedEdit(where, anchor, self.places, found)
        for path, text in changed.items():
            try:
                old, new = threads(text, self.old, self.new)
            except SyntaxError as error:
                anchor = f"valid Python at line {error.lineno}"
                raise MisplacedEdit(path, anchor, 1, 0) from None
            if missed := old - new:
                anchor = f"{self.new} beside {self.old} ({', '.join(missed)})"
                raise MisplacedEdit(path, anchor, missed.total(), 0)
            tree.write(path, text)

    def files(self, tree: Tree) -> Iterator[tuple[str, str]]:
        """The paths and texts of the files that may thread the old name."""
        for path in (path for glob in self.within for path in tree.paths(glob)):
            text = tree.read(path) or ""
            if self.old in text and not any(fnmatch(path, g) for g in self.outside):
                yield path, text

    def apply(self, text: str) -> str:
        """One file's text with the new name threaded."""
        return self._thread(text)[0]

    def sites(self, text: str) -> Iterator[SgNode]:
        """The nodes that thread the old name: parameters, arguments, assignments."""
        return self.sites_in(Source(text))

    def sites_in(self, source: Source) -> Iterator[SgNode]:
        """The same, of a text that is parsed already."""
        root = source.root
        for kind in ("typed_default_parameter", "default_parameter", "typed_parameter"):
            for node in root.find_all(kind=kind):
                if parameter_name(node) == self.old:
                    yield node
        for node in root.find_all(kind="keyword_argument"):
            if keyword_name(node) == self.old:
                yield node
        for node in root.find_all(kind="identifier"):
            parent = node.parent()
            if node.text() == self.old and parent and parent.kind() in _LISTS:
                yield node
        for node in root.find_all(kind="assignment"):
            target = node.field("left")
            names = (self.old, f"self.{self.old}")
            if target and target.text() in names and node.field("type") is None:
                yield node

    def _thread(self, text: str) -> tuple[str, int]:
        """One file's text with the new name threaded, and how many places it has."""
        places = 0

        def rewrite(text: str) -> str:
            nonlocal places
            source = Source(text)
            changes = [self._change(source, node) for node in self.sites_in(source)]
            places = len(changes)
            return source.splice(c for c in changes if c is not None)

        threaded = in_unix_lines(text, rewrite)
        return threaded, places

    def _change(self, source: Source, node: SgNode) -> Insertion | None:
        parent = node.parent()
        assert parent is not None
        twin = self.rename(node.text())
        if node.kind() == "assignment":
            statement = statement_of(node)
            # Later lines of the twin have their indentation already.
            block = source.line_indent(statement) + twin
            at = source.line_end(statement)
            done = source.has_lines(block, at + 1)
            return None if done else Insertion(at, at, "\n" + block)
        beside = parent.children()
        if any(self.new in (keyword_name(c), parameter_name(c)) for c in beside):
            return None
        if node.kind() == "keyword_argument":
            return add_beside(source, node, twin)
        if parent.kind() == "argument_list":
            twin = f"{twin}={twin}"
        # Last in a signature and by keyword in a call: nothing positional shifts.
        return add_last(source, parent, twin)

    def rename(self, text: str) -> str:
        """`text` with the old name, also as a part of names, become the new."""
        return text.replace(self.old, self.new)


def twin(
    old: str,
    new: str,
    *,
    within: tuple[str, ...],
    outside: tuple[str, ...] = (),
    places: int,
    since: str = "",
) -> Twin:
    """Thread `new` wherever the tree threads `old`."""
    return Twin(
        old=old, new=new, within=within, outside=outside, places=places, since=since
    )


def threads(text: str, *names: str) -> list[Counter[str]]:
    """The places of a file that pass or take a name, found with Python's own parser.

    Args:
        text: The file's text.
        names: The names to look for.

    Returns:
        For each name, how often each function or call does, by `kind:owner`:
        `takes:` for a parameter of a function, `passes:` for an argument of a call
        in it.

    Raises:
        SyntaxError: The text is not Python.
    """
    found: dict[str, Counter[str]] = {name: Counter() for name in names}
    # Of bytes: Python's parser counts the same line endings, and no others.
    lines = enumerate(text.encode().splitlines(), 1)
    spoken = [n for n, line in lines if any(name.encode() in line for name in names)]

    def visit(node: ast.AST, owner: str) -> None:
        if isinstance(node, ast.stmt) and not _holds_any(node, spoken):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            owner = f"{owner}.{node.name}" if owner else node.name
        if isinstance(node, ast.arguments):
            taken = [*node.posonlyargs, *node.args, *node.kwonlyargs]
            for name in names:
                found[name][f"takes:{owner}"] += sum(arg.arg == name for arg in taken)
        if isinstance(node, ast.Call):
            passed = {keyword.arg for keyword in node.keywords}
            passed |= {arg.id for arg in node.args if isinstance(arg, ast.Name)}
            for name in names:
                found[name][f"passes:{owner}"] += name in passed
        for child in ast.iter_child_nodes(node):
            visit(child, owner)

    visit(ast.parse(text), "")
    return [+found[name] for name in names]


def _holds_any(statement: ast.stmt, lines: Sequence[int]) -> bool:
    """Whether one of the line numbers, in order, is a line of the statement."""
    decorators = getattr(statement, "decorator_list", [])
    first = min(part.lineno for part in (statement, *decorators))
    at = bisect_left(lines, first)
    return at < len(lines) and lines[at] <= (statement.end_lineno or first)
