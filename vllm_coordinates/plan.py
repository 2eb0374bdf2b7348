# SPDX-License-Identifier: Apache-2.0
"""What the series makes of one tree of vLLM: computed in full, nothing written."""

from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from .errors import AnchorError
from .semantic import Edit, MisplacedEdit, rust_error
from .series import Patch, Series, load_series


@dataclass(frozen=True)
class Change:
    """One file of the target tree.

    Attributes:
        path: Path relative to the tree's root, e.g. `"vllm/v1/request.py"`.
        before: The bytes that upstream ships; None for a file of ours.
        after: The bytes that the series makes of it.
        patches: Names of the patches that touch it.
    """

    path: str
    before: bytes | None
    after: bytes
    patches: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Every change that the series makes to one tree.

    Attributes:
        version: The tree's version, e.g. `"0.32.0+cpu"`.
        release: The release it is recognised as, e.g. `"0.32.0"`.
        changes: The changed and new files, by path.
    """

    version: str
    release: str
    changes: tuple[Change, ...]


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
    tree = TreeFiles(root)
    for patch in series.patches:
        if not concerns(patch, root):
            continue
        tree.patch = patch.name
        for edit in patch.edits:
            if not edit.since or Version(release) >= Version(edit.since):
                _rewrite(edit, tree, version)
    changes = [
        Change(path, tree.original(path), text.encode(), tuple(tree.touched[path]))
        for path, text in tree.texts.items()
        if path in tree.touched
    ]
    changes += [Change(path, None, data, ()) for path, data in series.modules.items()]
    for change in changes:
        _check_syntax(change, version)
    return Plan(version, release, tuple(sorted(changes, key=lambda c: c.path)))


def concerns(patch: Patch, root: Path) -> bool:
    """Whether the tree below `root` has the folder that a patch changes."""
    return (root / patch.where).is_dir()


class TreeFiles:
    """The files of a tree, read when asked for; what is written stays in memory.

    Args:
        root: The folder that holds `vllm/`.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.patch = ""
        self.texts: dict[str, str] = {}
        self.touched: dict[str, list[str]] = {}

    def original(self, path: str) -> bytes:
        """The bytes from before any patch."""
        return (self._root / path).read_bytes()

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
        if path not in self.texts:
            try:
                self.texts[path] = self.original(path).decode()
            except (FileNotFoundError, NotADirectoryError):
                return None
            except UnicodeDecodeError:
                raise MisplacedEdit(path, "text in UTF-8", 1, 0) from None
        return self.texts[path]

    def write(self, path: str, text: str) -> None:
        """Give a file another text, in the name of the current patch."""
        if text == self.texts[path]:
            return
        self.texts[path] = text
        names = self.touched.setdefault(path, [])
        if self.patch not in names:
            names.append(self.patch)


def _rewrite(edit: Edit, tree: TreeFiles, version: str) -> None:
    try:
        edit.rewrite(tree)
    except MisplacedEdit as error:
        raise AnchorError(
            patch=tree.patch,
            file=error.file,
            anchor=error.anchor,
            release=version,
            expected=error.expected,
            found=error.found,
        ) from None


def _check_syntax(change: Change, version: str) -> None:
    check = {".py": _python_fault, ".rs": _rust_fault}.get(Path(change.path).suffix)
    if check is not None and (fault := check(change)) is not None:
        raise AnchorError(
            patch=", ".join(change.patches),
            file=change.path,
            anchor=fault,
            release=version,
            expected=1,
            found=0,
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
