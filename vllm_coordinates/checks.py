# SPDX-License-Identifier: Apache-2.0
"""What has to hold before anything is written; each check names what does not."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import git
from .errors import (
    ModifiedError,
    TargetError,
    UnfinishedError,
    WriteError,
    enumerate_paths,
)
from .plan import Plan
from .records import Record
from .state import State, read_state
from .steps import Target, bytecode_of
from .tree import Tree


def require_ours(tree: Tree, state: State) -> None:
    """The journal is of this very tree, and `apply` wrote it."""
    if state.origin == "build":
        raise TargetError(
            f"the vLLM in {tree.root} was installed from a wheel that `build` patched,"
            " so there is nothing here to patch or to restore; install another wheel"
        )
    if state.version != tree.version:
        raise TargetError(
            f"{tree.root} was patched as vLLM {state.version} and holds {tree.version}"
            f" now; put {state.version} back and revert it, or start from fresh"
            " sources"
        )


def require_unmodified(tree: Tree, modified: Sequence[str]) -> None:
    """Nobody changed a patched file since `apply`."""
    if modified:
        raise ModifiedError(
            f"{enumerate_paths(modified)} in {tree.root} was modified after apply;"
            " nothing was written: undo that (`vllm-coordinates diff` shows it), or"
            " set it aside with `vllm-coordinates revert --save DIR`"
        )


def require_unpatched(tree: Tree) -> None:
    """Nothing is applied to the tree, and no apply or revert waits to be finished."""
    state = read_state(tree)
    if state is not None and state.phase == "applied":
        what_to_do = "revert it first, or name"
        if state.origin == "build":
            what_to_do = "it came so, from a wheel that `build` made; name"
        raise TargetError(
            f"the vLLM in {tree.root} is patched already; {what_to_do} a tree that is"
            " as upstream ships it with --tree"
        )
    if state is not None or tree.state_folder.is_dir():
        raise UnfinishedError(
            f"an apply or a revert of {tree.root} was interrupted; run"
            " `vllm-coordinates revert` first"
        )


def require_pristine(tree: Tree, plan: Plan) -> None:
    """Every file to be changed is as installed, or as committed, where one can tell."""
    if tree.record is not None:
        require_as_installed(tree, plan, Record(tree.record.read_bytes()))
    else:
        require_as_committed(tree, plan)


def require_as_committed(tree: Tree, plan: Plan) -> None:
    """Every file to be changed is as its checkout has it, if the tree is one."""
    paths = [change.path for change in plan.changes if change.before is not None]
    answer = git.ask(tree.root, "diff", "--name-only", "-z", "HEAD", "--", *paths)
    if changed := (answer or "").split("\0")[:-1]:
        raise ModifiedError(
            f"{enumerate_paths(changed)} in {tree.root} differs from what is committed"
            " there; nothing was written: commit or stash that first"
        )


def require_as_installed(tree: Tree, plan: Plan, record: Record) -> None:
    """Every file to be changed is as its distribution installed it."""
    strangers = [
        change.path
        for change in plan.changes
        if change.before is not None
        and not record.vouches_for(change.path, change.before)
    ]
    if strangers:
        raise ModifiedError(
            f"{enumerate_paths(strangers)} in {tree.root} differs from what"
            f" {tree.distribution} {tree.version} installed; nothing was written: put"
            " the original back (or reinstall vLLM), then apply again"
        )


def require_no_clash(shipped: Path, modules: Iterable[str]) -> None:
    """Where a module of ours goes, upstream has none and nobody put one."""
    clashes = sorted(path for path in modules if (shipped / path).exists())
    if clashes:
        raise ModifiedError(
            f"{enumerate_paths(clashes)} {'are' if len(clashes) > 1 else 'is'} in the"
            " tree already, and nothing is on record of an apply there; nothing was"
            " written: reinstall vLLM, or restore upstream's files and move these away,"
            " then apply again"
        )


def require_writable(tree: Tree, targets: Iterable[Target]) -> None:
    """Every file can be replaced, and its bytecode removed."""
    folders = {tree.state_folder, tree.state_folder.parent}
    for target in targets:
        path = tree.root / target.path
        if path.is_symlink():
            raise WriteError(
                f"{path} is a symbolic link, so patching it would change another tree"
                " or part from it; nothing was written: install vLLM with its files"
                " copied"
            )
        folders.add(next(parent for parent in path.parents if parent.exists()))
        folders |= {cached.parent for cached in bytecode_of(path)}
    for folder in sorted(filter(Path.exists, folders)):
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            raise WriteError(
                f"{folder} is on a file system that is mounted read-only; nothing was"
                " written: patch the vLLM where it is installed from, or use an"
                " environment of your own"
            )
        if not os.access(folder, os.W_OK | os.X_OK):
            raise WriteError(
                f"{folder} cannot be written; nothing was written: run as the owner of"
                " the environment, or use one of your own"
            )
