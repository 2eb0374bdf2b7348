# SPDX-License-Identifier: Apache-2.0
"""However a source is laid out, an edit brings in its text and nothing else."""

import ast
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semantic.cases import FILE
from semantic.verbs import EDITS, STOCK
from vllm_coordinates.semantic import (
    add_argument,
    add_parameter,
    append_to,
    insert_after,
    insert_before,
    prepend_to,
    twin,
)

NEW = "fresh(ü='🎈')\nif fresh:\n    fresh()"
COMMENTS = ["", "  # why, and how", "  # 大きさ 🎈 (["]

words = st.text(string.ascii_lowercase + "äß大🎈", max_size=4)


@st.composite
def items(draw, valid):
    """Items of a list in brackets, in one of many layouts, with the brackets."""
    layout = draw(st.sampled_from(["line", "lines", "hanging", "aligned"]))
    comma = draw(st.sampled_from(["", ","])) if valid else ""
    if layout == "line" or not valid:
        return f"({', '.join(valid)}{comma})"
    if layout == "aligned":
        return "(" + ",\n        ".join(valid) + f"{comma})"
    if layout == "hanging":
        return f"(\n        {', '.join(valid)}{comma}\n    )"
    lines = []
    for place, item in enumerate(valid):
        ends = "," if place + 1 < len(valid) else comma
        lines.append(f"        {item}{ends}{draw(st.sampled_from(COMMENTS))}\n")
        if draw(st.booleans()):
            lines.append(f"        # {draw(words)}\n")
    return f"(\n{''.join(lines)}    )"


def some(*choices):
    return st.lists(st.sampled_from(choices), unique=True)


@st.composite
def signatures(draw):
    plain = sorted(draw(some("a", "b: int", "ü: 'list[str, 大]'")))
    separator = draw(st.sampled_from([[], ["/"]])) if plain else []
    optional = draw(some("d=1", "e: str = '🎈, ['", "f: int = (\n            1\n)"))
    keyword_only = draw(st.sampled_from([[], ["g"], ["g: int", "h=2"]]))
    rest = draw(st.sampled_from([["*"], ["*args"], ["*args: int"]]))
    every = [*plain, *separator, *optional, *(rest if keyword_only else [])]
    kwargs = draw(st.sampled_from([[], ["**kwargs"], ["**kwargs: Any"]]))
    return draw(items([*every, *keyword_only, *kwargs]))


@st.composite
def calls(draw):
    plain = draw(some("a", "[1, 2]", "f'{ü}, ('", "g(\n            b\n        )", "*c"))
    named = draw(some("d=1", "e=h(i=2)", "j=lambda x: (x,)", "**k"))
    return draw(items([*plain, *named]))


def laid_out(text: str, line_end: str, last: str) -> str:
    return (text.rstrip("\n") + last).replace("\n", line_end)


line_ends = st.sampled_from(["\n", "\r\n"])
last_ends = st.sampled_from(["", "\n"])


def parameters(text: str) -> list[tuple[str, str]]:
    """Name and kind of each parameter of the first function, in order."""
    arguments = ast.parse(text).body[0].args
    return [
        *((arg.arg, "positional only") for arg in arguments.posonlyargs),
        *((arg.arg, "positional") for arg in arguments.args),
        *((arg.arg, "rest") for arg in [arguments.vararg] if arg),
        *((arg.arg, "keyword only") for arg in arguments.kwonlyargs),
        *((arg.arg, "other keywords") for arg in [arguments.kwarg] if arg),
    ]


def is_subsequence(small, large) -> bool:
    rest = iter(large)
    return all(item in rest for item in small)


@given(signature=signatures(), line_end=line_ends, last=last_ends)
def test_a_parameter_goes_last_and_no_other_changes(signature, line_end, last):
    before = laid_out(f"def f{signature}:\n    pass\n", line_end, last)
    edit = add_parameter(FILE, "f", "label: str | None = None")

    after = edit.apply(before)

    assert edit.apply(after) == after
    assert is_subsequence(before, after)
    new = [p for p in parameters(after) if p[0] == "label"]
    others = [p for p in parameters(after) if p[0] != "label"]
    assert others == parameters(before)
    assert len(new) == 1
    others = [p for p in others if p[1] != "other keywords"]
    assert parameters(after)[len(others)] == new[0]


