# SPDX-License-Identifier: Apache-2.0
"""Statements that go in: insert_after, insert_before, prepend_to, append_to."""

import pytest

from semantic.cases import FILE, case, check
from vllm_coordinates.semantic import (
    MisplacedEdit,
    append_to,
    insert_after,
    insert_before,
    prepend_to,
)


def after(anchor: str, text: str, scope: str = "") -> object:
    return insert_after(FILE, scope, anchor, text)


def before_(anchor: str, text: str, scope: str = "") -> object:
    return insert_before(FILE, scope, anchor, text)


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        case(
            "at the end of the module",
            after("y = 2", "z = 3"),
            """
            x = 1
            y = 2
            """,
            """
            x = 1
            y = 2
            z = 3
            """,
        ),
        case(
            "a last line without a newline gets none",
            after("x = 1", "y = 2"),
            "x = 1",
            "x = 1\ny = 2",
        ),
        case(
            "the indentation is the anchor's",
            after("send($X)", "log()", "A.f"),
            """
            class A:
                def f(self):
                    if self:
                        send(1)
                    return 2
            """,
            """
            class A:
                def f(self):
                    if self:
                        send(1)
                        log()
                    return 2
            """,
        ),
        case(
            "inner indentation is kept",
            after("x = 1", "if x:\n    log(\n        x\n    )", "f"),
            """
            def f():
                x = 1
            """,
            """
            def f():
                x = 1
                if x:
                    log(
                        x
                    )
            """,
        ),
        case(
            "indentation of the patch's own is taken off",
            after("x = 1", "\n        y = 2\n        z = 3\n        ", "f"),
            """
            def f():
                x = 1
            """,
            """
            def f():
                x = 1
                y = 2
                z = 3
            """,
        ),
        case(
            "a comment behind a statement stays with it",
            after("x = 1", "y = 2"),
            """
            x = 1  # why
            z = 3
            """,
            """
            x = 1  # why
            y = 2
            z = 3
            """,
        ),
        case(
            "after the last line of a long statement",
            after("send($$$)", "log()"),
            """
            send(
                1,
                2,
            )
            receive()
            """,
            """
            send(
                1,
                2,
            )
            log()
            receive()
            """,
        ),
        case(
            "an anchor inside a statement stands for the statement",
            after("route($X)", "log()"),
            """
            parcel = [send(route(x)) for x in y]
            """,
            """
            parcel = [send(route(x)) for x in y]
            log()
            """,
        ),
        case(
            "an anchor in a condition stands for the whole if",
            after("ready()", "log()"),
            """
            if ready():
                send()
            elif other:
                wait()
            else:
                leave()
            done()
            """,
            """
            if ready():
                send()
            elif other:
                wait()
            else:
                leave()
            log()
            done()
            """,
        ),
        case(
            "a field's text with a comment of its own",
            after("x: int = 1", "# Why.\ny: int = 2", "A"),
            """
            class A:
                x: int = 1

                def f(self): ...
            """,
            """
            class A:
                x: int = 1
                # Why.
                y: int = 2

                def f(self): ...
            """,
        ),
        case(
            "a statement that only begins like the new one is another",
            after("x = 1", "y = 2"),
            """
            x = 1
            y = 20
            """,
            """
            x = 1
            y = 2
            y = 20
            """,
        ),
        case(
            "an anchor that is twice in a statement stands for one statement",
            insert_after(FILE, "", "send($X)", "log()", places=2),
            """
            send(1) + send(2)
            """,
            """
            send(1) + send(2)
            log()
            """,
        ),
        case(
            "non-ASCII text does not shift the place",
            after("x = $X", "y = 2"),
            """
            # Größe, 大きさ 🎈
            x = "🎈🎈"  # ü
            z = 3
            """,
            """
            # Größe, 大きさ 🎈
            x = "🎈🎈"  # ü
            y = 2
            z = 3
            """,
        ),
    ],
)
def test_insert_after(edit, before, after):
    check(edit, before, after)


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        case(
            "at the start of the module",
            before_("x = 1", "w = 0"),
            """
            x = 1
            """,
            """
            w = 0
            x = 1
            """,
        ),
        case(
            "the indentation is the anchor's",
            before_("return $X", "log()", "A.f"),
            """
            class A:
                def f(self):
                    for x in y:
                        if x:
                            return 2
            """,
            """
            class A:
                def f(self):
                    for x in y:
                        if x:
                            log()
                            return 2
            """,
        ),
        case(
            "comments right above a statement stay with it",
            before_("x = 1", "w = 0", "f"),
            """
            def f():
                v = 0  # before

                # apart

                # why
                # and how
                x = 1
            """,
            """
            def f():
                v = 0  # before

                # apart

                w = 0
                # why
                # and how
                x = 1
            """,
        ),
        case(
            "comments above the first statement of a function too",
            before_("x = 1", "w = 0", "f"),
            """
            def f():
                # why
                x = 1
            """,
            """
            def f():
                w = 0
                # why
                x = 1
            """,
        ),
        case(
            "the comment behind the statement above does not belong to it",
            before_("x = 1", "w = 0"),
            """
            v = 0  # before
            x = 1
            """,
            """
            v = 0  # before
            w = 0
            x = 1
            """,
        ),
        case(
            "nor does that behind the colon, wherever it starts",
            before_("x = 1", "w = 0"),
            """
            if v: # before
                  x = 1
            """,
            """
            if v: # before
                  w = 0
                  x = 1
            """,
        ),
        case(
            "nor does one of another level",
            before_("x = 1", "w = 0"),
            """
            if v:
                u()
                # inner
            x = 1
            """,
            """
            if v:
                u()
                # inner
            w = 0
            x = 1
            """,
        ),
        case(
            "what is only like a comment does not",
            before_("x = 1", "w = 0"),
            '''
            v = """
            # text"""
            x = 1
            ''',
            '''
            v = """
            # text"""
            w = 0
            x = 1
            ''',
        ),
        case(
            "a comment alone",
            before_("x = 1", "# why"),
            """
            v = 0
            x = 1
            """,
            """
            v = 0
            # why
            x = 1
            """,
        ),
        case(
            "a deeper statement that reads alike is another",
            before_("x = 1", "w = 0"),
            """
            if v:
                w = 0
            x = 1
            """,
            """
            if v:
                w = 0
            w = 0
            x = 1
            """,
        ),
        case(
            "before the decorators of a definition",
            before_("def f(): $$$", "w = 0"),
            """
            @a
            @b
            def f():
                pass
            """,
            """
            w = 0
            @a
            @b
            def f():
                pass
            """,
        ),
        case(
            "before the if whose elif holds the anchor",
            before_("ready()", "w = 0"),
            """
            if v:
                pass
            elif ready():
                pass
            """,
            """
            w = 0
            if v:
                pass
            elif ready():
                pass
            """,
        ),
    ],
)
def test_insert_before(edit, before, after):
    check(edit, before, after)


