# SPDX-License-Identifier: Apache-2.0
"""vLLM's own tests, on stock and on patched vLLM: the outcomes must be the same.

    make test-upstream RELEASE=0.33.0

Upstream's tests come from the source archive of the same release, and lie in a folder
without vLLM's sources beside them, so that the tree under test is what they import.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from upstream.compare import differences, summary
from upstream.selection import CHANGED, DESELECTED, HUB_MODELS, PATHS, SHORT

from cpu_engine.tiny_model import TinyModel, ensure_model
from engine import served_trees
from sources import CACHE, sources_of
from trees import ROOT, kept

HERE = Path(__file__).parent
TREES = {
    "0.32.0": (served_trees.stock, served_trees.patched),
    "0.33.0": (served_trees.stock_0_33, served_trees.patched_0_33),
}
"""Release -> the trees that run here, stock and patched."""


def main(
    release: Annotated[str, typer.Option(help=f"Of {', '.join(TREES)}.")] = "0.32.0",
    short: Annotated[bool, typer.Option(help="Only some of the tests.")] = False,
) -> None:
    """Runs upstream's tests on both trees, and exits with 1 where they differ."""
    if release not in TREES:
        raise typer.BadParameter(f"no engine of {release} runs here; one of {[*TREES]}")
    stock, patched = (
        run(release, tree(), SHORT if short else PATHS) for tree in TREES[release]
    )
    changed = {t: why for t, (why, releases) in CHANGED.items() if release in releases}
    found = list(differences(stock, patched, changed))
    for line in found:
        print(line)
    print(f"vLLM {release}, stock:   {summary(stock)}")
    print(f"vLLM {release}, patched: {summary(patched)}")
    print(f"{len(found)} differences")
    raise typer.Exit(bool(found))


def run(release: str, tree: Path, paths: Sequence[str]) -> dict[str, str]:
    """The outcome of each test on a tree.

    Args:
        release: Whose tests.
        tree: The vLLM to import.
        paths: Under upstream's `tests/`; those that the release lacks are left out.

    Raises:
        RuntimeError: pytest did not come to its end, or there was no test.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        tests = Path(
            shutil.copytree(sources_of(release, "tests") / "tests", folder / "tests")
        )
        settings = "[pytest]\nmarkers =\n  " + "\n  ".join(MARKERS) + "\n"
        (folder / "pytest.ini").write_text(settings)
        there = [f"tests/{path}" for path in paths if (tests / path).exists()]
        left_out = [f"--deselect=tests/{test}" for test in DESELECTED]
        outcomes = folder / "outcomes.json"
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "plugin"),
                *("-p", "no:cacheprovider", "--timeout=300", "--no-header"),
                *(*left_out, *there),
            ],
            cwd=folder,
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join(map(str, (tree, HERE, libraries()))),
                "OUTCOMES": str(outcomes),
                "HF_HOME": str(hub()),
                "HF_HUB_OFFLINE": "1",
                "TRANSFORMERS_OFFLINE": "1",
                "VLLM_CACHE_ROOT": str(CACHE / "vllm" / tree.name),
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_HOST_IP": "127.0.0.1",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_LOGGING_LEVEL": "WARNING",
                "DO_NOT_TRACK": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if ran.returncode not in (0, 1) or not outcomes.exists():
            raise RuntimeError(
                f"pytest ended with {ran.returncode} on {tree.name}:"
                f"\n{ran.stdout[-4000:]}"
            )
        found: dict[str, str] = json.loads(outcomes.read_text())
    if not found:
        raise RuntimeError(f"there was no test on {tree.name}")
    return found


MARKERS = (
    *("slow_test", "skip_global_cleanup", "core_model", "hybrid_model", "cpu_model"),
    *("cpu_test", "split", "distributed", "optional", "asyncio"),
)
"""Upstream's own, which it declares in a file that is not in its `tests/`."""


def libraries() -> Path:
    """What upstream's tests need beside our own: a folder for `PYTHONPATH`."""
    pinned = ROOT / "requirements" / "upstream.txt"
    digest = hashlib.sha256(pinned.read_bytes()).hexdigest()[:12]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]

    def install(folder: Path) -> None:
        wanted = ["--require-hashes", "-r", str(pinned), "--target", str(folder)]
        subprocess.run([*pip, *wanted], check=True)

    return kept(CACHE / "upstream" / f"libraries-{digest}", install)


def hub() -> Path:
    """A hub's cache that has one tiny model, under each name that is asked for."""
    model = ensure_model(TinyModel.QWEN2, CACHE / "models")
    names = hashlib.sha256(" ".join(HUB_MODELS).encode()).hexdigest()[:12]

    def fill(folder: Path) -> None:
        for name in HUB_MODELS:
            repository = folder / "hub" / f"models--{name.replace('/', '--')}"
            (repository / "refs").mkdir(parents=True)
            (repository / "refs" / "main").write_text("tiny")
            shutil.copytree(
                model,
                repository / "snapshots" / "tiny",
                ignore=shutil.ignore_patterns("*.safetensors"),
            )

    return kept(CACHE / "upstream" / f"{model.name}-{names}", fill)


if __name__ == "__main__":
    typer.run(main)
