# SPDX-License-Identifier: Apache-2.0
"""Importable trees of every tested release, stock and patched, without an engine.

A tree is upstream's Python sources with a distribution's metadata beside them, so
that vLLM takes its platform for a CPU. It lacks the compiled extensions: what
manages blocks, schedules and parses runs; what computes does not.

Trees are built once and kept beside the sources. Unchanged files are links to the
sources, so nothing may write into a file of a tree.
"""

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from sources import CACHE, sources_of
from vllm_coordinates.plan import Change, make_plan
from vllm_coordinates.releases import RELEASES

ROOT = Path(__file__).parents[1]
RELEASE_NAMES = tuple(release.version for release in RELEASES)
ON_A_TREE = (ROOT / "tests" / "in_tree", ROOT / "tests" / "pool")
"""Folders of tests that import `vllm`, and so run once per release."""

_TREES = CACHE / "trees"
# Another test run may still be importing from a tree of an older series.
_UNUSED_AFTER_S = 4 * 3600.0


def stock_tree(release: str) -> Path:
    """A tree as upstream ships it; put it on `PYTHONPATH` to import `vllm`."""
    return _tree(f"stock-{release}", release, [])


def patched_tree(release: str) -> Path:
    """A tree with the whole series applied, new whenever the series changes."""
    changes = make_plan(sources_of(release), release, release).changes
    return _tree(f"patched-{release}-{digest_of(changes)}", release, changes)


def digest_of(changes: Iterable[Change]) -> str:
    """A name for what changes make of a tree: 12 hex digits."""
    digest = hashlib.sha256()
    for change in changes:
        digest.update(f"{change.path}\0{len(change.after)}\0".encode() + change.after)
    return digest.hexdigest()[:12]


def write_changes(changes: Iterable[Change], tree: Path) -> None:
    """Applies changes to a tree whose files may be links to another tree's."""
    for change in changes:
        path = tree / change.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(change.after)


def environment(tree: Path) -> Mapping[str, str]:
    """The environment of a process that imports `vllm` from `tree`."""
    return {
        **os.environ,
        "PYTHONPATH": str(tree),
        "HF_HUB_OFFLINE": "1",
        # vLLM keeps what it finds out about a model there, for one release at a time.
        "VLLM_CACHE_ROOT": str(CACHE / "vllm" / tree.name.split("-")[1]),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
    }


def kept(tree: Path, write: Callable[[Path], None]) -> Path:
    """A tree that is written once, whole or not at all.

    Args:
        tree: Where it is to lie.
        write: Writes it into an empty folder.
    """
    if not tree.is_dir():
        tree.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=tree.parent, prefix="new-"))
        write(draft)
        try:
            draft.rename(tree)
        except OSError:  # another process was first
            shutil.rmtree(draft)
    return tree


def _tree(name: str, release: str, changes: Iterable[Change]) -> Path:
    tree = _TREES / name
    if not tree.is_dir():
        _remove_unused()
    kept(tree, lambda draft: _build(draft, release, changes))
    os.utime(tree)
    return tree


def _build(tree: Path, release: str, changes: Iterable[Change]) -> None:
    shutil.copytree(
        sources_of(release) / "vllm",
        tree / "vllm",
        copy_function=_link,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    write_changes(changes, tree)
    info = tree / f"vllm-{release}+cpu.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}+cpu\n"
    (info / "METADATA").write_text(metadata)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _remove_unused() -> None:
    for tree in _TREES.glob("*"):
        with suppress(FileNotFoundError):  # another run removes it too
            if time.time() - tree.stat().st_mtime > _UNUSED_AFTER_S:
                shutil.rmtree(tree, ignore_errors=True)