@pytest.mark.parametrize("verb", [insert_after, insert_before])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("if a: x = 1\n", id="behind a colon"),
        pytest.param("x = 1; y = 2\n", id="before a semicolon"),
        pytest.param("w = 0; x = 1\n", id="behind a semicolon"),
        pytest.param("class A: x = 1\n", id="in a class of one line"),
    ],
)
def test_a_statement_that_shares_its_line_is_no_place(verb, text):
    edit = verb(FILE, "", "x = 1", "log()")
    with pytest.raises(MisplacedEdit, match="was found nowhere"):
        edit.apply(text)


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        case(
            "before the first statement",
            prepend_to(FILE, "f", "w = 0"),
            """
            def f():
                x = 1
            """,
            """
            def f():
                w = 0
                x = 1
            """,
        ),
        case(
            "after the docstring",
            prepend_to(FILE, "A.f", "w = 0"),
            '''
            class A:
                @staticmethod
                async def f():
                    """Says

                    much.
                    """

                    x = 1
            ''',
            '''
            class A:
                @staticmethod
                async def f():
                    """Says

                    much.
                    """
                    w = 0

                    x = 1
            ''',
        ),
        case(
            "after a docstring of several strings",
            prepend_to(FILE, "f", "w = 0"),
            """
            def f():
                "Says " "much."
                x = 1
            """,
            """
            def f():
                "Says " "much."
                w = 0
                x = 1
            """,
        ),
        case(
            "after a docstring that is all there is",
            prepend_to(FILE, "f", "w = 0"),
            '''
            def f():
                """Nothing yet."""
            ''',
            '''
            def f():
                """Nothing yet."""
                w = 0
            ''',
        ),
        case(
            "before the comments above the first statement",
            prepend_to(FILE, "f", "w = 0"),
            """
            def f():
                # why
                x = 1
            """,
            """
            def f():
                w = 0
                # why
                x = 1
            """,
        ),
        case(
            "with a comment of its own",
            prepend_to(FILE, "f", "# why\nw = 0"),
            """
            def f():
                # why not
                x = 1
            """,
            """
            def f():
                # why
                w = 0
                # why not
                x = 1
            """,
        ),
        case(
            "before a statement that only begins alike",
            prepend_to(FILE, "f", "w = 0"),
            """
            def f():
                w = 0.5
            """,
            """
            def f():
                w = 0
                w = 0.5
            """,
        ),
        case(
            "of a function in a function of a class in a class",
            prepend_to(FILE, "A.B.f.g", "w = 0"),
            """
            class A:
                class B:
                    def f(self):
                        def g():
                            return 1
                        return g
            """,
            """
            class A:
                class B:
                    def f(self):
                        def g():
                            w = 0
                            return 1
                        return g
            """,
        ),
    ],
)
def test_prepend_to(edit, before, after):
    check(edit, before, after)


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        case(
            "after the last statement",
            append_to(FILE, "f", "y = 2"),
            """
            def f():
                x = 1

            def g(): ...
            """,
            """
            def f():
                x = 1
                y = 2

            def g(): ...
            """,
        ),
        case(
            "at the level of the function, whatever stands last",
            append_to(FILE, "f", "y = 2"),
            """
            def f():
                if a:
                    for b in c:
                        x = 1  # why
            """,
            """
            def f():
                if a:
                    for b in c:
                        x = 1  # why
                y = 2
            """,
        ),
        case(
            "after the last comment",
            append_to(FILE, "f", "y = 2"),
            """
            def f():
                x = 1
                # and so on
            # outside
            """,
            """
            def f():
                x = 1
                # and so on
                y = 2
            # outside
            """,
        ),
        case(
            "with a comment at its end",
            append_to(FILE, "f", "y = 2\n# and so on"),
            """
            def f():
                x = 1
            """,
            """
            def f():
                x = 1
                y = 2
                # and so on
            """,
        ),
        case(
            "in a function that is left early too",
            append_to(FILE, "f", "y = 2"),
            """
            def f():
                if a:
                    return
                x = 1
            """,
            """
            def f():
                if a:
                    return
                x = 1
                y = 2
            """,
        ),
        case(
            "in a function that is only declared",
            append_to(FILE, "f", "y = 2"),
            '''
            def f():
                """Invented."""
            ''',
            '''
            def f():
                """Invented."""
                y = 2
            ''',
        ),
    ],
)
def test_append_to(edit, before, after):
    check(edit, before, after)


