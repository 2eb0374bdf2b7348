# SPDX-License-Identifier: Apache-2.0
"""The in-tree modules and the block pool, inside each tested release of vLLM."""

import subprocess
import sys

import pytest

from trees import ON_A_TREE, RELEASE_NAMES, ROOT, environment, patched_tree


@pytest.mark.parametrize(
    ("folder", "release"),
    [
        pytest.param(
            folder, release, marks=pytest.mark.xdist_group(f"{folder} {release}")
        )
        for folder in ON_A_TREE
        for release in RELEASE_NAMES
    ],
)
def test_the_folder_passes_on_the_patched_release(folder, release):
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", folder, f"--release={release}"],
        cwd=ROOT,
        env=environment(patched_tree(release)),
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
