# SPDX-License-Identifier: Apache-2.0
"""The distribution, installed in a bare environment as the README says."""

import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from sources import sources_of
from tool.invented import site_packages, snapshot, write_wheel
from trees import ROOT

RELEASE = "0.33.0"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheel` writes: a source archive, and the wheel built from that."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder]
    subprocess.run([*command, ROOT], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def environment(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    subprocess.run([*pip, *dist.glob("*.whl")], check=True)
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


def test_pip_makes_the_same_wheel_of_a_checkout(dist, tmp_path):
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", tmp_path, ROOT], check=True)
    ours, theirs = (contents(*folder.glob("*.whl")) for folder in (dist, tmp_path))
    assert ours == theirs


def test_the_source_archive_carries_what_the_wheel_is_tested_with(dist):
    [archive] = dist.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {"Makefile", "docs/contract.md", "benchmarks/pool.py"} <= names
    assert {"patches/0110_attribution.py", "tests/test_install.py"} <= names


def contents(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist()}
