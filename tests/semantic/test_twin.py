# SPDX-License-Identifier: Apache-2.0
"""A name beside another wherever that one goes: twin, and threads, which counts."""

from collections import Counter

import pytest

from semantic.cases import FILE, MemoryTree, case, check, source
from vllm_coordinates.semantic import MisplacedEdit, Twin, threads, twin


def thread(places: int, **options: tuple[str, ...]) -> Twin:
    options = {"within": ("vllm/**/*.py",), **options}
    return twin("session_id", "position_id", places=places, **options)


TWIN = thread(places=1)


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        case("nothing to thread", TWIN, "send(request_id=1)", "send(request_id=1)"),
        case(
            "a parameter, last so that nothing positional shifts",
            TWIN,
            """
            def f(self, session_id: str | None = None, weight=0) -> None: ...
            """,
            """
            def f(self, session_id: str | None = None, weight=0, """
            """position_id: str | None = None) -> None: ...
            """,
        ),
        case(
            "a parameter on a line of its own",
            TWIN,
            """
            def f(
                session_id: str | None = None,  # whose
                weight: int = 0,  # how much
            ): ...
            """,
            """
            def f(
                session_id: str | None = None,  # whose
                weight: int = 0,  # how much
                position_id: str | None = None,
            ): ...
            """,
        ),
        case(
            "a parameter without a type, a default or both",
            TWIN,
            """
            def f(session_id=None): ...
            def g(session_id: str): ...
            def h(session_id): ...
            """,
            """
            def f(session_id=None, position_id=None): ...
            def g(session_id: str, position_id: str): ...
            def h(session_id, position_id): ...
            """,
        ),
        case(
            "a parameter before **kwargs, by keyword only or not",
            TWIN,
            """
            def f(session_id=None, **kwargs): ...
            def g(session_id=None, *args, **kwargs: Any): ...
            def h(a, /, *, session_id=None): ...
            """,
            """
            def f(session_id=None, position_id=None, **kwargs): ...
            def g(session_id=None, *args, position_id=None, **kwargs: Any): ...
            def h(a, /, *, session_id=None, position_id=None): ...
            """,
        ),
        case(
            "a parameter of a lambda",
            TWIN,
            "f = lambda session_id=None: session_id",
            "f = lambda session_id=None, position_id=None: session_id",
        ),
        case(
            "every overload",
            TWIN,
            """
            @overload
            def f(session_id: None = None) -> None: ...
            @overload
            def f(session_id: str = ...) -> str: ...
            """,
            """
            @overload
            def f(session_id: None = None, position_id: None = None) -> None: ...
            @overload
            def f(session_id: str = ..., position_id: str = ...) -> str: ...
            """,
        ),
        case(
            "a keyword argument, right beside",
            TWIN,
            "send(1, session_id=session_id, weight=2)",
            "send(1, session_id=session_id, position_id=position_id, weight=2)",
        ),
        case(
            "a keyword argument on a line of its own",
            TWIN,
            """
            send(
                session_id=request.session_id,  # whose
                weight=2,
            )
            """,
            """
            send(
                session_id=request.session_id,  # whose
                position_id=request.position_id,
                weight=2,
            )
            """,
        ),
        case(
            "the value follows the name, also where it is only a part of one",
            TWIN,
            'send(session_id=self._get_session_id(a.get("session_id")))',
            'send(session_id=self._get_session_id(a.get("session_id")), '
            'position_id=self._get_position_id(a.get("position_id")))',
        ),
        case(
            "a keyword argument of many lines",
            TWIN,
            """
            def f():
                send(
                    session_id=find_session_id(
                        a,
                    ),
                )
            """,
            """
            def f():
                send(
                    session_id=find_session_id(
                        a,
                    ),
                    position_id=find_position_id(
                        a,
                    ),
                )
            """,
        ),
        case(
            "a keyword argument of dict",
            TWIN,
            "inputs = dict(session_id=session_id)",
            "inputs = dict(session_id=session_id, position_id=position_id)",
        ),
        case(
            "a positional argument, by keyword so that nothing shifts",
            TWIN,
            """
            send(session_id, weight, kind=kind)
            send(
                weight,
                session_id,
            )
            """,
            """
            send(session_id, weight, kind=kind, position_id=position_id)
            send(
                weight,
                session_id,
                position_id=position_id,
            )
            """,
        ),
        case(
            "a positional argument before *args and **kwargs",
            TWIN,
            "send(session_id, *args, **kwargs)",
            "send(session_id, *args, **kwargs, position_id=position_id)",
        ),
        case(
            "an assignment",
            TWIN,
            """
            def f(self):
                session_id = self._get_session_id(request)  # whose
                return session_id
            """,
            """
            def f(self):
                session_id = self._get_session_id(request)  # whose
                position_id = self._get_position_id(request)
                return session_id
            """,
        ),
        case(
            "an assignment to an attribute",
            TWIN,
            """
            class A:
                def __init__(self, session_id=None):
                    self.session_id = session_id
            """,
            """
            class A:
                def __init__(self, session_id=None, position_id=None):
                    self.session_id = session_id
                    self.position_id = position_id
            """,
        ),
        case(
            "an assignment of many lines, laid out alike",
            TWIN,
            """
            def f():
                session_id = find_session_id(
                    a,
                )
                return session_id
            """,
            """
            def f():
                session_id = find_session_id(
                    a,
                )
                position_id = find_position_id(
                    a,
                )
                return session_id
            """,
        ),
        case(
            "behind text that is not ASCII",
            TWIN,
            "send('🎈', session_id=session_id)  # ü",
            "send('🎈', session_id=session_id, position_id=position_id)  # ü",
        ),
        case(
            "not a field, which needs a place of its own",
            TWIN,
            """
            class A:
                session_id: str | None = None
            """,
            """
            class A:
                session_id: str | None = None
            """,
        ),
        case(
            "not a name that only contains the old one",
            TWIN,
            "send(mcp_session_id=mcp_session_id, session_ids=session_ids)",
            "send(mcp_session_id=mcp_session_id, session_ids=session_ids)",
        ),
    ],
)
def test_twin(edit, before, after):
    check(edit, before, after)


