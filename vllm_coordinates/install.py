# SPDX-License-Identifier: Apache-2.0
"""Patching a tree in place, and back: plan, check, journal, write, verify.

Order of things, so that an interruption anywhere leaves a tree of which `status`
tells the truth and which a second `apply` or `revert` finishes:

1. The plan is computed and everything is checked; nothing is written before.
2. The originals are kept, then the journal says what is about to be done.
3. All new bytes are staged beside their targets (a full disk shows here).
4. Renames put them in place; RECORD comes first when applying and last when
   reverting, so that `pip uninstall` always knows of every file.
5. The result is read back, and the journal closed (or taken away).
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from .checks import (
    require_as_committed,
    require_as_installed,
    require_no_clash,
    require_ours,
    require_unmodified,
    require_writable,
)
from .disk import Disk, exclusive
from .errors import WriteError
from .plan import Plan, make_plan
from .records import Record, is_record
from .releases import require
from .series import Series, load_series
from .state import (
    JOURNAL,
    ORIGINALS,
    FileState,
    State,
    as_shipped,
    digest,
    pack_originals,
    read_if_there,
    read_originals,
    read_state,
)
from .steps import (
    Target,
    forget,
    half_done,
    missing_folders,
    nothing_changed,
    put_in_place,
    remove_folders,
    stage,
    unstage,
    write_journal,
)
from .survey import Survey, survey
from .tree import Tree


@dataclass(frozen=True)
class Outcome:
    """What a command did.

    Attributes:
        changed: Paths of upstream's files that now differ from before.
        added: Paths of ours that are there now.
        removed: Paths of ours that are gone now.
    """

    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.added or self.removed)


def apply(
    tree: Tree,
    *,
    untested: bool = False,
    series: Series | None = None,
    disk: Disk | None = None,
) -> Outcome:
    """Patch `tree` in place, finish an interrupted attempt, or upgrade to `series`.

    Args:
        tree: The vLLM to patch.
        untested: Accept a release that the series was not tested on.
        series: This installation's own by default.
        disk: What writes.

    Returns:
        What changed; nothing if the tree is patched by this series already.

    Raises:
        UnsupportedError: The release is not a tested one.
        AnchorError: A patch does not fit.
        ModifiedError: A file that it touches is not upstream's.
        WriteError: Something cannot be written.
        BusyError: Another process is at work.
    """
    require(tree.version, untested=untested)
    series = series or load_series()
    disk = disk or Disk()
    with exclusive(tree.root / "vllm"):
        state = read_state(tree)
        if state is not None:
            found = survey(tree, state)
            if _is_settled(tree, state, found, series):
                disk.discard(tree.state_folder / JOURNAL)
                return Outcome()
            require_ours(tree, state)
            require_unmodified(tree, found.modified)
        plan = plan_for(tree, state, untested=untested, series=series)
        return _Apply(tree, disk, state, plan, series.digest).run()


def revert(
    tree: Tree, *, save: Path | None = None, disk: Disk | None = None
) -> Outcome:
    """Put every byte back as it was before `apply`.

    Args:
        tree: The vLLM to restore.
        save: A folder to copy files to that somebody modified after `apply`;
            without it, such files make `revert` refuse.
        disk: What writes.

    Returns:
        What changed; nothing if the tree is not patched.

    Raises:
        ModifiedError: A patched file was modified, and there is no `save`.
        TargetError: The tree came from a wheel that `build` made.
        WriteError: Something cannot be written.
        BusyError: Another process is at work.
    """
    disk = disk or Disk()
    with exclusive(tree.root / "vllm"):
        state = read_state(tree)
        if state is None:
            forget(disk, tree)
            return Outcome()
        require_ours(tree, state)
        found = survey(tree, state)
        if save is None:
            require_unmodified(tree, found.modified)
        originals = read_originals(tree, state)
        targets = [
            Target(file.path, originals.get(file.path), file.mode)
            for file in reversed(state.files)
        ]
        require_writable(tree, targets)
        if save is not None:
            _save(tree, found.modified, save)
        outcome = _outcome(tree, targets)
        try:
            write_journal(disk, tree, replace(state, phase="reverting"))
            stage(disk, tree, targets)
        except OSError as error:
            with suppress(OSError):
                unstage(disk, tree, targets)
                write_journal(disk, tree, state)
            raise nothing_changed(error) from error
        with half_done("revert"):
            put_in_place(disk, tree, targets)
            remove_folders(disk, tree, state.folders)
            forget(disk, tree)
        return outcome


def plan_for(
    tree: Tree, state: State | None, *, untested: bool, series: Series | None = None
) -> Plan:
    """What the series makes of the tree as upstream shipped it.

    Args:
        tree: The vLLM in question.
        state: Its journal, if it has one.
        untested: Accept a release that the series was not tested on.
        series: This installation's own by default.

    Raises:
        UnsupportedError, AnchorError: The series is not for this tree.
        ModifiedError: A file of ours is there without being on record.
    """
    release = require(tree.version, untested=untested).release
    series = series or load_series()
    with as_shipped(tree, state) as shipped:
        # First: in a tree that is patched already, no place is as it was.
        require_no_clash(shipped, series.modules)
        return make_plan(shipped, tree.version, release, series=series)


class _Apply:
    """One run of `apply` whose plan is made and whose tree is held.

    Args:
        tree: The vLLM to patch.
        disk: What writes.
        state: The journal so far, None for a tree as upstream ships it.
        plan: What is to be.
        series: The digest of the series.
    """

    def __init__(
        self, tree: Tree, disk: Disk, state: State | None, plan: Plan, series: str
    ) -> None:
        self.tree = tree
        self.disk = disk
        self.previous = state
        self.plan = plan
        self.known = {file.path: file for file in state.files} if state else {}
        self.originals = read_originals(tree, state) if state else {}
        self.originals |= {
            change.path: change.before
            for change in plan.changes
            if change.before is not None
        }
        self.record = self._take_record()
        self.archive = pack_originals(self.originals)
        self.targets = self._targets()
        self.journal = self._journal(series)

    def run(self) -> Outcome:
        if self.record is not None:
            record = Record(self.originals[self.record])
            require_as_installed(self.tree, self.plan, record)
        elif self.previous is None:
            require_as_committed(self.tree, self.plan)
        require_writable(self.tree, self.targets)
        outcome = _outcome(self.tree, self.targets)
        try:
            self._open_journal()
            stage(self.disk, self.tree, self.targets)
        except OSError as error:
            self._leave_untouched()
            raise nothing_changed(error) from error
        with half_done("apply"):
            put_in_place(self.disk, self.tree, self.targets)
            self._close_journal()
        return outcome

    def _take_record(self) -> str | None:
        """RECORD's path in the tree, with its original among the originals."""
        if self.tree.record is None:
            return None
        path = self.tree.record.relative_to(self.tree.root).as_posix()
        self.originals.setdefault(path, self.tree.record.read_bytes())
        return path

    def _targets(self) -> list[Target]:
        """RECORD first, then the plan's files, then what the plan dropped."""
        new = {change.path: change.after for change in self.plan.changes}
        dropped = self.known.keys() - new.keys() - {self.record}
        contents: dict[str, bytes | None] = {}
        if self.record is not None:
            contents[self.record] = self._edited_record(new)
        contents |= new
        contents |= {path: self.originals.get(path) for path in sorted(dropped)}
        return [Target(path, data, self._mode(path)) for path, data in contents.items()]

    def _edited_record(self, new: dict[str, bytes]) -> bytes:
        assert self.record is not None
        folder = self.tree.state_folder.relative_to(self.tree.root).as_posix()
        record = Record(self.originals[self.record]).edited(
            {**new, f"{folder}/{ORIGINALS}": self.archive},
            # The journal changes after RECORD has been written.
            unhashed=[f"{folder}/{JOURNAL}"],
        )
        return record.data

    def _mode(self, path: str) -> int:
        if path in self.known:
            return self.known[path].mode
        target = self.tree.root / path
        if path in self.originals:
            return target.stat().st_mode & 0o7777
        return (self.tree.root / "vllm/__init__.py").stat().st_mode & 0o666

    def _journal(self, series: str) -> State:
        """The journal of the run under way."""
        folders = list(self.previous.folders) if self.previous else []
        folders += missing_folders(self.tree.root, self.targets)
        return State(
            phase="applying",
            origin="apply",
            series=series,
            version=self.plan.version,
            release=self.plan.release,
            files=tuple(map(self._file_state, self.targets)),
            folders=tuple(dict.fromkeys(folders)),
        )

    def _file_state(self, target: Target) -> FileState:
        known = self.known.get(target.path)
        before = digest(self.originals.get(target.path))
        after = digest(target.data)
        earlier = {*known.earlier, known.after} if known else set()
        return FileState(
            path=target.path,
            before=before,
            after=after,
            mode=target.mode,
            earlier=tuple(sorted(h for h in earlier - {before, after} if h)),
        )

    def _open_journal(self) -> None:
        folder = self.tree.state_folder
        if not folder.exists():
            self.disk.make_folder(folder)
        if self.tree.dist_info is None:
            # Keeps the folder out of a checkout's `git status`.
            self.disk.replace(folder / ".gitignore", b"*\n", 0o644)
        self.disk.replace(folder / ORIGINALS, self.archive, 0o644)
        self.disk.replace(folder / JOURNAL, self.journal.encode(), 0o644)

    def _leave_untouched(self) -> None:
        """Nothing was put in place: take away what was prepared."""
        with suppress(OSError):
            unstage(self.disk, self.tree, self.targets)
            remove_folders(self.disk, self.tree, self.journal.folders)
            if self.previous is None:
                forget(self.disk, self.tree)
            else:
                write_journal(self.disk, self.tree, self.previous)

    def _close_journal(self) -> None:
        remove_folders(self.disk, self.tree, self.journal.folders)
        planned = {change.path for change in self.plan.changes} | {self.record}
        files = (file for file in self.journal.files if file.path in planned)
        folders = self.journal.folders
        closed = replace(
            self.journal,
            phase="applied",
            files=tuple(replace(file, earlier=()) for file in files),
            folders=tuple(f for f in folders if (self.tree.root / f).is_dir()),
        )
        write_journal(self.disk, self.tree, closed)


def _is_settled(tree: Tree, state: State, found: Survey, series: Series) -> bool:
    """Whether `apply` has nothing left to do."""
    wanted = ("applied", series.digest, tree.version)
    complete = not (found.modified or found.missing or found.pending)
    return complete and (state.phase, state.series, state.version) == wanted


def _save(tree: Tree, paths: Iterable[str], folder: Path) -> None:
    for path in paths:
        copy = folder / path
        if copy.exists():
            raise WriteError(
                f"{copy} is there already; nothing was reverted: name an empty folder"
            )
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((tree.root / path).read_bytes())


def _outcome(tree: Tree, targets: Iterable[Target]) -> Outcome:
    changed, added, removed = [], [], []
    for target in targets:
        now = read_if_there(tree.root / target.path)
        if now == target.data or is_record(target.path):
            continue
        if now is None:
            added.append(target.path)
        elif target.data is None:
            removed.append(target.path)
        else:
            changed.append(target.path)
    return Outcome(*(tuple(sorted(paths)) for paths in (changed, added, removed)))
