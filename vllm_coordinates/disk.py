# SPDX-License-Identifier: Apache-2.0
"""Changes to a tree that an interruption cannot leave half-written."""

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import BusyError


class Disk:
    """Writes files in two steps: `stage` beside the target, then `commit` by rename.

    Until `commit` the target is untouched, so running out of space is noticed
    before anything changes; a rename is all or nothing. A rename also leaves alone
    a file that an installer hard-linked into its cache.
    """

    def stage(self, target: Path, data: bytes, mode: int) -> None:
        """Put `data` beside `target`, on disk.

        Args:
            target: The file to be written; its owner is kept, a new file gets
                its folder's.
            data: All of its bytes.
            mode: Its permission bits.
        """
        staged = staged_name(target)
        self.write(staged, data)
        staged.chmod(mode)
        owner = (target if target.exists() else target.parent).stat()
        if (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
            with suppress(PermissionError):
                os.chown(staged, owner.st_uid, owner.st_gid)

    def commit(self, target: Path) -> None:
        """Make what was staged for `target` the target, in one step."""
        self.rename(staged_name(target), target)

    def discard(self, target: Path) -> None:
        """Take away what was staged for `target`, if anything was."""
        if staged_name(target).exists():
            self.remove(staged_name(target))

    def replace(self, target: Path, data: bytes, mode: int) -> None:
        """`stage`, `commit` and make it last."""
        self.stage(target, data, mode)
        self.commit(target)
        self.sync([target.parent])

    def sync(self, folders: Iterable[Path]) -> None:
        """Make renames and removals in `folders` last."""
        for folder in folders:
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    # The steps below are the only ones that change anything. They are methods so
    # that a test can interrupt each.

    def write(self, path: Path, data: bytes) -> None:
        """Write a file that nobody reads yet."""
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        """Put a file in the place of another."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def make_folder(self, path: Path) -> None:
        """Make a folder whose parent exists."""
        path.mkdir()

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()


def staged_name(target: Path) -> Path:
    """Where `target`'s new bytes wait for their rename."""
    return target.with_name(f".{target.name}.coordinates")


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold `folder` against other processes of this tool; the lock dies with us.

    The lock is on the folder itself, so it leaves nothing behind. A file system
    that cannot lock folders (some network ones) goes without: two processes would
    then write the same bytes by the same renames.

    Raises:
        BusyError: Another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise BusyError(
                    f"another vllm-coordinates is at work on {folder}; wait until it"
                    " is done, then try again"
                ) from None
        yield
    finally:
        os.close(descriptor)
