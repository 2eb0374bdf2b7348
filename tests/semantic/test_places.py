# SPDX-License-Identifier: Apache-2.0
"""Every verb: what is there is left alone, and places are counted."""

from collections.abc import Collection

import pytest

from semantic.cases import FILE, MemoryTree, source
from semantic.verbs import EDITS, SEND_CALL, STOCK
from vllm_coordinates.semantic import (
    MisplacedEdit,
    add_argument,
    add_element,
    add_field,
    add_import,
    add_method,
    add_parameter,
    append_to,
    insert_after,
    insert_before,
    prepend_to,
    replace,
    replace_body,
    replace_condition,
    twin,
)

AT_AN_ANCHOR = {
    "insert_after",
    "insert_before",
    "replace",
    "replace_condition",
    "add_argument",
    "add_element",
}

AT_THE_TOP = {"add_import"}
TAKE_AWAY = {"replace", "replace_body"}
DONE_ONCE_IT_IS_THERE = {"add_import", "replace_condition"}


def each_verb(*, but: Collection[str] = ()) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("verb", [verb for verb in EDITS if verb not in but])


every_verb = each_verb()
at_an_anchor = each_verb(but=EDITS.keys() - AT_AN_ANCHOR)
in_a_definition = each_verb(but=AT_AN_ANCHOR)


@every_verb
def test_applied_twice_changes_nothing(verb):
    once = EDITS[verb].apply(STOCK)
    assert once != STOCK
    assert EDITS[verb].apply(once) == once


@each_verb(but=TAKE_AWAY)
def test_what_others_have_put_in_since_is_no_reason_to_do_it_again(verb):
    once = EDITS[verb].apply(STOCK)
    for name in EDITS.keys() - TAKE_AWAY:
        both = EDITS[name].apply(once)
        assert EDITS[verb].apply(both) == both, name


@every_verb
def test_the_result_is_python(verb):
    compile(EDITS[verb].apply(STOCK), FILE, "exec", dont_inherit=True)


@at_an_anchor
def test_an_anchor_that_moved_is_found_nowhere(verb):
    edit = EDITS[verb]
    elsewhere = STOCK.replace("Courier", "Messenger")
    gone = source(
        "class Courier:\n    def carry(self): pass\n    def key(self): pass\n"
    )
    for text in (elsewhere, gone):
        with pytest.raises(MisplacedEdit) as caught:
            edit.apply(text)
        assert str(caught.value) == (
            f"{edit.where()} was found nowhere in {FILE}, expected once"
        )
        assert (caught.value.expected, caught.value.found) == (1, 0)


@in_a_definition
def test_a_definition_that_is_gone_is_found_nowhere(verb):
    edit = EDITS[verb]
    with pytest.raises(MisplacedEdit) as caught:
        edit.apply("")
    assert str(caught.value) == (
        f"{edit.where()} was found nowhere in {FILE}, expected once"
    )


@each_verb(but=AT_THE_TOP)
def test_a_place_that_is_there_twice_is_refused(verb):
    edit = EDITS[verb]
    with pytest.raises(MisplacedEdit) as caught:
        edit.apply(STOCK + STOCK)
    assert str(caught.value) == (
        f"{edit.where()} was found twice in {FILE}, expected once"
    )


@each_verb(but=DONE_ONCE_IT_IS_THERE)
def test_half_done_is_refused(verb):
    done = EDITS[verb].apply(STOCK)
    with pytest.raises(MisplacedEdit, match="was found twice in"):
        EDITS[verb].apply(done + STOCK)


@pytest.mark.parametrize(
    ("verb", "where"),
    [
        ("insert_after", "`wire.send($$$)` in Courier.carry"),
        ("insert_before", "`wire.send($$$)` in Courier.carry"),
        ("replace", "`wire.send(parcel, weight=weight)` in Courier.carry"),
        ("replace_condition", "`if parcel:` in Courier.carry"),
        ("replace_body", "the body of Courier.carry"),
        ("add_argument", "`wire.send($$$)` in Courier.carry"),
        ("add_element", "`hash($INTO)` in Courier.key"),
        ("add_import", "the body of the module"),
        ("add_field", "the body of Courier"),
        ("add_method", "the body of Courier"),
        ("add_parameter", "the signature of Courier.carry"),
        ("prepend_to", "the body of Courier.carry"),
        ("append_to", "a reachable end of Courier.carry"),
    ],
)
def test_a_message_names_the_place_in_words(verb, where):
    assert EDITS[verb].where() == where