@given(call=calls(), line_end=line_ends, last=last_ends)
@pytest.mark.parametrize("kind", ["add_argument", "twin"])
def test_an_argument_goes_in_and_no_other_changes(kind, call, line_end, last):
    if kind == "twin":
        call = call.replace("d=1", "session_id=1")
        edit = twin("session_id", "label", within=(FILE,), places=1)
        expected = int("session_id" in call)
    else:
        edit = add_argument(FILE, "", "send($$$)", "label=1")
        expected = 1
    before = laid_out(f"if x:\n    send{call}\n", line_end, last)

    after = edit.apply(before)

    assert edit.apply(after) == after
    assert is_subsequence(before, after)
    tree = ast.parse(after)
    keywords = next(n for n in ast.walk(tree) if isinstance(n, ast.Call)).keywords
    new = [keyword for keyword in keywords if keyword.arg == "label"]
    assert len(new) == expected
    for keyword in new:
        keywords.remove(keyword)
    assert ast.dump(tree) == ast.dump(ast.parse(before))


@st.composite
def suites(draw, level=1):
    """Lines of statements, one of them `anchor(...)` if `level` is 1."""
    tab = draw(st.sampled_from(["\t", "  ", "    "]))
    lines = []
    for _ in range(draw(st.integers(0, 3))):
        lines += draw(statements(level))
    if level == 1:
        lines += draw(st.sampled_from([["anchor()"], ["x = [", "  anchor(),", "]"]]))
        lines[-1] += draw(st.sampled_from(COMMENTS))
        for _ in range(draw(st.integers(0, 3))):
            lines += draw(statements(level))
    else:
        lines.append("pass")
    return [tab + line for line in lines]


@st.composite
def statements(draw, level):
    kinds = ["x = 1", "# {}", "", "s = '{}'", "d = [\n  1,\n]", 't = """\n # {}\n"""']
    kind = draw(st.sampled_from([*kinds, "if"] if level < 3 else kinds))
    if kind == "if":
        return [f"if x:  # {draw(words)}", *draw(suites(level=level + 1))]
    return kind.format(draw(words)).split("\n")


def dedented(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


INSERTS = {
    "insert_after": insert_after(FILE, "f", "anchor()", NEW),
    "insert_before": insert_before(FILE, "f", "anchor()", NEW),
    "prepend_to": prepend_to(FILE, "f", NEW),
    "append_to": append_to(FILE, "f", NEW),
}


@given(suite=suites(), line_end=line_ends, last=last_ends)
@pytest.mark.parametrize("verb", INSERTS)
def test_statements_go_in_and_every_other_line_stays(verb, suite, line_end, last):
    text = "\n".join(["def f():", *suite]).rstrip() + "\n"
    before = laid_out(text, line_end, last)

    after = INSERTS[verb].apply(before)

    assert INSERTS[verb].apply(after) == after
    assert (line_end == "\r\n") == ("\r\n" in after)
    assert "\n" not in after.replace(line_end, "")
    old, new = before.split(line_end), after.split(line_end)
    assert any(
        [*new[:at], *new[at + 3 :]] == old
        and dedented("\n".join(new[at : at + 3])) == dedented(NEW)
        for at in range(len(new) - 2)
    )
    tree = ast.parse(after)
    body = tree.body[0].body
    place = next(i for i, s in enumerate(body) if "anchor" in ast.unparse(s))
    first = {
        "insert_after": place + 1,
        "insert_before": place - 2,
        "prepend_to": 0,
        "append_to": len(body) - 2,
    }[verb]
    assert "\n".join(map(ast.unparse, body[first : first + 2])) == NEW
    del body[first : first + 2]
    assert ast.dump(tree) == ast.dump(ast.parse(before))


@pytest.mark.parametrize("verb", EDITS)
def test_a_file_with_crlf_keeps_it(verb):
    edit = EDITS[verb]
    crlf = edit.apply(STOCK.replace("\n", "\r\n"))
    assert crlf == edit.apply(STOCK).replace("\n", "\r\n")
    assert edit.apply(crlf) == crlf


@pytest.mark.parametrize("verb", EDITS)
def test_a_file_of_mixed_line_ends_keeps_each(verb):
    mixed = STOCK.replace("import os\n", "import os\r\n")
    assert EDITS[verb].apply(mixed).count("\r\n") == 1


@pytest.mark.parametrize("verb", EDITS)
def test_a_last_line_without_a_newline_gets_none(verb):
    edit = EDITS[verb]
    assert edit.apply(STOCK.rstrip()) == edit.apply(STOCK).rstrip()
