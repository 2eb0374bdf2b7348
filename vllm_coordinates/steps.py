# SPDX-License-Identifier: Apache-2.0
"""The steps of a change to a tree; each leaves what the journal says."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path, PurePosixPath

from .disk import Disk, staged_name
from .errors import UnfinishedError, WriteError, enumerate_paths
from .state import JOURNAL, State, read_if_there
from .tree import Tree


@dataclass(frozen=True)
class Target:
    """What one file is to become; `data` is None for a file that is to go."""

    path: str
    data: bytes | None
    mode: int


def stage(disk: Disk, tree: Tree, targets: Iterable[Target]) -> None:
    """Put the bytes that differ beside their targets, in new folders where need be."""
    for target in targets:
        path = tree.root / target.path
        if target.data is None or read_if_there(path) == target.data:
            disk.discard(path)
            continue
        for folder in missing_folders(tree.root, [target]):
            disk.make_folder(tree.root / folder)
        disk.stage(path, target.data, target.mode)


def unstage(disk: Disk, tree: Tree, targets: Iterable[Target]) -> None:
    """Take away what `stage` put there."""
    for target in targets:
        disk.discard(tree.root / target.path)


def put_in_place(disk: Disk, tree: Tree, targets: Sequence[Target]) -> None:
    """Rename what was staged, remove what is to go, and read the result back.

    Raises:
        UnfinishedError: Something else wrote to the files meanwhile.
    """
    for target in targets:
        path = tree.root / target.path
        if staged_name(path).exists():
            disk.commit(path)
        elif target.data is None and path.exists():
            disk.remove(path)
        # Python trusts unchecked bytecode whatever becomes of the source.
        for cached in bytecode_of(path):
            disk.remove(cached)
    folders = {(tree.root / target.path).parent for target in targets}
    disk.sync(folder for folder in sorted(folders) if folder.is_dir())
    wrong = [
        target.path
        for target in targets
        if read_if_there(tree.root / target.path) != target.data
    ]
    if wrong:
        raise UnfinishedError(
            f"{enumerate_paths(wrong)} in {tree.root} changed while it was being"
            " written; run the command again"
        )


def bytecode_of(source: Path) -> list[Path]:
    """The compiled forms of a source that Python would find."""
    if source.suffix != ".py":
        return []
    cached = source.parent / "__pycache__"
    return sorted(cached.glob(f"{escape(source.stem)}.*.pyc"))


def remove_folders(disk: Disk, tree: Tree, folders: Iterable[str]) -> None:
    """Remove those of the folders that `apply` made and nothing is in any more."""
    for name in sorted(folders, reverse=True):
        for folder in (tree.root / name / "__pycache__", tree.root / name):
            if folder.is_dir() and not any(folder.iterdir()):
                disk.remove_folder(folder)


def write_journal(disk: Disk, tree: Tree, state: State) -> None:
    """Replace the journal."""
    disk.replace(tree.state_folder / JOURNAL, state.encode(), 0o644)


def forget(disk: Disk, tree: Tree) -> None:
    """Remove the state, journal first: from then on the tree counts as stock."""
    folder = tree.state_folder
    if not folder.is_dir():
        return
    journal = folder / JOURNAL
    for path in sorted(folder.iterdir(), key=lambda path: path != journal):
        disk.remove(path)
    disk.remove_folder(folder)
    disk.sync([folder.parent])


@contextmanager
def half_done(command: str) -> Iterator[None]:
    """Say of a fault of the system that it left the tree between two states."""
    try:
        yield
    except OSError as error:
        raise WriteError(
            f"{error.filename}: {error.strerror}; {command} stopped half-way: mend"
            " that, then run `vllm-coordinates apply` or `revert` to finish"
        ) from error


def nothing_changed(error: OSError) -> WriteError:
    """A fault of the system that came before anything was put in place."""
    return WriteError(
        f"{error.filename}: {error.strerror}; nothing was changed: mend that, then"
        " try again"
    )


def missing_folders(root: Path, targets: Iterable[Target]) -> list[str]:
    """The folders that the targets need and that are not there, parents first."""
    missing = {
        parent.as_posix()
        for target in targets
        if target.data is not None
        for parent in PurePosixPath(target.path).parents
        if not (root / parent).exists()
    }
    return sorted(missing)
