# SPDX-License-Identifier: Apache-2.0
"""The series as mails for review: one for each patch, each on top of those before it.

A module of ours comes with the patch that first imports it, so a mail can be read,
applied and tried without those that follow.
"""

import ast
from collections.abc import Iterator, Mapping
from contextlib import suppress
from email.headerregistry import Address
from pathlib import Path

from .checks import require_pristine, require_unpatched
from .errors import WriteError
from .install import plan_for
from .mail import NOBODY, FileDiff, file_name, mail
from .plan import Change, Plan, check_syntax
from .series import Series
from .tree import Tree


def review_mails(
    tree: Tree,
    *,
    author: Address = NOBODY,
    untested: bool = False,
    series: Series | None = None,
) -> dict[str, bytes]:
    """The mails that `git am` makes of `tree` what `apply` makes of it, to the byte.

    Args:
        tree: A vLLM as upstream ships it.
        author: Whom the mails are from.
        untested: Accept a release that the series was not tested on.
        series: This installation's own by default.

    Returns:
        File name -> mail, in order. A patch that changes nothing in this tree has none.

    Raises:
        TargetError: The tree is patched.
        UnfinishedError: An apply or a revert of it was interrupted.
        ModifiedError: A file that the series changes is not upstream's.
        UnsupportedError, AnchorError: As `apply` does.
    """
    require_unpatched(tree)
    plan = plan_for(tree, None, untested=untested, series=series)
    require_pristine(tree, plan)
    parts = [
        (step.patch, [*step.changes, *modules])
        for step, modules in zip(plan.steps, _arrivals(plan), strict=True)
    ]
    parts = [(patch, changes) for patch, changes in parts if changes]
    mails = {}
    for number, (patch, changes) in enumerate(parts, 1):
        files = [_file_diff(tree, change, plan.version) for change in changes]
        files.sort(key=lambda file: file.path)
        mails[file_name(patch, number)] = mail(
            patch, files, number=number, total=len(parts), author=author
        )
    return mails


def write_mails(folder: Path, mails: Mapping[str, bytes]) -> None:
    """Write the mails into a folder of their own, which is made if need be.

    Raises:
        WriteError: There is something in it, or it cannot be written; none of the
            mails is left there then.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise WriteError(
                f"{folder} is not empty; nothing was written: name an empty folder, or"
                " one that is not there yet, with --series"
            )
        for name, data in mails.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        with suppress(OSError):
            for name in mails:
                (folder / name).unlink(missing_ok=True)
        raise WriteError(
            f"{folder} cannot be written ({error.strerror}); name another folder with"
            " --series"
        ) from error


def _file_diff(tree: Tree, change: Change, version: str) -> FileDiff:
    # The plan has checked what the whole series makes of a file, not each patch.
    check_syntax(change, version)
    executable = False
    if change.before is not None:
        executable = bool((tree.root / change.path).stat().st_mode & 0o100)
    return FileDiff(change.path, change.before, change.after, executable)


def _arrivals(plan: Plan) -> list[list[Change]]:
    """For each step of a plan, the modules of ours that come with it."""
    waiting = {c.path: c for c in plan.changes if c.before is None}
    arrivals: list[list[Change]] = []
    for step in plan.steps:
        importing = list(step.changes)
        for change in importing:
            # What arrives may itself import what has not.
            paths = [path for path in _imported(change) if path in waiting]
            importing += [waiting.pop(path) for path in dict.fromkeys(paths)]
        arrivals.append(importing[len(step.changes) :])
    # One that nothing imports by its name is there from the start.
    arrivals[0] += waiting.values()
    return arrivals


def _imported(change: Change) -> Iterator[str]:
    """The paths of the modules that a file may mean by what it imports."""
    if not change.path.endswith(".py"):
        return
    for node in ast.walk(ast.parse(change.after)):
        names: list[str] = []
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(module)):
                names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        yield from (f"{name.replace('.', '/')}.py" for name in names)
