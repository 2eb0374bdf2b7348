# SPDX-License-Identifier: Apache-2.0
"""Every edit of the series on the real sources of every tested release."""

from collections.abc import Iterator

import pytest

from patches.replay import Step, patched_texts, plan_for, steps
from trees import RELEASE_NAMES
from vllm_coordinates.semantic import FileEdit, MisplacedEdit, Twin
from vllm_coordinates.semantic.source import end, start

every_release = pytest.mark.parametrize("release", RELEASE_NAMES)


def file_edits(release: str) -> Iterator[tuple[Step, FileEdit, str]]:
    """The edits of one file, each with the file's text right before it."""
    for step in steps(release):
        if isinstance(step.edit, FileEdit):
            text = step.tree().read(step.edit.file)
            assert text is not None, step.edit
            yield step, step.edit, text


def twins(release: str) -> Iterator[tuple[Step, Twin, dict[str, str]]]:
    """The edits of the whole tree, each with the files that it concerns."""
    for step in steps(release):
        if isinstance(step.edit, Twin):
            yield step, step.edit, dict(step.edit.files(step.tree()))


def test_the_series_has_edits_of_both_kinds():
    release = RELEASE_NAMES[-1]
    assert len(list(file_edits(release))) > 40
    assert len(list(twins(release))) == 1


@every_release
def test_every_edit_finds_as_many_places_as_it_states(release):
    for _, edit, text in file_edits(release):
        assert len(edit.sites(text)) == edit.places, edit
    for _, edit, texts in twins(release):
        places = [node for text in texts.values() for node in edit.sites(text)]
        assert len(places) == edit.places


@every_release
def test_every_edit_is_needed(release):
    """Upstream has not what an edit brings in."""
    for _, edit, text in file_edits(release):
        assert all(site.change for site in edit.sites(text)), edit
    for _, edit, texts in twins(release):
        changed = [path for path, text in texts.items() if edit.apply(text) != text]
        assert len(changed) > 10


@every_release
def test_an_edit_of_a_patched_file_changes_nothing(release):
    patched = patched_texts(release)
    for _, edit, _ in file_edits(release):
        assert edit.apply(patched[edit.file]) == patched[edit.file], edit
    for _, edit, texts in twins(release):
        for path in texts:
            assert edit.apply(patched[path]) == patched[path], path


@every_release
def test_every_patched_file_compiles(release):
    changes = plan_for(release).changes
    assert len(changes) > 20
    for change in changes:
        compile(change.after, change.path, "exec", dont_inherit=True)


def refusal(step: Step, **other: str) -> tuple[str, str, int, int]:
    """What an edit says of a tree in which some files have another text."""
    with pytest.raises(MisplacedEdit) as caught:
        step.edit.rewrite(step.tree(**other))
    error = caught.value
    return error.file, error.anchor, error.expected, error.found


@every_release
def test_a_place_that_is_gone_is_named(release):
    for step, edit, text in file_edits(release):
        for site in edit.sites(text):
            begin, stop = site.anchor
            # The top of a module is there as long as anything is in it.
            moved = f"{text[:begin]}moved{text[stop:]}" if begin < stop else ""
            assert refusal(step, **{edit.file: moved}) == (
                edit.file,
                edit.where(),
                edit.places,
                edit.places - 1,
            )


@every_release
def test_a_place_that_is_there_twice_is_named(release):
    for step, edit, text in file_edits(release):
        if edit.scope:
            assert refusal(step, **{edit.file: f"{text}\n{text}"}) == (
                edit.file,
                edit.where(),
                edit.places,
                edit.places * 2,
            )


@every_release
def test_a_thread_that_is_gone_is_counted(release):
    for step, edit, texts in twins(release):
        for text in texts.values():
            places = list(edit.sites(text))
            for node in places:
                moved = f"{text[: start(node)]}moved=1{text[end(node) :]}"
                assert len(list(edit.sites(moved))) == len(places) - 1
        path, text = next(item for item in texts.items() if any(edit.sites(item[1])))
        node = next(edit.sites(text))
        moved = f"{text[: start(node)]}moved=1{text[end(node) :]}"
        assert refusal(step, **{path: moved}) == (
            ", ".join(edit.within),
            "a place that threads session_id",
            edit.places,
            edit.places - 1,
        )
