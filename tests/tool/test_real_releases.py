# SPDX-License-Identifier: Apache-2.0
"""The series and the tool on the sources of every tested release."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

import pytest

from sources import sources_of
from tool.invented import tree_in
from vllm_coordinates.disk import Disk
from vllm_coordinates.errors import AnchorError
from vllm_coordinates.install import apply, revert
from vllm_coordinates.plan import TreeFiles, make_plan
from vllm_coordinates.releases import RELEASES
from vllm_coordinates.semantic import Edit, FileEdit, Twin
from vllm_coordinates.series import Patch, Series, load_series, named_files
from vllm_coordinates.status import read_status
from vllm_coordinates.tree import Tree


@pytest.fixture(scope="module", params=[row.version for row in RELEASES])
def tree(request: pytest.FixtureRequest, tmp_path_factory) -> Tree:
    """A release's sources, as links to the kept ones; each test leaves them stock."""
    sources = sources_of(request.param, "rust")
    folder = tmp_path_factory.mktemp(request.param)
    for part in ("vllm", "rust"):
        shutil.copytree(
            sources / part,
            folder / part,
            copy_function=os.link,
            ignore=shutil.ignore_patterns("*.json", "__pycache__"),
        )
    shutil.copy(sources / "PKG-INFO", folder)
    return tree_in(folder)


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file below a folder: its permissions and the hash of its bytes."""
    return {
        path.relative_to(folder).as_posix(): (
            path.stat().st_mode,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_apply_twice_changes_nothing_and_revert_restores_every_byte(tree):
    stock = contents(tree.root)
    outcome = apply(tree)
    once = contents(tree.root)

    assert set(outcome.added) == load_series().modules.keys()
    assert len(outcome.changed) > 15
    status = read_status(tree, load_series().digest, load_series().modules)
    assert (status.condition, status.supported) == ("patched", True)
    assert not apply(tree)
    assert contents(tree.root) == once

    revert(tree)
    assert contents(tree.root) == stock


def test_the_patches_sources_name_every_file_that_they_change(tree):
    globs = [name.replace("**/", "") for name in named_files()]
    plan = make_plan(tree.root, tree.version, tree.version)
    changed = [change.path for change in plan.changes if change.before is not None]
    assert [p for p in changed if not any(fnmatch(p, g) for g in globs)] == []


class ForbiddenDisk(Disk):
    """Nothing may be written to it."""

    def _refuse(self, *arguments: object) -> None:
        raise AssertionError(f"a refused apply wrote: {arguments}")

    write = rename = remove = make_folder = remove_folder = _refuse  # type: ignore[assignment]


@dataclass(frozen=True)
class Name:
    """A name that an edit looks for in a file as upstream ships it."""

    patch: str
    file: str
    start: int
    end: int


def names_of(tree: Tree, patch: Patch) -> Iterator[Name]:
    """The first name at the first place of each edit that the edit insists on.

    An edit of what an earlier one put there has no place in upstream's file; the top
    of a module is there as long as the module is, and has no name.
    """
    for edit in patch.edits:
        if isinstance(edit, FileEdit) and edit.since <= tree.version:
            text = (tree.root / edit.file).read_text()
            sites = edit.sites(text)
            if sites and sites[0].anchor != (0, 0):
                yield Name(patch.name, edit.file, *first_name(edit, text))


@pytest.fixture(scope="module")
def every_name(tree: Tree) -> list[Name]:
    """What the whole series looks for."""
    return [name for patch in load_series().patches for name in names_of(tree, patch)]


def first_name(edit: FileEdit, text: str) -> tuple[int, int]:
    sites = edit.sites(text)
    start, end = sites[0].anchor
    for name in re.finditer(r"\b[^\W\d]\w*", text[start:end]):
        found = start + name.start(), start + name.end()
        if len(edit.sites(without(text, *found))) < len(sites):
            return found
    raise AssertionError(f"{edit.where()} is found whatever its names are")


def without(text: str, start: int, end: int) -> str:
    """The text with the name from `start` to `end` turned into another."""
    return f"{text[:end]}_moved{text[end:]}"


def refusal_with(
    tree: Tree, file: str, text: str | None, series: Series | None = None
) -> AnchorError:
    """What apply says when a file has another text, or is gone."""
    path = tree.root / file
    kept = path.with_name("kept")
    path.rename(kept)
    try:
        if text is not None:
            path.write_text(text)
        with pytest.raises(AnchorError) as caught:
            apply(tree, series=series, disk=ForbiddenDisk())
        return caught.value
    finally:
        path.unlink(missing_ok=True)
        kept.rename(path)


def series_for(file: str) -> Series:
    """What the series does to one file, apart from threading names through it."""
    patches = (
        replace(patch, edits=tuple(e for e in patch.edits if concerns(e, file)))
        for patch in load_series().patches
    )
    return Series(tuple(patches), {}, "0" * 64)


def concerns(edit: Edit, file: str) -> bool:
    return isinstance(edit, FileEdit) and edit.file == file


@pytest.mark.parametrize("patch", load_series().patches, ids=lambda patch: patch.name)
def test_an_anchor_that_moved_is_named_and_nothing_is_written(tree, every_name, patch):
    for name in (name for name in every_name if name.patch == patch.name):
        text = (tree.root / name.file).read_text()
        moved = without(text, name.start, name.end)

        error = refusal_with(tree, name.file, moved, series_for(name.file))

        assert replace(name, patch=error.patch) in every_name
        assert error.found != error.expected
        assert str(error) == (
            f"patch {error.patch} does not fit {name.file} of vLLM {tree.version}:"
            f" {error.anchor} was found {times(error.found)}, expected"
            f" {times(error.expected)}; nothing was written: restore that file, or wait"
            " for a series that supports it"
        )


@pytest.mark.parametrize("patch", load_series().patches, ids=lambda patch: patch.name)
def test_a_file_that_is_gone_is_noticed_and_nothing_is_written(tree, patch):
    file = next(edit.file for edit in patch.edits if isinstance(edit, FileEdit))
    error = refusal_with(tree, file, None)
    assert f" of vLLM {tree.version}: " in str(error)


def test_a_place_that_no_longer_threads_the_label_is_noticed(tree):
    patches = load_series().patches
    edited = {e.file for p in patches for e in p.edits if isinstance(e, FileEdit)}
    twins = [(p, e) for p in patches for e in p.edits if isinstance(e, Twin)]
    assert twins
    for patch, twin in twins:
        files = twin.files(TreeFiles(tree.root))
        file, text = next((f, t) for f, t in files if f not in edited)
        site = next(iter(twin.sites(text)))
        at = text.index(twin.old, site.range().start.index) + len(twin.old)

        error = refusal_with(tree, file, without(text, at, at))

        assert error.patch == patch.name
        assert f" of vLLM {tree.version}: " in str(error)


def times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
