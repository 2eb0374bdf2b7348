# SPDX-License-Identifier: Apache-2.0
"""The distribution, installed in a bare environment as the README says."""

import subprocess
import sys
from pathlib import Path

import pytest

from sources import sources_of
from tool.invented import site_packages, snapshot, write_wheel
from trees import ROOT

RELEASE = "0.33.0"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with this project and upstream's Python files in it."""
    folder = tmp_path_factory.mktemp("bare")
    environment = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    sources = sources_of(RELEASE)
    files = {
        path.relative_to(sources).as_posix(): path.read_bytes()
        for path in (sources / "vllm").rglob("*.py")
    }
    stock = write_wheel(folder, version=RELEASE, sources=files)
    pip = [environment / "bin/pip", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", stock], check=True)
    subprocess.run([*pip, "."], check=True, cwd=ROOT)
    return environment


def run(environment: Path, *arguments: str) -> str:
    """What `vllm-coordinates` prints, run where no checkout can help it."""
    command = [environment / "bin/vllm-coordinates", *arguments]
    ran = subprocess.run(
        command, cwd=environment, check=True, capture_output=True, text=True
    )
    return ran.stdout


def test_it_lists_the_series_that_it_carries(environment):
    assert "0110" in run(environment, "list")


def test_it_applies_and_gives_every_byte_back(environment):
    before = snapshot(site_packages(environment))
    run(environment, "apply")
    applied = snapshot(site_packages(environment))
    assert "vllm/v1/coordinates.py" in applied.keys() - before.keys()
    assert "yes, by this series" in run(environment, "status")
    run(environment, "revert")
    assert snapshot(site_packages(environment)) == before


def test_it_shows_what_it_would_make_of_another_tree(environment):
    shown = run(environment, "diff", "--tree", str(sources_of("0.32.0")))
    assert "+        self.admissions.clear()" in shown
