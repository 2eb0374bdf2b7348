# SPDX-License-Identifier: Apache-2.0
"""What takes another's place: replace, replace_condition, replace_body."""

import pytest

from semantic.cases import FILE, case, check
from vllm_coordinates.semantic import (
    MisplacedEdit,
    replace,
    replace_body,
    replace_condition,
)
from vllm_coordinates.semantic.definitions import body_digest
from vllm_coordinates.semantic.source import Source

CALL = replace(FILE, "", "send($$$)", "post(\n    parcel,\n)")


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        case(
            "an expression inside a statement",
            replace(FILE, "f", "range(n)", "range(m, n)"),
            """
            def f(n):
                for i in range(n):  # why
                    yield i
            """,
            """
            def f(n):
                for i in range(m, n):  # why
                    yield i
            """,
        ),
        case(
            "an expression by one of several lines",
            CALL,
            """
            if a:
                x = send(1)
            """,
            """
            if a:
                x = post(
                    parcel,
                )
            """,
        ),
        case(
            "an expression of several lines by one",
            replace(FILE, "", "send($$$)", "post()"),
            """
            x = send(
                1,
            ) + 2
            """,
            """
            x = post() + 2
            """,
        ),
        case(
            "a statement by several",
            replace(FILE, "f", "x = 1", "x = 2\ny = 3"),
            """
            def f():
                x = 1  # why
                return x
            """,
            """
            def f():
                x = 2
                y = 3  # why
                return x
            """,
        ),
        case(
            "an if with all it holds",
            replace(FILE, "f", "if $A:\n    send($$$)", "# Elsewhere."),
            """
            def f():
                a = 1
                if a and (
                    b
                ):
                    send(a)
                return a
            """,
            """
            def f():
                a = 1
                # Elsewhere.
                return a
            """,
        ),
        case(
            "what only begins like the replacement is not it",
            replace(FILE, "", "size(a)", "n"),
            """
            number = size(a)
            """,
            """
            number = n
            """,
        ),
        case(
            "what contains the anchor",
            replace(FILE, "", "range(n)", "range(0, len(range(n)))"),
            """
            x = range(n)
            """,
            """
            x = range(0, len(range(n)))
            """,
        ),
    ],
)
def test_replace(edit, before, after):
    check(edit, before, after)


def test_a_replacement_is_recognised_at_any_indentation():
    text = "if a:\n    if b:\n        post(\n            parcel,\n        )\n"
    assert CALL.apply(text) == text


CONDITION = replace_condition(FILE, "f", "a and b", "a and c")


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        case(
            "of the if, not of others like it",
            CONDITION,
            """
            def f():
                x = a and b
                if a and b:  # why
                    pass
                while a and b:
                    pass
                if a and b or d:
                    pass
            """,
            """
            def f():
                x = a and b
                if a and c:  # why
                    pass
                while a and b:
                    pass
                if a and b or d:
                    pass
            """,
        ),
        case(
            "and the branches stay",
            CONDITION,
            """
            def f():
                if a and b:
                    pass
                elif a and b:
                    pass
                else:
                    pass
            """,
            """
            def f():
                if a and c:
                    pass
                elif a and b:
                    pass
                else:
                    pass
            """,
        ),
    ],
)
def test_replace_condition(edit, before, after):
    check(edit, before, after)


def test_a_condition_that_another_edit_puts_in_later_is_not_meant():
    text = "def f():\n    if a and c:\n        pass\n    if a and b:\n        pass\n"
    assert CONDITION.apply(text) == text


BODY = replace_body(FILE, "f", "return post(a)")


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        case(
            "all statements, comments with them",
            BODY,
            """
            def f(a):
                # why
                if a:
                    return 1
                # and why
                return 2
                # at last

            # outside
            x = 1
            """,
            """
            def f(a):
                return post(a)

            # outside
            x = 1
            """,
        ),
        case(
            "but the docstring",
            BODY,
            '''
            def f(a):
                """Invented.

                Long.
                """
                b = 1
                return b
            ''',
            '''
            def f(a):
                """Invented.

                Long.
                """
                return post(a)
            ''',
        ),
        case(
            "of a function that has only a docstring",
            BODY,
            '''
            def f(a):
                """Invented."""
            ''',
            '''
            def f(a):
                """Invented."""
                return post(a)
            ''',
        ),
        case(
            "by several lines, in a method with decorators",
            replace_body(FILE, "A.f", "if a:\n    return 1\nreturn 2"),
            """
            class A:
                @staticmethod
                def f(a):
                    return a

                x = 1
            """,
            """
            class A:
                @staticmethod
                def f(a):
                    if a:
                        return 1
                    return 2

                x = 1
            """,
        ),
    ],
)
def test_replace_body(edit, before, after):
    check(edit, before, after)


def test_a_function_of_one_line_is_no_place():
    with pytest.raises(MisplacedEdit, match="the body of f was found nowhere"):
        BODY.apply("def f(a): return a\n")


KNOWN = "def f(a):\n    # why\n    return [\n        a,  # why\n    ]\n"
OF_KNOWN = replace_body(
    FILE, "f", "return post(a)", of=body_digest(Source(KNOWN).scopes("f")[0])
)


@pytest.mark.parametrize(
    "text",
    [
        KNOWN,
        pytest.param("def f(a):\n  return  [ a, ]\n", id="laid out otherwise"),
        pytest.param('def f(a):\n    """Doc."""\n    return [a,]\n', id="documented"),
        pytest.param("def f(a):\n    return post(a)\n", id="replaced already"),
    ],
)
def test_a_body_of_the_stated_digest_is_replaced(text):
    assert "post(a)" in OF_KNOWN.apply(text)


def test_a_body_that_has_changed_is_no_place():
    with pytest.raises(MisplacedEdit, match=r"the body \w{12} of f was found nowhere"):
        OF_KNOWN.apply("def f(a):\n    return [a, 1]\n")
