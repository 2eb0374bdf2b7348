# SPDX-License-Identifier: Apache-2.0
"""The vocabulary for the Rust frontend: a name's twin, and a protobuf field.

`twin` threads a name through Python; `twin_rust` does so through Rust, where a name
goes by other syntax: fields, literals and patterns of structs, `let`, functions
that are named after it, and what imports those or asserts on it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ast_grep_py import SgNode

from .edits import Edit, FileEdit, MisplacedEdit, Site, Tree
from .lists import add_beside
from .source import Insertion, Source, end, in_unix_lines, start, statement_of

_ITEMS = {
    "field_initializer",
    "shorthand_field_initializer",
    "field_pattern",
}
_ABOVE = {"line_comment", "attribute_item"}


@dataclass(frozen=True, kw_only=True)
class RustTwin(Edit):
    """The threading of one name beside another through a tree of Rust.

    Attributes:
        old: The name that upstream threads, e.g. `"session_id"`.
        new: The name that goes with it.
        stems: What becomes what inside a twin, so that the names of functions and
            headers and the values of tests follow.
        doc: The documentation of the new fields, where the old ones have one.
        last: The structs whose new field goes last, with a default: those that are
            encoded as arrays.
        within: A glob of the paths to look in.
        places: How many places there must be in all.
    """

    old: str
    new: str
    stems: tuple[tuple[str, str], ...]
    doc: str
    last: tuple[str, ...]
    within: str
    places: int
    since: str = ""

    def rewrite(self, tree: Tree) -> None:
        found = 0
        changed: dict[str, str] = {}
        for path in tree.paths(self.within):
            text = tree.read(path) or ""
            if self.old in text:
                found += len(list(self.sites(text)))
                changed[path] = self.apply(text)
        if found != self.places:
            anchor = f"a place that threads {self.old}"
            raise MisplacedEdit(self.within, anchor, self.places, found)
        for path, text in changed.items():
            tree.write(path, text)

    def apply(self, text: str) -> str:
        """One file's text with the new name threaded."""
        return in_unix_lines(text, self._apply)

    def sites(self, text: str) -> Iterator[SgNode]:
        """The nodes that thread the old name."""
        root = Source(text, "rust").root
        for node in root.find_all(kind="field_declaration"):
            if _name(node) == self.old:
                yield node
        for kind in sorted(_ITEMS):
            for node in root.find_all(kind=kind):
                if _name(node) == self.old:
                    yield node
        for node in root.find_all(kind="let_declaration"):
            pattern = node.field("pattern")
            if pattern is not None and pattern.text() == self.old:
                yield node
        for node in root.find_all(kind="function_item"):
            if self._is_named_after(node):
                yield node
        for node in root.find_all(kind="use_list"):
            yield from (item for item in node.children() if self.old in item.text())
        for node in root.find_all(kind="macro_invocation"):
            if self._is_assertion(node):
                yield statement_of(node)

    def rename(self, text: str) -> str:
        """`text` with every stem, also as a part of names, become its twin."""
        for old, new in self.stems:
            text = text.replace(old, new)
        return text

    def _apply(self, text: str) -> str:
        source = Source(text, "rust")
        changes = (self._change(source, node) for node in self.sites(text))
        return source.splice(c for c in changes if c is not None)

    def _change(self, source: Source, node: SgNode) -> Insertion | None:
        if node.kind() == "field_declaration":
            return self._field(source, node)
        twin = self.rename(node.text())
        parent = node.parent()
        assert parent is not None
        if node.kind() in _ITEMS:
            present = any(_name(item) == self.new for item in parent.children())
            return None if present else add_beside(source, node, twin)
        if parent.kind() == "use_list":
            present = any(item.text() == twin for item in parent.children())
            # rustfmt wants imports in order.
            before, after = start(node), end(node)
            if twin < node.text():
                change = Insertion(before, before, f"{twin}, ")
            else:
                change = Insertion(after, after, f", {twin}")
            return None if present else change
        above = [n.text() for n in _above(node) if node.kind() == "function_item"]
        indentation = source.line_indent(node)
        lines = "".join(f"{indentation}{line}\n" for line in [*above, twin])
        gap = "\n" if node.kind() == "function_item" else ""
        at = source.line_end(node) + 1
        block = f"{gap}{self.rename(lines)}"
        return None if source.text.startswith(block, at) else Insertion(at, at, block)

    def _field(self, source: Source, node: SgNode) -> Insertion | None:
        fields = node.parent()
        struct = fields.parent() if fields else None
        assert fields is not None and struct is not None
        declared = [f for f in fields.children() if f.kind() == "field_declaration"]
        if any(_name(field) == self.new for field in declared):
            return None
        above = _above(node)
        lines = [n.text() for n in above if n.kind() == "attribute_item"]
        if any(n.kind() == "line_comment" for n in above):
            lines.insert(0, f"/// {self.doc}")
        first = above[0] if above else node
        spaced = source.text.endswith("\n\n", 0, source.line_start(first))
        if _name(struct) in self.last:
            node, spaced = declared[-1], False
            lines = [f"/// {self.doc}", "#[serde(default)]"]
        lines.append(f"{self.rename(self._declaration(declared))},")
        at = source.line_end(node) + 1
        text = "".join(f"{source.line_indent(node)}{line}\n" for line in lines)
        return Insertion(at, at, "\n" + text if spaced else text)

    def _declaration(self, declared: list[SgNode]) -> str:
        return next(f.text() for f in declared if _name(f) == self.old)

    def _is_named_after(self, function: SgNode) -> bool:
        return self.old in _name(function)

    def _is_assertion(self, macro: SgNode) -> bool:
        if not macro.text().startswith("assert"):
            return False
        # Those of a function that has a twin are in the twin.
        if any(
            self._is_named_after(node)
            for node in macro.ancestors()
            if node.kind() == "function_item"
        ):
            return False
        return any(n.text() == self.old for n in macro.find_all(kind="identifier"))