@pytest.mark.parametrize("leaving", ["return", "return 1", "raise E", "raise"])
def test_an_end_that_is_never_reached_is_no_place(leaving):
    edit = append_to(FILE, "f", "y = 2")
    with pytest.raises(MisplacedEdit) as caught:
        edit.apply(f"def f():\n    x = 1\n    {leaving}\n")
    assert str(caught.value) == (
        f"a reachable end of f was found nowhere in {FILE}, expected once"
    )


@pytest.mark.parametrize("verb", [prepend_to, append_to])
def test_a_function_of_one_line_is_no_place(verb):
    with pytest.raises(MisplacedEdit, match="was found nowhere"):
        verb(FILE, "f", "w = 0").apply("def f(): x = 1\n")


@pytest.mark.parametrize(
    "edit",
    [
        after("x = 1", "if x:\n    y = 2", "f"),
        before_("x = 1", "if x:\n    y = 2", "f"),
        prepend_to(FILE, "f", "if z:\n    y = 2"),
        append_to(FILE, "f", "if x:\n    y = 2"),
    ],
    ids=["insert_after", "insert_before", "prepend_to", "append_to"],
)
def test_a_level_of_tabs_stays_one(edit):
    text = "def f():\n\tif a:\n\t\tb()\n\tx = 1\n"
    result = edit.apply(text)
    assert "\n\t    y = 2\n" in result
    assert all(line[:1] in ("\t", "d", "") for line in result.split("\n"))
    check(edit, text, result)
