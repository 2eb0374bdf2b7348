# SPDX-License-Identifier: Apache-2.0
"""What a class or module gets: add_field, add_method, add_import."""

import pytest

from semantic.cases import FILE, case, check, source
from vllm_coordinates.semantic import (
    MisplacedEdit,
    add_field,
    add_import,
    add_method,
)

FIELD = add_field(FILE, "A", "label: str | None = None")
EXPLAINED = add_field(FILE, "A", 'label: str | None = None\n"""Why."""')


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        case(
            "after the last field",
            FIELD,
            '''
            @dataclass
            class A:
                """Invented."""

                x: int
                y: int = 1  # why

                def f(self): ...
            ''',
            '''
            @dataclass
            class A:
                """Invented."""

                x: int
                y: int = 1  # why
                label: str | None = None

                def f(self): ...
            ''',
        ),
        case(
            "after a field of many lines",
            FIELD,
            """
            class A(Model):
                x: int = Field(
                    default=1,
                )
                model_config = {}
            """,
            """
            class A(Model):
                x: int = Field(
                    default=1,
                )
                label: str | None = None
                model_config = {}
            """,
        ),
        case(
            "behind the string that explains the last field, set apart like it",
            EXPLAINED,
            '''
            class A:
                x: int = 1
                """Why,
                and how.
                """

                def f(self): ...
            ''',
            '''
            class A:
                x: int = 1
                """Why,
                and how.
                """

                label: str | None = None
                """Why."""

                def f(self): ...
            ''',
        ),
        case(
            "with the comment above it",
            add_field(FILE, "A", "# Last.\nlabel: int = 1"),
            """
            class A:
                x: int
            """,
            """
            class A:
                x: int
                # Last.
                label: int = 1
            """,
        ),
        case(
            "several at once",
            add_field(FILE, "A", "a: int = 1\nb: int = 2"),
            """
            class A:
                x: int
            """,
            """
            class A:
                x: int
                a: int = 1
                b: int = 2
            """,
        ),
        case(
            "of a class in a class",
            add_field(FILE, "A.B", "label: int = 1"),
            """
            class A:
                x: int

                class B:
                    y: int

                z: int
            """,
            """
            class A:
                x: int

                class B:
                    y: int
                    label: int = 1

                z: int
            """,
        ),
        case(
            "of a class without fields, after its docstring",
            FIELD,
            '''
            class A:
                """Invented."""

                def f(self): ...
            ''',
            '''
            class A:
                """Invented."""
                label: str | None = None

                def f(self): ...
            ''',
        ),
        case(
            "of a class of methods, before them",
            FIELD,
            """
            class A:
                def f(self): ...
            """,
            """
            class A:
                label: str | None = None
                def f(self): ...
            """,
        ),
        case(
            "a local declaration is no field",
            FIELD,
            """
            class A:
                x: int

                def f(self):
                    label: int = 1
            """,
            """
            class A:
                x: int
                label: str | None = None

                def f(self):
                    label: int = 1
            """,
        ),
    ],
)
def test_add_field(edit, before, after):
    check(edit, before, after)


@pytest.mark.parametrize("edit", [FIELD, EXPLAINED], ids=["bare", "explained"])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("class A:\n    label: int\n    x: int\n", id="in the middle"),
        pytest.param("class A:\n    label: str = Field(\n    )\n", id="otherwise"),
    ],
)
def test_a_field_that_is_there_is_left_alone(edit, text):
    assert edit.apply(text) == text


def test_a_class_of_one_line_takes_no_field():
    with pytest.raises(MisplacedEdit, match="the body of A was found nowhere"):
        FIELD.apply("class A: x: int = 1\n")


