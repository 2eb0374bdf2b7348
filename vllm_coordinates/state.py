# SPDX-License-Identifier: Apache-2.0
"""What the tool remembers of a tree: the journal, and the originals.

The journal (`state.json`) is replaced before anything changes and after
everything has, so at any moment it names every file that may differ from
upstream's and the bytes that each may have. The originals (`originals.zip`) are
complete before the journal is first written, and outlive it.
"""

import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import msgspec

from .errors import ModifiedError
from .tree import Tree

JOURNAL = "state.json"
ORIGINALS = "originals.zip"

Phase = Literal["applying", "applied", "reverting"]


class FileState(msgspec.Struct, frozen=True):
    """One file that the series touches.

    Attributes:
        path: POSIX, relative to the tree's root.
        before: SHA-256 (hex) of upstream's bytes; None for a file of ours.
        after: SHA-256 of what it is to be; None for a file that is to go.
        mode: Permission bits.
        earlier: SHA-256 of what an earlier series made of it, while the journal
            cannot rule out that it is still there.
    """

    path: str
    before: str | None
    after: str | None
    mode: int
    earlier: tuple[str, ...] = ()


class State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The journal.

    Attributes:
        phase: `"applied"`, or what is under way or was interrupted.
        origin: Whether `apply` patched the tree in place (and kept the
            originals) or `build` made the wheel that it was installed from.
        series: The digest of the series.
        version: The tree's version when it was patched.
        release: The release that it was recognised as.
        files: In the order in which `apply` writes them.
        folders: The folders that did not exist before, parents first.
        format: Of this journal.
    """

    phase: Phase
    origin: Literal["apply", "build"]
    series: str
    version: str
    release: str
    files: tuple[FileState, ...]
    folders: tuple[str, ...] = ()
    format: Literal[1] = 1

    def encode(self) -> bytes:
        """The journal as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def digest(data: bytes | None) -> str | None:
    """SHA-256 (hex) of a file's bytes; None for no file."""
    return None if data is None else hashlib.sha256(data).hexdigest()


def read_if_there(path: Path) -> bytes | None:
    """A file's bytes; None where there is no such file."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_state(tree: Tree) -> State | None:
    """The journal of `tree`; None if it has none.

    Raises:
        ModifiedError: There is one that this version cannot read.
    """
    path = tree.state_folder / JOURNAL
    data = read_if_there(path)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=State)
    except msgspec.DecodeError as error:
        raise ModifiedError(
            f"{path} is damaged or of a newer vllm-coordinates ({error}); update the"
            " tool, or reinstall vLLM to start afresh"
        ) from None


def read_originals(tree: Tree, state: State) -> dict[str, bytes]:
    """Upstream's bytes of every file in the journal that upstream has.

    Raises:
        ModifiedError: They are not all there, as they were.
    """
    path = tree.state_folder / ORIGINALS
    try:
        with zipfile.ZipFile(path) as archive:
            kept = {name: archive.read(name) for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        kept = {}
    originals = {}
    for file in state.files:
        if file.before is not None:
            data = kept.get(file.path)
            if digest(data) != file.before or data is None:
                raise ModifiedError(
                    f"{path} no longer holds the original {file.path}; reinstall vLLM"
                )
            originals[file.path] = data
    return originals


def pack_originals(originals: Mapping[str, bytes]) -> bytes:
    """The archive for `read_originals`; equal contents give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(originals):
            archive.writestr(zipfile.ZipInfo(path), originals[path])
    return buffer.getvalue()


@contextmanager
def as_shipped(tree: Tree, state: State | None) -> Iterator[Path]:
    """A folder in which everything is as upstream ships it, for reading only.

    It is the tree itself, or, if that is patched, links to its files with the
    originals in place of patched ones and without ours.
    """
    if state is None:
        yield tree.root
        return
    touched = {file.path for file in state.files}
    # A glob does not descend into links, so folders that matter are real ones.
    real = {"vllm", *(path.split("/")[0] for path in touched)}
    with TemporaryDirectory(prefix="vllm-coordinates-") as name:
        folder = Path(name)
        for top in tree.root.iterdir():
            if top.name in real:
                _link_files(tree.root, top, folder, touched)
            else:
                (folder / top.name).symlink_to(top.absolute())
        for path, data in read_originals(tree, state).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        yield folder


def _link_files(root: Path, top: Path, folder: Path, except_for: set[str]) -> None:
    for path in top.rglob("*"):
        relative = path.relative_to(root)
        wanted = path.suffix != ".pyc" and relative.as_posix() not in except_for
        if wanted and not path.is_dir():
            (folder / relative.parent).mkdir(parents=True, exist_ok=True)
            (folder / relative).symlink_to(path.absolute())
