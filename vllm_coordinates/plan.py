# SPDX-License-Identifier: Apache-2.0
"""What the series makes of one tree of vLLM: computed in full, nothing written."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from .errors import AnchorError
from .releases import recognise
from .semantic import Edit, MisplacedEdit, rust_error
from .series import Patch, Series, load_series


@dataclass(frozen=True)
class Change:
    """One file of the target tree.

    Attributes:
        path: Path relative to the tree's root, e.g. `"vllm/v1/request.py"`.
        before: The bytes from before; None for a file of ours.
        after: The bytes from then on.
        patches: Names of the patches that touch it.
    """

    path: str
    before: bytes | None
    after: bytes
    patches: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """One patch's part in a plan.

    Attributes:
        patch: The patch.
        changes: The files of upstream's that it changes, each from the state in which
            the patches before it leave it. None where this tree needs none.
    """

    patch: Patch
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Plan:
    """Every change that the series makes to one tree.

    Attributes:
        version: The tree's version, e.g. `"0.32.0+cpu"`.
        release: The release it is recognised as, e.g. `"0.32.0"`.
        changes: The changed and new files, by path, from upstream's bytes to ours.
        steps: How the changed ones come about, in the order of the series.
    """

    version: str
    release: str
    changes: tuple[Change, ...]
    steps: tuple[Step, ...]


def make_plan(
    root: Path,
    version: str,
    release: str,
    *,
    series: Series | None = None,
) -> Plan:
    """Work out the series for the tree below `root`.

    Args:
        root: The folder that holds `vllm/`, as upstream ships it.
        version: The tree's version.
        release: The release that the version is recognised as.
        series: The series; this installation's own by default.

    Raises:
        AnchorError: An edit found another number of places than it states, or
            a file would no longer parse. Nothing has been written.
    """
    series = series or load_series()
    steps = tuple(_steps(root, version, release, series))
    changes = _in_one(change for step in steps for change in step.changes)
    changes += [Change(path, None, data, ()) for path, data in series.modules.items()]
    for change in changes:
        check_syntax(change, version)
    changes.sort(key=lambda change: change.path)
    return Plan(version, release, tuple(changes), steps)


def concerns(patch: Patch, root: Path) -> bool:
    """Whether the tree below `root` has the folder that a patch changes."""
    return (root / patch.where).is_dir()


class TreeFiles:
    """The files of a tree, read when asked for; what is written stays in memory.

    Args:
        root: The folder that holds `vllm/`.

    Attributes:
        texts: The texts of the files that have been rewritten, by path.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._shipped: dict[str, str] = {}
        self.texts: dict[str, str] = {}

    def paths(self, glob: str) -> list[str]:
        """The files that match a glob, in order."""
        return sorted(
            p.relative_to(self._root).as_posix() for p in self._root.glob(glob)
        )

    def read(self, path: str) -> str | None:
        """A file's text as rewritten so far; None where there is no such file.

        Raises:
            MisplacedEdit: The file is not text.
        """
        if path in self.texts:
            return self.texts[path]
        if path not in self._shipped:
            try:
                self._shipped[path] = (self._root / path).read_bytes().decode()
            except (FileNotFoundError, NotADirectoryError):
                return None
            except UnicodeDecodeError:
                raise MisplacedEdit(path, "text in UTF-8", 1, 0) from None
        return self._shipped[path]

    def write(self, path: str, text: str) -> None:
        """Give a file another text."""
        if text != self.read(path):
            self.texts[path] = text


def _steps(root: Path, version: str, release: str, series: Series) -> Iterator[Step]:
    tree = TreeFiles(root)
    for patch in (patch for patch in series.patches if concerns(patch, root)):
        earlier = TreeFiles(root)
        earlier.texts = dict(tree.texts)
        for edit in patch.edits:
            if not edit.since or Version(release) >= Version(edit.since):
                _rewrite(edit, tree, patch, version)
        changes = [
            Change(path, before.encode(), after.encode(), (patch.name,))
            for path, after in tree.texts.items()
            if (before := earlier.read(path)) is not None and before != after
        ]
        yield Step(patch, tuple(changes))


def _in_one(changes: Iterable[Change]) -> list[Change]:
    """The changes of all steps as those of one."""
    whole: dict[str, Change] = {}
    for change in changes:
        first = whole.get(change.path)
        if first is not None:
            patches = (*first.patches, *change.patches)
            change = replace(change, before=first.before, patches=patches)
        whole[change.path] = change
    return list(whole.values())


def _rewrite(edit: Edit, tree: TreeFiles, patch: Patch, version: str) -> None:
    try:
        edit.rewrite(tree)
    except MisplacedEdit as error:
        raise AnchorError(
            patch=patch.name,
            file=error.file,
            anchor=error.anchor,
            release=version,
            expected=error.expected,
            found=error.found,
            tested=recognise(version).tested,
        ) from None


def check_syntax(change: Change, version: str) -> None:
    """What a change makes of a file must be valid in the file's language.

    Args:
        change: The change.
        version: The tree's version, for the message.

    Raises:
        AnchorError: It is not.
    """
    check = {".py": _python_fault, ".rs": _rust_fault}.get(Path(change.path).suffix)
    if check is not None and (fault := check(change)) is not None:
        raise AnchorError(
            patch=", ".join(change.patches),
            file=change.path,
            anchor=fault,
            release=version,
            expected=1,
            found=0,
            tested=recognise(version).tested,
        )


def _python_fault(change: Change) -> str | None:
    try:
        # Unlike a parser, this refuses a name that a signature has twice, too.
        compile(change.after, change.path, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"valid Python at line {error.lineno}"
    return None


def _rust_fault(change: Change) -> str | None:
    line = rust_error(change.after.decode())
    return None if line is None else f"valid Rust at line {line}"
