# SPDX-License-Identifier: Apache-2.0
"""Items that go into brackets: add_argument, add_parameter, add_element."""

from dataclasses import replace

import pytest

from semantic.cases import FILE, case, check
from vllm_coordinates.semantic import (
    MisplacedEdit,
    add_argument,
    add_element,
    add_parameter,
)

ARGUMENT = add_argument(FILE, "", "send($$$)", "label=label")
PARAMETER = add_parameter(FILE, "f", "label: str | None = None")
ELEMENT = add_element(FILE, "", "hash($INTO)", "self.label")


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        case("to no others", ARGUMENT, "send()", "send(label=label)"),
        case("on one line", ARGUMENT, "send(a, b=b)", "send(a, b=b, label=label)"),
        case(
            "on one line with a trailing comma",
            ARGUMENT,
            "send(a, b,)",
            "send(a, b, label=label,)",
        ),
        case(
            "a line of its own, with a comma as the others have it",
            ARGUMENT,
            """
            send(
                a,
                b=b,
            )
            """,
            """
            send(
                a,
                b=b,
                label=label,
            )
            """,
        ),
        case(
            "a line of its own, without a comma where there is none",
            ARGUMENT,
            """
            send(
                a,
                b=b
            )
            """,
            """
            send(
                a,
                b=b,
                label=label
            )
            """,
        ),
        case(
            "a comment stays with its argument, behind a comma",
            ARGUMENT,
            """
            send(
                a,  # first
                b,  # last
            )
            """,
            """
            send(
                a,  # first
                b,  # last
                label=label,
            )
            """,
        ),
        case(
            "a comment stays with its argument, without a comma",
            ARGUMENT,
            """
            send(
                a,
                b  # last, and not least
            )
            """,
            """
            send(
                a,
                b,  # last, and not least
                label=label
            )
            """,
        ),
        case(
            "a comment at the end stays there",
            ARGUMENT,
            """
            send(
                a,
                # and so on
            )
            """,
            """
            send(
                a,
                label=label,
                # and so on
            )
            """,
        ),
        case(
            "in one line when they are",
            ARGUMENT,
            """
            send(
                a, b
            )
            """,
            """
            send(
                a, b, label=label
            )
            """,
        ),
        case(
            "in one line when they are, before the comment",
            ARGUMENT,
            """
            send(
                a, b,  # why
            )
            """,
            """
            send(
                a, b, label=label,  # why
            )
            """,
        ),
        case(
            "within the brackets, whatever comes behind them",
            ARGUMENT,
            """
            x = [send(
                a), # why
            ]
            """,
            """
            x = [send(
                a,
                label=label), # why
            ]
            """,
        ),
        case(
            "aligned as they are",
            ARGUMENT,
            """
            parcel = send(a,
                          b)
            """,
            """
            parcel = send(a,
                          b,
                          label=label)
            """,
        ),
        case(
            "after an argument of many lines",
            ARGUMENT,
            """
            send(
                a=[
                    1,
                ],
            )
            """,
            """
            send(
                a=[
                    1,
                ],
                label=label,
            )
            """,
        ),
        case(
            "behind *args and **kwargs, where a keyword may stand",
            ARGUMENT,
            "send(*args, **kwargs)",
            "send(*args, **kwargs, label=label)",
        ),
        case(
            "of the call that matches, not of one inside",
            ARGUMENT,
            "send(pack(a))",
            "send(pack(a), label=label)",
        ),
        case(
            "behind text that is not ASCII",
            ARGUMENT,
            "ä = '🎈'; send('ß🎈')",
            "ä = '🎈'; send('ß🎈', label=label)",
        ),
        case(
            "of a decorator",
            ARGUMENT,
            """
            @send(a)
            def f(): ...
            """,
            """
            @send(a, label=label)
            def f(): ...
            """,
        ),
    ],
)
def test_add_argument(edit, before, after):
    check(edit, before, after)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("send(label=other)\n", id="with another value"),
        pytest.param("send(a, label=label, b=b)\n", id="in the middle"),
    ],
)
def test_an_argument_that_is_there_is_left_alone(text):
    assert ARGUMENT.apply(text) == text


def test_arguments_of_one_call_go_in_one_after_the_other():
    text = "send(a)\n"
    for name in ("x", "y", "z"):
        text = add_argument(FILE, "", "send($$$)", f"{name}={name}").apply(text)
    assert text == "send(a, x=x, y=y, z=z)\n"