@dataclass(frozen=True, kw_only=True)
class _AddProtoField(FileEdit):
    text: str

    def where(self) -> str:
        return f"the definition of message {self.scope}"

    def sites(self, text: str) -> list[Site]:
        message = rf"^message {re.escape(self.scope)} \{{\n(?:.*\n)*?(?=^\}})"
        sites = []
        for found in re.finditer(message, text, re.MULTILINE):
            block = f"\n{self.text}"
            done = block in found.group()
            change = None if done else Insertion(found.end(), found.end(), block)
            sites.append(Site(found.span(), change))
        return sites

    def sites_in(self, source: Source, scope: SgNode) -> list[Site]:
        raise NotImplementedError("there is no grammar for protobuf")


def twin_rust(
    old: str,
    new: str,
    *,
    stems: tuple[tuple[str, str], ...],
    doc: str,
    last: tuple[str, ...] = (),
    within: str,
    places: int,
) -> RustTwin:
    """Thread `new` wherever the Rust below `within` threads `old`."""
    return RustTwin(
        old=old,
        new=new,
        stems=stems,
        doc=doc,
        last=last,
        within=within,
        places=places,
    )


def add_proto_field(file: str, message: str, text: str, *, since: str = "") -> FileEdit:
    """Declare a field at the end of a protobuf message; `text` is its lines."""
    return _AddProtoField(file=file, scope=message, text=text, since=since)


def rust_error(text: str) -> int | None:
    """The line at which a text stops being Rust; None where it is Rust."""
    error = Source(text, "rust").root.find(kind="ERROR")
    return None if error is None else error.range().start.line + 1


def _name(node: SgNode) -> str:
    """The name that a node declares, sets or binds."""
    name = node.field("name") or node.field("field") or node.child(0)
    return "" if name is None else name.text()


def _above(node: SgNode) -> list[SgNode]:
    """The comments and attributes that stand right above a node, in order."""
    above: list[SgNode] = []
    for sibling in node.prev_all():
        if sibling.kind() not in _ABOVE:
            break
        above.insert(0, sibling)
    return above
