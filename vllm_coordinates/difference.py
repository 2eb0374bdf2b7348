# SPDX-License-Identifier: Apache-2.0
"""The unified diff between upstream's files and what the series makes of them."""

from collections.abc import Iterable, Iterator
from difflib import unified_diff

from .errors import TargetError
from .install import plan_for
from .records import is_record
from .series import Series
from .state import read_if_there, read_originals, read_state
from .tree import Tree

_NO_NEWLINE = "\n\\ No newline at end of file\n"


def tree_diff(
    tree: Tree, *, untested: bool = False, series: Series | None = None
) -> Iterator[str]:
    """What `apply` would do to `tree`, or, if it is patched, what sets it apart now.

    In a patched tree that includes what somebody changed in patched files since.

    Args:
        tree: The vLLM to look at.
        untested: Accept a release that the series was not tested on.
        series: This installation's own by default.

    Returns:
        The diff's lines, each with its line ending; `patch -p1` takes them.

    Raises:
        TargetError: The tree came from a wheel that `build` made.
        UnsupportedError, AnchorError: As `apply` does on a stock tree.
    """
    state = read_state(tree)
    if state is None:
        plan = plan_for(tree, None, untested=untested, series=series)
        return _lines((c.path, c.before, c.after) for c in plan.changes)
    if state.origin == "build":
        raise TargetError(
            f"the vLLM in {tree.root} was installed from a wheel that `build` patched,"
            " which keeps no originals; run diff on a tree of the stock wheel"
        )
    originals = read_originals(tree, state)
    return _lines(
        (file.path, originals.get(file.path), read_if_there(tree.root / file.path))
        for file in state.files
        if not is_record(file.path)
    )


def file_diff(path: str, before: bytes | None, after: bytes | None) -> Iterator[str]:
    """The lines of the diff between two states of a file; None is no file.

    Each has its line ending, which is the file's own.
    """
    for line in unified_diff(
        _split(before),
        _split(after),
        "/dev/null" if before is None else f"a/{path}",
        "/dev/null" if after is None else f"b/{path}",
    ):
        yield line if line.endswith("\n") else line + _NO_NEWLINE


def _lines(files: Iterable[tuple[str, bytes | None, bytes | None]]) -> Iterator[str]:
    for path, before, after in sorted(files):
        yield from file_diff(path, before, after)


def _split(data: bytes | None) -> list[str]:
    # Not str.splitlines, which takes form feeds and the like for line endings.
    lines = (data or b"").splitlines(keepends=True)
    return [line.decode(errors="replace") for line in lines]
