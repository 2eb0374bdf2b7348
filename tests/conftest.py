# SPDX-License-Identifier: Apache-2.0
"""How the tests that import vLLM get the release they run on.

Some folders import vLLM's own modules, and a process has room for one vLLM. So
each run of them names a release:

    python -m pytest tests/pool --release 0.31.0

A run without `--release` leaves those folders to `test_every_release.py`, which
starts one such run per release.
"""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from trees import ON_A_TREE, RELEASE_NAMES, environment, patched_tree

# How fast examples run says nothing about what is tested.
settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unhurried")


SERVERS = {"engine", "servers", "stock", "patched_traffic", "switched_off"}
"""Fixtures that a folder's tests share."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--release",
        choices=RELEASE_NAMES,
        help="import vLLM from the patched tree of this release",
    )


def pytest_configure(config: pytest.Config) -> None:
    release = config.getoption("release")
    if release is not None:
        tree = patched_tree(release)
        os.environ.update(environment(tree))
        sys.path.insert(0, str(tree))
    elif any(_imports_vllm(Path(arg.partition("::")[0])) for arg in config.args):
        raise pytest.UsageError(
            "these tests import vLLM: say of which release, e.g."
            f" --release {RELEASE_NAMES[-1]}"
        )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    left_out = config.getoption("release") is None and _imports_vllm(collection_path)
    return True if left_out else None


# First: xdist takes the groups as it finds them.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Side by side (`-n 2 --dist loadgroup`): what shares a server stays together."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            shared = SERVERS.intersection(getattr(item, "fixturenames", ()))
            group = item.path.parent if shared else item.path
            item.add_marker(pytest.mark.xdist_group(str(group)))


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption("loadgroup", False):
        alone = [item.nodeid for item in session.items if "@" not in item.nodeid]
        assert not alone, f"pytest-xdist has not grouped {alone[0]}"


def _imports_vllm(path: Path) -> bool:
    path = path.absolute()
    return any(folder in (path, *path.parents) for folder in ON_A_TREE)


@pytest.fixture(scope="session")
def release(request: pytest.FixtureRequest) -> str:
    """The release whose patched tree `vllm` is imported from."""
    name: str = request.config.getoption("release")
    return name
