# SPDX-License-Identifier: Apache-2.0
"""The Containerfile, its lines run in order without a container.

A virtual environment with upstream's Python files stands for the image.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sources import sources_of
from tool.invented import site_packages, write_wheel
from trees import RELEASE_NAMES, ROOT

CONTAINERFILE = ROOT / "examples" / "container" / "Containerfile"
IMAGE = "docker.io/vllm/vllm-openai:v"


def instructions() -> list[tuple[str, str]]:
    """The instructions, as (keyword, the rest)."""
    lines = CONTAINERFILE.read_text().splitlines()
    words = (line.partition(" ") for line in lines if line[:1] not in ("", "#"))
    return [(keyword, rest) for keyword, _, rest in words]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment in which the instructions were run, each of them."""
    root = tmp_path_factory.mktemp("image")
    environment = root / "usr"
    for keyword, rest in instructions():
        if keyword == "FROM":
            release = rest.removeprefix(IMAGE)
            assert release in RELEASE_NAMES
            _install_vllm(environment, release)
        elif keyword == "COPY":
            _copy(*rest.split(), root=root)
        else:
            assert keyword == "RUN"
            path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
            command = rest.replace("/src", str(root / "src"))
            subprocess.run(
                command,
                shell=True,
                check=True,
                cwd=root,
                env=os.environ | {"PATH": path},
            )
    return environment


def _install_vllm(environment: Path, release: str) -> None:
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    sources = sources_of(release)
    files = {
        path.relative_to(sources).as_posix(): path.read_bytes()
        for path in (sources / "vllm").rglob("*.py")
    }
    wheel = write_wheel(environment.parent, version=release, sources=files)
    pip = [environment / "bin/pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*pip, wheel], check=True)


def _copy(*paths: str, root: Path) -> None:
    """As a builder does: a folder's content, or files into a folder."""
    *sources, target = (Path(path) for path in paths)
    place = root / target.relative_to("/")
    for source in sources:
        if (ROOT / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / source, place, ignore=ignored)
        else:
            place.mkdir(exist_ok=True)
            shutil.copy(ROOT / source, place)


def test_the_vllm_of_the_image_is_patched_and_complete(built: Path) -> None:
    status = subprocess.run(
        [built / "bin/vllm-coordinates", "status", "--json"],
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    assert '"condition": "patched"' in status
    assert (site_packages(built) / "vllm/v1/coordinates.py").exists()


def test_nothing_of_the_build_is_left_in_the_image(built: Path) -> None:
    assert not (built.parent / "src").exists()