@pytest.mark.parametrize(
    "text",
    [
        "def f(position_id, session_id): ...\n",
        "send(session_id, position_id)\n",
        "send(position_id=None, session_id=session_id)\n",
    ],
)
def test_what_threads_both_already_is_left_alone(text):
    assert TWIN.apply(text) == text


TREE = {
    "vllm/a.py": "def f(session_id=None):\n    send(session_id=session_id)\n",
    "vllm/mcp/b.py": "connect(session_id=session_id)\n",
    "vllm/c.py": "send(request_id)\n",
}


def rewritten(edit: Twin) -> dict[str, str]:
    tree = MemoryTree(dict(TREE))
    edit.rewrite(tree)
    return tree.texts


def test_the_whole_tree_is_threaded():
    texts = rewritten(thread(places=3))
    assert texts == {
        "vllm/a.py": "def f(session_id=None, position_id=None):\n"
        "    send(session_id=session_id, position_id=position_id)\n",
        "vllm/mcp/b.py": "connect(session_id=session_id, position_id=position_id)\n",
        "vllm/c.py": TREE["vllm/c.py"],
    }


def test_where_the_name_means_something_else_it_is_left_alone():
    texts = rewritten(thread(places=2, outside=("vllm/mcp/*",)))
    assert texts["vllm/mcp/b.py"] == TREE["vllm/mcp/b.py"]


@pytest.mark.parametrize(("places", "stated"), [(2, "twice"), (4, "4 times")])
def test_the_places_of_the_tree_are_counted(places, stated):
    with pytest.raises(MisplacedEdit) as caught:
        rewritten(thread(places=places))
    assert str(caught.value) == (
        "a place that threads session_id was found 3 times in vllm/**/*.py,"
        f" expected {stated}"
    )


class Blind(Twin):
    """A twin that overlooks arguments."""

    def sites_in(self, source):
        return (n for n in super().sites_in(source) if n.kind() != "keyword_argument")


def test_a_thread_that_the_twin_does_not_know_is_noticed():
    text = "def f(session_id=None):\n    send(session_id=session_id)\n"
    edit = Blind(
        old="session_id", new="position_id", within=("*",), outside=(), places=1
    )
    with pytest.raises(MisplacedEdit) as caught:
        edit.rewrite(MemoryTree({FILE: text}))
    assert str(caught.value) == (
        f"position_id beside session_id (passes:f) was found nowhere in {FILE},"
        " expected once"
    )


def test_a_file_that_is_not_python_is_named():
    tree = MemoryTree({FILE: "def f(session_id=None):\n    return 1\n<<<<<<< HEAD\n"})
    with pytest.raises(MisplacedEdit) as caught:
        thread(places=1).rewrite(tree)
    assert str(caught.value) == (
        f"valid Python at line 3 was found nowhere in {FILE}, expected once"
    )


def test_a_tree_that_is_refused_keeps_its_texts():
    tree = MemoryTree(dict(TREE))
    with pytest.raises(MisplacedEdit):
        thread(places=1).rewrite(tree)
    assert tree.texts == TREE


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(a, label): ...", {"takes:f": 1}),
        ("def f(label, /): ...", {"takes:f": 1}),
        ("def f(*, label=1): ...", {"takes:f": 1}),
        ("async def f(label): ...", {"takes:f": 1}),
        ("class A:\n    def f(self, label): ...", {"takes:A.f": 1}),
        ("class A:\n    def f(self):\n        g(label=1)", {"passes:A.f": 1}),
        ("def f():\n    g(label)\n    g(a, label=label)", {"passes:f": 2}),
        ("def f():\n    g(h(label))", {"passes:f": 1}),
        ("g(label)", {"passes:": 1}),
        ("f = lambda label: label", {"takes:": 1}),
        ("def f():\n    def g(label): ...", {"takes:f.g": 1}),
        ("@g(label)\ndef f():\n    pass", {"passes:f": 1}),
        ('def f():\n    f"""\n    {g(label)}"""', {"passes:f": 1}),
        ("x = '\x0c'\n\ng(\n\n    label,\n)", {"passes:": 1}),
        ("label = 1\ng(labels, other=label.a)", {}),
        ("def f(*label, **labels): ...", {}),
    ],
)
def test_threads_are_counted_by_what_takes_or_passes_the_name(text, found):
    assert threads(source(text), "label") == [Counter(found)]


def test_threads_of_several_names_are_counted_apart():
    text = "def f(label, twin):\n    g(label)\n    g(label, twin)"
    label, twin = threads(text, "label", "twin")
    assert label == {"takes:f": 1, "passes:f": 2}
    assert twin == {"takes:f": 1, "passes:f": 1}
