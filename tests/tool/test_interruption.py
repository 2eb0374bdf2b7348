# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at every step of apply, upgrade and revert: nothing is lost.

A child process makes the attempt and is killed before its n-th change to the disk,
for every n, and half-way through its n-th write. Whatever is left,
`status` tells the truth of it, and both apply and revert finish.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tool.invented import NEXT_SERIES, SERIES, folders, snapshot, tree_in
from vllm_coordinates.disk import Disk
from vllm_coordinates.install import apply, revert
from vllm_coordinates.status import read_status


class QuickDisk(Disk):
    """Leaves writing through to the system: a killed process loses nothing there."""

    def write(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)

    def sync(self, folders: Iterable[Path]) -> None:
        pass


class DeadlyDisk(QuickDisk):
    """Dies of SIGKILL before the n-th change, or half-way through the n-th write."""

    def __init__(self, last: int, half: bool) -> None:
        self.left = last
        self.half = half

    def write(self, path: Path, data: bytes) -> None:
        if self.half:
            self.left -= 1
            if self.left < 0:
                super().write(path, data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
        self._step()
        super().write(path, data)

    def _step(self) -> None:
        if not self.half:
            self.left -= 1
            if self.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)

    def make_folder(self, path: Path) -> None:
        self._step()
        super().make_folder(path)

    def remove_folder(self, path: Path) -> None:
        self._step()
        super().remove_folder(path)


def attempt(command: Callable[[Disk], object], disk: Disk) -> bool:
    """Run a command in a child; whether it lived to the end."""
    child = os.fork()
    if child == 0:
        try:
            command(disk)
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0
    return True


COMMANDS = {
    "apply": lambda folder, disk: apply(tree_in(folder), series=SERIES, disk=disk),
    "upgrade": lambda folder, disk: apply(
        tree_in(folder), series=NEXT_SERIES, disk=disk
    ),
    "revert": lambda folder, disk: revert(tree_in(folder), disk=disk),
}
PREPARATIONS = {
    "apply": [],
    "upgrade": ["apply"],
    "revert": ["apply"],
}


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder for many short-lived copies, in memory where there is such."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=place) as name:
        yield Path(name)


@pytest.mark.parametrize("half", [False, True], ids=["between", "within"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_kill_at_any_step_loses_nothing(tree, scratch, command, half):
    stock, stock_folders = snapshot(tree.root), folders(tree.root)
    for preparation in PREPARATIONS[command]:
        COMMANDS[preparation](tree.root, QuickDisk())
    start = snapshot(tree.root)
    wanted = NEXT_SERIES if command == "upgrade" else SERIES
    reference = copy(tree.root, scratch / "reference")
    apply(tree_in(reference), series=wanted)
    patched = snapshot(reference)

    step, lived = 0, False
    while not lived:
        killed = copy(tree.root, scratch / "killed")
        lived = attempt(partial(COMMANDS[command], killed), DeadlyDisk(step, half))
        status = read_status(tree_in(killed), wanted.digest, wanted.modules)
        left = snapshot(killed)
        if status.condition == "stock":
            assert left == stock, step
        elif status.condition == "patched":
            assert upstream(left) == upstream(patched), step
        elif status.condition == "outdated":
            assert command == "upgrade", step
            assert upstream(left) == upstream(start), step
        else:
            assert status.condition == "unfinished", step

        again = copy(killed, scratch / "again")
        apply(tree_in(again), series=wanted, disk=QuickDisk())
        assert snapshot(again) == patched, step
        assert (
            read_status(tree_in(again), wanted.digest, wanted.modules).condition
            == "patched"
        )

        revert(tree_in(killed), disk=QuickDisk())
        assert snapshot(killed) == stock, step
        assert folders(killed) == stock_folders, step
        step += 1
    assert step > (3 if half else 10)


def test_a_kill_during_the_finishing_of_a_killed_apply_loses_nothing(tree, scratch):
    stock = snapshot(tree.root)
    for first in range(0, 9, 2):
        for second in range(0, 9, 2):
            folder = copy(tree.root, scratch / "twice")
            for step, command in ((first, "apply"), (second, "upgrade")):
                attempt(partial(COMMANDS[command], folder), DeadlyDisk(step, True))
            revert(tree_in(folder), disk=QuickDisk())
            assert snapshot(folder) == stock, (first, second)


def copy(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))


def upstream(files: dict[str, tuple[int, bytes]]) -> dict[str, tuple[int, bytes]]:
    """The files of the package, without what is staged beside them."""
    return {p: f for p, f in files.items() if p.startswith("vllm/")}