def test_a_generator_without_brackets_takes_no_argument():
    with pytest.raises(MisplacedEdit, match=r"`send\(\$\$\$\)` was found nowhere"):
        ARGUMENT.apply("send(a for a in b)\n")


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        case(
            "of none",
            PARAMETER,
            """
            def f():
                pass
            """,
            """
            def f(label: str | None = None):
                pass
            """,
        ),
        case(
            "last, so that nothing positional shifts",
            PARAMETER,
            """
            def f(self, a: int, b: str = "x") -> None:
                pass
            """,
            """
            def f(self, a: int, b: str = "x", label: str | None = None) -> None:
                pass
            """,
        ),
        case(
            "a line of its own",
            PARAMETER,
            """
            def f(
                self,
                a: int = 1,  # how many
            ) -> None:
                pass
            """,
            """
            def f(
                self,
                a: int = 1,  # how many
                label: str | None = None,
            ) -> None:
                pass
            """,
        ),
        case(
            "before **kwargs",
            PARAMETER,
            """
            def f(a, *args, **kwargs):
                pass
            """,
            """
            def f(a, *args, label: str | None = None, **kwargs):
                pass
            """,
        ),
        case(
            "before **kwargs with a type",
            PARAMETER,
            """
            def f(
                a: int,
                **kwargs: Any,
            ):
                pass
            """,
            """
            def f(
                a: int,
                label: str | None = None,
                **kwargs: Any,
            ):
                pass
            """,
        ),
        case(
            "before **kwargs that stand alone",
            PARAMETER,
            """
            def f(**kwargs):
                pass
            """,
            """
            def f(label: str | None = None, **kwargs):
                pass
            """,
        ),
        case(
            "after *args with a type",
            PARAMETER,
            """
            def f(*args: int):
                pass
            """,
            """
            def f(*args: int, label: str | None = None):
                pass
            """,
        ),
        case(
            "by keyword only where the last ones are",
            PARAMETER,
            """
            def f(a, *, b=1):
                pass
            """,
            """
            def f(a, *, b=1, label: str | None = None):
                pass
            """,
        ),
        case(
            "by position or keyword where the others are by position only",
            PARAMETER,
            """
            def f(a, b, /):
                pass
            """,
            """
            def f(a, b, /, label: str | None = None):
                pass
            """,
        ),
        case(
            "of an async method with decorators",
            add_parameter(FILE, "A.f", "label=None"),
            """
            class A:
                @b
                @c(d)
                async def f(self):
                    pass
            """,
            """
            class A:
                @b
                @c(d)
                async def f(self, label=None):
                    pass
            """,
        ),
        case(
            "of a function of one line",
            PARAMETER,
            "def f(a): ...",
            "def f(a, label: str | None = None): ...",
        ),
        case(
            "of every overload",
            replace(add_parameter(FILE, "f", "label=None"), places=3),
            """
            @overload
            def f(a: int): ...
            @overload
            def f(a: str): ...
            def f(a):
                return a
            """,
            """
            @overload
            def f(a: int, label=None): ...
            @overload
            def f(a: str, label=None): ...
            def f(a, label=None):
                return a
            """,
        ),
    ],
)
def test_add_parameter(edit, before, after):
    check(edit, before, after)


@pytest.mark.parametrize(
    "signature",
    [
        pytest.param("label", id="bare"),
        pytest.param("label: int", id="with another type"),
        pytest.param("a, label=1, *, b", id="in the middle"),
        pytest.param("*, label: str = 'x', **kwargs", id="by keyword only"),
    ],
)
def test_a_parameter_that_is_there_is_left_alone(signature):
    text = f"def f({signature}):\n    pass\n"
    assert PARAMETER.apply(text) == text


def test_a_class_has_no_signature():
    with pytest.raises(MisplacedEdit, match="the signature of f was found nowhere"):
        PARAMETER.apply("class f:\n    pass\n")


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        case("a tuple", ELEMENT, "hash((a, b))", "hash((a, b, self.label))"),
        case("a tuple of one", ELEMENT, "hash((a,))", "hash((a, self.label,))"),
        case("an empty tuple", ELEMENT, "hash(())", "hash((self.label,))"),
        case("a list", ELEMENT, "hash([a])", "hash([a, self.label])"),
        case("a set", ELEMENT, "hash({a})", "hash({a, self.label})"),
        case(
            "a tuple of many lines",
            ELEMENT,
            """
            hash(
                (
                    self.a,
                    self.b,  # why
                )
            )
            """,
            """
            hash(
                (
                    self.a,
                    self.b,  # why
                    self.label,
                )
            )
            """,
        ),
        case(
            "the value of a name",
            add_element(FILE, "", "__all__ = $INTO", '"Label"'),
            """
            __all__ = ["Courier"]
            """,
            """
            __all__ = ["Courier", "Label"]
            """,
        ),
    ],
)
def test_add_element(edit, before, after):
    check(edit, before, after)


@pytest.mark.parametrize(
    "what", ["self.key", "tuple(a)", "[a for a in b]", "'a'", "{}"]
)
def test_what_is_no_list_takes_no_element(what):
    with pytest.raises(MisplacedEdit, match=r"`hash\(\$INTO\)` was found nowhere"):
        ELEMENT.apply(f"hash({what})\n")
