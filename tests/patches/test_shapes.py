# SPDX-License-Identifier: Apache-2.0
"""What goes over a wire as an array keeps its order; what is new comes last."""

import ast

import pytest

from patches.replay import patched_texts, stock_texts
from trees import RELEASE_NAMES

EVENTS = "vllm/distributed/kv_events.py"
ENGINE = "vllm/v1/engine/__init__.py"

every_release = pytest.mark.parametrize("release", RELEASE_NAMES)


def class_of(texts, path: str, name: str) -> ast.ClassDef:
    return next(
        node
        for node in ast.parse(texts[path]).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )


def fields(cls: ast.ClassDef) -> list[str]:
    """The declared fields, in order, as they are written."""
    return [ast.unparse(node) for node in cls.body if isinstance(node, ast.AnnAssign)]


@every_release
def test_continuation_id_is_the_last_field_of_an_engine_core_request(release):
    stock = fields(class_of(stock_texts(release), ENGINE, "EngineCoreRequest"))
    patched = fields(class_of(patched_texts(release), ENGINE, "EngineCoreRequest"))
    assert patched == [*stock, "continuation_id: str | None = None"]


@every_release
def test_an_event_batch_is_upstreams(release):
    stock = class_of(stock_texts(release), EVENTS, "EventBatch")
    patched = class_of(patched_texts(release), EVENTS, "EventBatch")
    assert ast.dump(patched) == ast.dump(stock)


@every_release
@pytest.mark.parametrize("event", ["BlockStored", "BlockRemoved"])
def test_an_event_gains_optional_fields_behind_its_own(event, release):
    stock = class_of(stock_texts(release), EVENTS, event)
    patched = class_of(patched_texts(release), EVENTS, event)
    new = fields(patched)[len(fields(stock)) :]
    assert fields(patched)[: len(fields(stock))] == fields(stock)
    assert sorted(new) == [
        "continuation_id: str | None = None",
        "num_tokens: int | None = None",
        "token_offset: int | None = None",
    ]
    assert [*map(ast.dump, patched.bases)] == [*map(ast.dump, stock.bases)]


@every_release
@pytest.mark.parametrize("event", ["BlockStored", "BlockRemoved"])
def test_the_hash_of_an_event_covers_the_new_fields_too(event, release):
    stock = hashed(class_of(stock_texts(release), EVENTS, event))
    patched = hashed(class_of(patched_texts(release), EVENTS, event))
    assert patched == stock | {"continuation_id", "token_offset", "num_tokens"}


def hashed(cls: ast.ClassDef) -> set[str]:
    """The attributes that go into the hash."""
    method = next(n for n in cls.body if getattr(n, "name", "") == "__hash__")
    return {n.attr for n in ast.walk(method) if isinstance(n, ast.Attribute)}


@every_release
def test_there_is_no_new_event_type_and_no_other_one_is_changed(release):
    stock, patched = (
        {
            n.name: n
            for n in ast.parse(texts[EVENTS]).body
            if isinstance(n, ast.ClassDef)
        }
        for texts in (stock_texts(release), patched_texts(release))
    )
    assert patched.keys() == stock.keys()
    changed = {n for n in stock if ast.dump(stock[n]) != ast.dump(patched[n])}
    assert changed == {
        "BlockStored",
        "BlockRemoved",
        "ZmqEventPublisher",
        "EventPublisherFactory",
    }


@every_release
def test_no_positional_argument_of_upstreams_shifts(release):
    """Every function of upstream's has its parameters first, in their order."""
    stock, patched = stock_texts(release), patched_texts(release)
    changed = [path for path in stock if patched[path] != stock[path]]
    for path in changed:
        before, after = signatures(stock[path]), signatures(patched[path])
        for owner, parameters in before.items():
            assert after[owner][: len(parameters)] == parameters, (path, owner)


def signatures(text: str) -> dict[str, list[str]]:
    """The parameters that can be given by position, of each function."""
    found: dict[str, list[str]] = {}

    def visit(node: ast.AST, owner: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            owner = f"{owner}.{node.name}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            every = [*node.args.posonlyargs, *node.args.args]
            found[owner] = [arg.arg for arg in every]
        for child in ast.iter_child_nodes(node):
            visit(child, owner)

    visit(ast.parse(text), "")
    return found
