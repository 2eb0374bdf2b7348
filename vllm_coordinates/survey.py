# SPDX-License-Identifier: Apache-2.0
"""The files that a journal speaks of, as they are now."""

from dataclasses import dataclass

from .state import State, digest, read_if_there
from .tree import Tree


@dataclass(frozen=True)
class Survey:
    """The files of a journal, held against the disk.

    Attributes:
        modified: Their bytes are neither upstream's nor the tool's.
        missing: They are gone.
        pending: They are as the tool knows them, but not as they are to be.
    """

    modified: tuple[str, ...]
    missing: tuple[str, ...]
    pending: tuple[str, ...]


def survey(tree: Tree, state: State) -> Survey:
    """Hold the files of `state` against the disk."""
    modified, missing, pending = [], [], []
    for file in state.files:
        now = digest(read_if_there(tree.root / file.path))
        if now == file.after:
            continue
        if now == file.before or now in file.earlier:
            pending.append(file.path)
        elif now is None:
            missing.append(file.path)
        else:
            modified.append(file.path)
    return Survey(tuple(modified), tuple(missing), tuple(pending))