METHOD = add_method(
    FILE,
    "A",
    """
    @property
    def label(self) -> str:
        if self.x:
            return "x"
        return ""
    """,
)


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        case(
            "at the end of the class",
            METHOD,
            """
            class A:
                def f(self):
                    return 1


            class B:
                pass
            """,
            """
            class A:
                def f(self):
                    return 1

                @property
                def label(self) -> str:
                    if self.x:
                        return "x"
                    return ""


            class B:
                pass
            """,
        ),
        case(
            "after the class's last comment",
            add_method(FILE, "A", "def g(self): ..."),
            """
            class A:
                def f(self):
                    return 1
                    # of f

                # of A
            # of the module
            """,
            """
            class A:
                def f(self):
                    return 1
                    # of f

                # of A

                def g(self): ...
            # of the module
            """,
        ),
        case(
            "several at once",
            add_method(FILE, "A", "def g(self): ...\n\ndef h(self): ..."),
            """
            class A:
                x: int
            """,
            """
            class A:
                x: int

                def g(self): ...

                def h(self): ...
            """,
        ),
        case(
            "a function, at the end of the module",
            add_method(FILE, "", "def g():\n    return 1"),
            """
            x = 1
            # end
            """,
            """
            x = 1
            # end


            def g():
                return 1
            """,
        ),
        case(
            "in a class of tabs",
            add_method(FILE, "A", "def g(self): ..."),
            "class A:\n\tdef f(self): ...\n",
            "class A:\n\tdef f(self): ...\n\n\tdef g(self): ...\n",
        ),
    ],
)
def test_add_method(edit, before, after):
    check(edit, before, after)


def test_a_method_that_is_there_is_left_alone():
    text = source(
        """
        class A:
            @cached_property
            def label(self): ...

            def f(self): ...
        """
    )
    assert METHOD.apply(text) == text


IMPORT = add_import(FILE, "from wire.labels import Label")


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        case(
            "among those of the same package, in order",
            IMPORT,
            """
            import os

            from wire.cables import Cable
            from wire.masts import Mast

            from zebra import stripes
            """,
            """
            import os

            from wire.cables import Cable
            from wire.labels import Label
            from wire.masts import Mast

            from zebra import stripes
            """,
        ),
        case(
            "before the first of the same package",
            IMPORT,
            """
            import os

            from wire.masts import Mast
            """,
            """
            import os

            from wire.labels import Label
            from wire.masts import Mast
            """,
        ),
        case(
            "behind the comment and the brackets of the one before",
            IMPORT,
            """
            from wire.cables import (
                Cable,
                Core,
            )  # why
            x = 1
            """,
            """
            from wire.cables import (
                Cable,
                Core,
            )  # why
            from wire.labels import Label
            x = 1
            """,
        ),
        case(
            "in order of all, where there is none of the same package",
            IMPORT,
            """
            import os
            from zebra import stripes
            """,
            """
            import os
            from wire.labels import Label
            from zebra import stripes
            """,
        ),
        case(
            "not among those for type checkers",
            IMPORT,
            """
            import os

            if TYPE_CHECKING:
                from wire.labels import Label
            """,
            """
            import os
            from wire.labels import Label

            if TYPE_CHECKING:
                from wire.labels import Label
            """,
        ),
        case(
            "after a docstring and imports from the future",
            IMPORT,
            '''
            # Header
            """Invented."""

            from __future__ import annotations

            x = 1
            ''',
            '''
            # Header
            """Invented."""

            from __future__ import annotations

            from wire.labels import Label

            x = 1
            ''',
        ),
        case(
            "after a docstring that is all there is",
            IMPORT,
            '''
            """Invented."""
            ''',
            '''
            """Invented."""

            from wire.labels import Label
            ''',
        ),
        case(
            "under the header of a module without imports",
            IMPORT,
            """
            # Header
            x = 1
            """,
            """
            # Header
            from wire.labels import Label

            x = 1
            """,
        ),
        case(
            "of a module by its name",
            add_import(FILE, "import wire.labels as labels"),
            """
            import wire
            import wire.masts
            """,
            """
            import wire
            import wire.labels as labels
            import wire.masts
            """,
        ),
    ],
)
def test_add_import(edit, before, after):
    check(edit, before, after)
