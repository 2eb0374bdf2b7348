# SPDX-License-Identifier: Apache-2.0
"""Items of bracketed lists: arguments, parameters and elements, laid out alike."""

from ast_grep_py import SgNode

from .source import Insertion, Source, end, start

_PARAMETERS = {"typed_parameter", "typed_default_parameter", "default_parameter"}


def add_last(source: Source, bracketed: SgNode, text: str) -> Insertion:
    """One more item for `(...)`, `[...]` or `{...}`, laid out as its neighbours.

    The item goes last, but before `**kwargs` of a parameter list.
    """
    children = bracketed.children()
    items = [c for c in children if c.is_named() and c.kind() != "comment"]
    if not items:
        comma = "," if bracketed.kind() == "tuple" else ""
        return Insertion(end(children[0]), end(children[0]), text + comma)
    if _takes_the_rest(items[-1]):
        at = start(items[-1])
        return Insertion(at, at, f"{text},{_gap_before(source, items[-1])}")
    return add_beside(source, items[-1], text)


def add_beside(source: Source, item: SgNode, text: str) -> Insertion:
    """One more item after `item`, on a line of its own if `item` has one.

    The comma and the comment that follow `item` stay with it.
    """
    at = end(item)
    gap = _gap_before(source, item)
    rest = source.rest_of_line(item)
    comma, _, behind = rest.partition(",")
    if gap == " ":
        return Insertion(at, at, f",{gap}{text}")
    if not comma.strip() and behind.strip().startswith("#"):
        stop = source.line_end(item)
        return Insertion(stop, stop, f"{gap}{text},")
    if rest.strip().startswith("#"):
        return Insertion(at, source.line_end(item), f",{rest}{gap}{text}")
    return Insertion(at, at, f",{gap}{text}")


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


def _takes_the_rest(item: SgNode) -> bool:
    """Whether `item` is `**kwargs` of a parameter list, typed or not."""
    first = item.child(0) if item.kind() in _PARAMETERS else item
    return first is not None and first.kind() == "dictionary_splat_pattern"


def _gap_before(source: Source, item: SgNode) -> str:
    """What separates `item` from the one before it: a line of its own, or a space."""
    return "\n" + source.line_indent(item) if source.starts_line(item) else " "
