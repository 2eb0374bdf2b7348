# SPDX-License-Identifier: Apache-2.0
"""Changes of a definition: its imports, fields, signature, members and statements.

Each function takes a source, the definition's node and the text to bring in, and
returns what to do; None where it is done already.
"""

import hashlib
from collections.abc import Iterator

from ast_grep_py import SgNode

from .lists import add_last, parameter_name
from .source import (
    Insertion,
    Source,
    body_of,
    docstring_of,
    indent,
    is_annotated,
    is_string,
    start,
    statements,
)

_IMPORTS = {"import_statement", "import_from_statement"}
_FUTURE_IMPORT = "future_import_statement"
_EXITS = {"return_statement", "raise_statement"}


def has_body(source: Source, definition: SgNode) -> bool:
    """Whether there are statements, on lines of their own."""
    members = statements(body_of(definition))
    return bool(members) and source.starts_line(members[0])


def body_digest(function: SgNode) -> str:
    """What a function does, as 12 hex digits: layout, comments, docstring aside."""
    suite = body_of(function)
    members = statements(suite)[0 if docstring_of(suite) is None else 1 :]
    tokens = "\0".join(token for member in members for token in _tokens(member))
    return hashlib.sha256(tokens.encode()).hexdigest()[:12]


def _tokens(node: SgNode) -> Iterator[str]:
    if node.kind() == "comment":
        return
    if node.is_leaf():
        yield node.text()
    for child in node.children():
        yield from _tokens(child)


def has_signature(source: Source, definition: SgNode) -> bool:
    """Whether the definition is a function's."""
    return definition.field("parameters") is not None


def has_end(source: Source, function: SgNode) -> bool:
    """Whether a statement that is put last would be reached."""
    members = statements(body_of(function))
    return has_body(source, function) and members[-1].kind() not in _EXITS


def import_(source: Source, module: SgNode, text: str) -> Insertion | None:
    """The import, among those of the same package, in order of their names."""
    top = [s for s in statements(module) if s.kind() in _IMPORTS]
    if any(statement.text() == text for statement in top):
        return None
    if not top:
        return _first_import(source, module, text)
    name = _imported(statements(Source(text).root)[0])
    package = name.partition(".")[0]
    kin = [s for s in top if _imported(s).partition(".")[0] == package] or top
    ahead = [s for s in kin if _imported(s) <= name]
    if not ahead:
        return Insertion(start(kin[0]), start(kin[0]), text + "\n")
    at = source.line_end(ahead[-1])
    return Insertion(at, at, "\n" + text)


def field(source: Source, cls: SgNode, text: str) -> Insertion | None:
    """The declaration, after the last field and the string that explains it."""
    members = statements(body_of(cls))
    if _declared(Source(text).root) <= _declared(body_of(cls)):
        return None
    fields = [i for i, member in enumerate(members) if is_annotated(member)]
    if not fields:
        return first(source, cls, text)
    at = fields[-1]
    gap = "\n"
    if at + 1 < len(members) and is_string(members[at + 1]):
        at += 1
        gap = "\n\n"
    prefix = source.line_indent(members[at])
    place = source.line_end(members[at])
    return Insertion(place, place, gap + indent(text, prefix))


def parameter(source: Source, function: SgNode, text: str) -> Insertion | None:
    """The parameter, last in the signature but before `**kwargs`."""
    parameters = function.field("parameters")
    assert parameters is not None
    name = text.partition(":")[0].partition("=")[0].strip()
    if any(parameter_name(child) == name for child in parameters.children()):
        return None
    return add_last(source, parameters, text)


def method(source: Source, owner: SgNode, text: str) -> Insertion | None:
    """The methods or functions, at the end of the class or module."""
    body = body_of(owner)
    wanted = {_name(s) for s in statements(Source(text).root)}
    if wanted <= {_name(s) for s in statements(body)}:
        return None
    prefix = source.line_indent(statements(body)[0])
    gap = "\n\n\n" if owner.kind() == "module" else "\n\n"
    at = _last_line_end(source, body)
    return Insertion(at, at, gap + indent(text, prefix))


def first(source: Source, definition: SgNode, text: str) -> Insertion | None:
    """The statements, before all others but the docstring."""
    body = body_of(definition)
    docstring = docstring_of(body)
    member = statements(body)[0]
    block = indent(text, source.line_indent(member))
    if docstring is None:
        at = source.comments_start(member)
        done = source.has_lines(block, at)
        return None if done else Insertion(at, at, block + "\n")
    at = source.line_end(docstring)
    done = source.has_lines(block, at + 1)
    return None if done else Insertion(at, at, "\n" + block)


def last(source: Source, function: SgNode, text: str) -> Insertion | None:
    """The statements, after all others."""
    body = body_of(function)
    block = indent(text, source.line_indent(statements(body)[0]))
    at = _last_line_end(source, body)
    if source.has_lines(block, at - len(block)):
        return None
    return Insertion(at, at, "\n" + block)


def has_known_body(source: Source, function: SgNode, text: str, of: str) -> bool:
    """Whether the body is `text` already, or has the digest `of`."""
    if not has_body(source, function):
        return False
    return body_digest(function) == of or body(source, function, text) is None


def body(source: Source, function: SgNode, text: str) -> Insertion | None:
    """The statements, in the place of all others but the docstring."""
    suite = body_of(function)
    members = statements(suite)[0 if docstring_of(suite) is None else 1 :]
    if not members:
        return first(source, function, text)
    block = indent(text, source.line_indent(members[0]))
    begin, stop = source.comments_start(members[0]), _last_line_end(source, suite)
    if source.text[begin:stop] == block:
        return None
    return Insertion(begin, stop, block)


def _first_import(source: Source, module: SgNode, text: str) -> Insertion:
    members = statements(module)
    future = [s for s in members if s.kind() == _FUTURE_IMPORT]
    docstring = docstring_of(module)
    above = [*([] if docstring is None else [docstring]), *future][-1:]
    if above:
        at = source.line_end(above[0])
        return Insertion(at, at, f"\n\n{text}")
    at = start(members[0])
    return Insertion(at, at, f"{text}\n\n")


def _imported(statement: SgNode) -> str:
    """The module that an import statement names, for the order of imports."""
    name = statement.field("module_name") or statement.field("name")
    return "" if name is None else name.text()


def _declared(suite: SgNode) -> set[str]:
    """The names that a suite declares with a type."""
    declarations = filter(is_annotated, statements(suite))
    return {statement.text().partition(":")[0] for statement in declarations}


def _name(statement: SgNode) -> str:
    """The name that a definition binds; any other statement is its own."""
    definition = statement.field("definition") or statement
    name = definition.field("name")
    return statement.text() if name is None else name.text()


def _last_line_end(source: Source, suite: SgNode) -> int:
    """The end of a suite's last line, comments included."""
    return source.line_end(suite.children()[-1])
