# SPDX-License-Identifier: Apache-2.0
"""What state a tree is in: read only, and true at any moment."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from .disk import exclusive
from .drift import drifted
from .errors import BusyError, ModifiedError, UnfinishedError
from .releases import recognise
from .state import read_state
from .survey import Survey, survey
from .tree import Tree

Condition = Literal[
    "stock",
    "drifted",
    "patched",
    "outdated",
    "modified",
    "unrecorded",
    "unfinished",
    "busy",
]


class Status(msgspec.Struct, frozen=True):
    """A tree, as `status --json` shows it.

    Attributes:
        tree: The folder that holds `vllm/`.
        distribution: Who owns `vllm/` there; None for plain sources.
        version: The tree's version.
        release: The release it is recognised as.
        supported: Whether the series is tested on that release.
        condition: `"stock"`; `"drifted"` when not patched, and files that the series
            would change are not as installed, or as committed; `"patched"` by this
            series, or `"outdated"` when by another; `"modified"` when somebody changed
            or removed patched files; `"unrecorded"` when modules of ours are there and
            no record of an apply; `"unfinished"` when an apply or revert was
            interrupted; `"busy"` while one runs.
        origin: Whether `"apply"` patched it or it came from a wheel of `"build"`;
            None for a stock tree.
        series: Digest of the series that this tool carries.
        applied_series: Digest of the series that the tree was patched by.
        files: Paths of the files that the series touches there.
        modified: Those among them that somebody changed since; in a drifted tree,
            those that would be among them.
        missing: Those that are gone.
        pending: Those that an interruption left, or somebody put, in another of
            their known states.
    """

    tree: str
    distribution: str | None
    version: str
    release: str
    supported: bool
    condition: Condition
    origin: str | None
    series: str
    applied_series: str | None
    files: tuple[str, ...]
    modified: tuple[str, ...]
    missing: tuple[str, ...]
    pending: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0, or the exit code of the fault that the condition is."""
        faults = {
            "drifted": ModifiedError,
            "modified": ModifiedError,
            "unrecorded": ModifiedError,
            "unfinished": UnfinishedError,
            "busy": BusyError,
        }
        fault = faults.get(self.condition)
        return fault.exit_code if fault else 0


def read_status(
    tree: Tree, series: str, modules: Iterable[str], named: Iterable[str] = ()
) -> Status:
    """Look at `tree` without changing or holding it.

    Args:
        tree: The vLLM to look at.
        series: The digest of this tool's series.
        modules: Where its modules go in the tree.
        named: Paths and globs that cover whatever upstream's files it changes.
    """
    recognition = recognise(tree.version)
    state = read_state(tree)
    found = survey(tree, state) if state else None
    condition: Condition
    if state is None or found is None:
        condition = "unfinished" if tree.state_folder.is_dir() else "stock"
        if condition == "stock" and any((tree.root / p).exists() for p in modules):
            condition = "unrecorded"
        elif condition == "stock" and recognition.tested:
            found = _drift(tree, recognition.release, named)
            condition = "drifted" if found.modified or found.missing else "stock"
    elif found.modified or (found.missing and state.phase == "applied"):
        condition = "modified"
    elif state.phase != "applied" or found.pending:
        condition = "unfinished"
    else:
        condition = "patched" if state.series == series else "outdated"
    if condition == "unfinished" and _is_held(tree):
        condition = "busy"
    return Status(
        tree=str(tree.root),
        distribution=tree.distribution,
        version=tree.version,
        release=recognition.release,
        supported=recognition.tested,
        condition=condition,
        origin=state.origin if state else None,
        series=series,
        applied_series=state.series if state else None,
        files=tuple(file.path for file in state.files) if state else (),
        modified=found.modified if found else (),
        missing=found.missing if found else (),
        pending=found.pending if found else (),
    )


def _drift(tree: Tree, release: str, named: Iterable[str]) -> Survey:
    """A survey of a tree that is not patched."""
    paths = drifted(tree, release, named)
    modified = tuple(path for path in paths if (tree.root / path).exists())
    return Survey(modified, tuple(p for p in paths if p not in modified), ())


def _is_held(tree: Tree) -> bool:
    try:
        with exclusive(tree.root / "vllm"):
            return False
    except BusyError:
        return True
