# SPDX-License-Identifier: Apache-2.0
"""Every use of a name in a source, found with Python's own parser.

It shares nothing with the twin that it is held against: another parser, and every
way a name can be used, whether the twin knows it or not.
"""

import ast
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Use:
    """One use of a name.

    Attributes:
        owner: The dotted path of the class or function that it is in.
        kind: `takes` (a parameter), `passes` (an argument), `sets` (a variable or
            an attribute), `declares` (a field), `reads` (an attribute), `keys`
            (a string that is a key) or `defines` (a function called after it).
        what: The code of it, in which the name itself is written as `NAME`.
    """

    owner: str
    kind: str
    what: str


def uses(text: str, name: str) -> Counter[Use]:
    """How often a source uses `name`, by use; so two names can be held together."""
    finder = _Finder(name)
    finder.visit(ast.parse(text))
    return finder.found


class _Finder(ast.NodeVisitor):
    def __init__(self, name: str) -> None:
        self.name = name
        self.found: Counter[Use] = Counter()
        self._owner: list[str] = []

    def _add(self, kind: str, *parts: ast.AST | str | None) -> None:
        code = [p if isinstance(p, str) else ast.unparse(p) for p in parts if p]
        owner, what = (
            text.replace(self.name, "NAME")
            for text in (".".join(self._owner), " ".join(code))
        )
        self.found[Use(owner, kind, what)] += 1

    def _is_name(self, node: ast.AST | None) -> bool:
        return (isinstance(node, ast.Name) and node.id == self.name) or (
            isinstance(node, ast.Attribute) and node.attr == self.name
        )

    def _visit_definition(
        self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ) -> None:
        if self.name in node.name:
            self._add("defines", node.name)
        self._owner.append(node.name)
        self.generic_visit(node)
        self._owner.pop()

    visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _visit_definition

    def visit_arg(self, node: ast.arg) -> None:
        if node.arg == self.name:
            self._add("takes", node.annotation)

    def visit_Call(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg == self.name:
                self._add("passes", node.func, keyword.value)
        for argument in node.args:
            if isinstance(argument, ast.Name) and argument.id == self.name:
                self._add("passes", node.func, argument)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._visit_target(target, node.value)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._visit_target(node.target, node.value)
        self.generic_visit(node)

    def _visit_target(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._visit_target(each, None)
        elif self._is_name(target):
            self._add("sets", target, value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if self._is_name(node.target):
            self._add("declares", node.target, node.annotation)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr == self.name and isinstance(node.ctx, ast.Load):
            self._add("reads", node)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key in node.keys:
            self._visit_key(key)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._visit_key(node.slice)
        self.generic_visit(node)

    def _visit_key(self, key: ast.expr | None) -> None:
        if isinstance(key, ast.Constant) and key.value == self.name:
            self._add("keys")