@every_verb
def test_a_site_tells_the_syntax_that_names_the_place(verb):
    edit = EDITS[verb]
    (site,) = edit.sites(STOCK)
    begin, stop = site.anchor
    named = {
        "replace_condition": "parcel",
        "add_element": "hash((self.name, self.route))",
        "add_import": "",
        **dict.fromkeys(["insert_after", "insert_before", "replace"], SEND_CALL),
        "add_argument": SEND_CALL,
    }
    assert STOCK[begin:stop] == named.get(verb, edit.scope.rpartition(".")[2])


def test_the_module_needs_no_naming():
    edit = replace(FILE, "", "import wire", "import cable")
    assert edit.where() == "`import wire`"


@pytest.mark.parametrize("places", [2, 3])
def test_as_many_places_as_stated_are_changed(places):
    edit = add_argument(FILE, "", "send($$$)", "label=1", places=places)
    assert edit.apply("send(1)\n" * places) == "send(1, label=1)\n" * places


def test_fewer_places_than_stated_are_refused():
    edit = add_argument(FILE, "", "send($$$)", "label=1", places=3)
    with pytest.raises(MisplacedEdit) as caught:
        edit.apply("send(1)\nsend(2)\n")
    assert str(caught.value) == (
        f"`send($$$)` was found twice in {FILE}, expected 3 times"
    )


def test_an_anchor_counts_in_its_scope_only():
    edit = add_argument(FILE, "A.f", "send()", "label=1")
    before = source(
        """
        class A:
            def f(self):
                send()

            def g(self):
                send()

        def f():
            send()
        """
    )
    assert edit.apply(before) == before.replace("send()", "send(label=1)", 1)


@every_verb
def test_a_file_that_makes_no_sense_is_no_place(verb):
    with pytest.raises(MisplacedEdit, match="was found nowhere"):
        EDITS[verb].apply(f"{STOCK}        broken = (\n")


@every_verb
def test_a_file_that_is_gone_is_found_nowhere(verb):
    with pytest.raises(MisplacedEdit) as caught:
        EDITS[verb].rewrite(MemoryTree({}))
    assert str(caught.value) == (f"the file was found nowhere in {FILE}, expected once")


@every_verb
def test_only_the_named_file_is_rewritten(verb):
    tree = MemoryTree({FILE: STOCK, "vllm/other.py": STOCK})
    EDITS[verb].rewrite(tree)
    assert tree.texts == {FILE: EDITS[verb].apply(STOCK), "vllm/other.py": STOCK}


@every_verb
def test_a_refused_edit_writes_nothing(verb):
    tree = MemoryTree({FILE: ""})
    with pytest.raises(MisplacedEdit):
        EDITS[verb].rewrite(tree)
    assert tree.texts == {FILE: ""}


def test_a_verb_says_since_when_it_is_needed():
    edits = [
        insert_after(FILE, "", "a", "b", since="0.31.0"),
        insert_before(FILE, "", "a", "b", since="0.31.0"),
        replace(FILE, "", "a", "b", since="0.31.0"),
        replace_condition(FILE, "", "a", "b", since="0.31.0"),
        replace_body(FILE, "f", "b", since="0.31.0"),
        add_argument(FILE, "", "f()", "b=1", since="0.31.0"),
        add_element(FILE, "", "f($INTO)", "b", since="0.31.0"),
        add_import(FILE, "import b", since="0.31.0"),
        add_field(FILE, "A", "b: int", since="0.31.0"),
        add_method(FILE, "A", "def b(self): ...", since="0.31.0"),
        add_parameter(FILE, "f", "b=1", since="0.31.0"),
        prepend_to(FILE, "f", "b", since="0.31.0"),
        append_to(FILE, "f", "b", since="0.31.0"),
        twin("a", "b", within=(FILE,), places=1, since="0.31.0"),
    ]
    assert {edit.since for edit in edits} == {"0.31.0"}
