# SPDX-License-Identifier: Apache-2.0
"""Which of upstream's files somebody changed in a tree that is not patched."""

from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase

from . import git
from .errors import AnchorError
from .records import Record
from .state import read_if_there
from .tree import Tree


def drifted(tree: Tree, release: str, named: Iterable[str]) -> list[str]:
    """The files that the series would change and that are not as upstream's.

    Where it does not fit any more, they are all that differ among `named`.

    Args:
        tree: The vLLM, not patched.
        release: The release that it is recognised as.
        named: Paths and globs that cover whatever the series changes.
    """
    found = list(_differing(tree, list(named)))
    if found:
        # Only now: to load the patches takes longer than all the rest of `status`.
        from .plan import make_plan

        with suppress(AnchorError):
            plan = make_plan(tree.root, tree.version, release)
            changed = {change.path for change in plan.changes if change.before}
            found = [path for path in found if path in changed]
    return found


def _differing(tree: Tree, named: list[str]) -> Iterable[str]:
    """The files among `named` that are not as installed, or as committed."""
    if tree.record is None:
        paths = (f":(glob){name}" for name in named)
        answer = git.ask(tree.root, "diff", "--name-only", "-z", "HEAD", "--", *paths)
        return (answer or "").split("\0")[:-1]
    record = Record(tree.record.read_bytes())
    # Here a star goes across folders, too, and two of them need not match any.
    globs = [name.replace("**/", "") for name in named]
    return (
        path
        for path in record.paths
        if any(fnmatchcase(path, glob) for glob in globs)
        and not record.vouches_for(path, read_if_there(tree.root / path) or b"")
    )
