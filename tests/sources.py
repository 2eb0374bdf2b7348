# SPDX-License-Identifier: Apache-2.0
"""Upstream's sources of every tested release: fetched once, checked, unpacked.

They come from the package index that pip is configured for, and are kept in the
folder `VLLM_COORDINATES_CACHE`, or `.cache/` of the repository. Each archive is
held against the hash in the table of releases. Nothing may write into an unpacked
tree: tests copy what they change.
"""

import ast
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement
from unearth import PackageFinder
from unearth.fetchers import PyPIClient

from vllm_coordinates.releases import RELEASES, Release

_DEFAULT_CACHE = Path(__file__).parents[1] / ".cache"
CACHE = Path(os.environ.get("VLLM_COORDINATES_CACHE") or _DEFAULT_CACHE)
_FOLDERS = ("vllm", "rust", "tests")


@cache
def sources_of(release: str, *also: str) -> Path:
    """The unpacked sources of a release.

    Args:
        release: E.g. `"0.32.0"`.
        also: Folders beside `vllm`: `"rust"` (the frontend), `"tests"` (upstream's).

    Returns:
        The folder that holds `vllm/` and `PKG-INFO`.
    """
    row = next(row for row in RELEASES if row.version == release)
    # Folders of their own: what a tree holds must not depend on who asked before.
    tree = CACHE / "sources" / "-".join((release, *sorted(also)))
    tree.mkdir(parents=True, exist_ok=True)
    with _held(tree):
        for folder in ("vllm", *also):
            if not (tree / folder).exists():
                _unpack(_fetch(row), tree, folder)
    return tree


def _unpack(archive: Path, tree: Path, folder: str) -> None:
    """Unpack one folder of the sdist, and the metadata beside it."""
    if folder not in _FOLDERS:
        raise ValueError(f"{folder} is none of {', '.join(_FOLDERS)}")
    with tempfile.TemporaryDirectory(dir=tree) as scratch, tarfile.open(archive) as tar:
        top = archive.name.removesuffix(".tar.gz")
        wanted = (f"{top}/{folder}/", f"{top}/PKG-INFO")
        members = [m for m in tar.getmembers() if m.name.startswith(wanted)]
        tar.extractall(scratch, members, filter="data")
        (Path(scratch) / top / "PKG-INFO").replace(tree / "PKG-INFO")
        (Path(scratch) / top / folder).rename(tree / folder)


def _fetch(release: Release) -> Path:
    """The sdist, as published."""
    archive = CACHE / "sdist" / release.sdist
    if not archive.exists():
        _download(f"vllm=={release.version}", archive)
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != release.sdist_sha256:
        raise RuntimeError(
            f"{archive} has another hash than the table of releases says; remove it"
        )
    return archive


def _download(requirement: str, archive: Path) -> None:
    # pip would build the metadata of an sdist, which needs torch; this only fetches.
    finder = finder_of(no_binary=["vllm"])
    found = finder.find_best_match(Requirement(requirement)).best
    if found is None:
        raise RuntimeError(f"no index that pip knows has the sdist of {requirement}")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        finder.download(found.link, scratch).replace(archive)


def finder_of(**wanted: Sequence[str]) -> PackageFinder:
    """A finder of packages on the indexes that pip is configured for."""
    pip = _pip_settings()
    client = PyPIClient(
        trusted_hosts=pip.get("trusted-host", "").split(),
        verify=pip.get("cert", True),
        timeout=float(pip.get("timeout", pip.get("default-timeout", 60))),
        **({"proxy": pip["proxy"]} if "proxy" in pip else {}),
    )
    index = pip.get("index-url", "").split()
    finder = PackageFinder(session=client, index_urls=index, **wanted)
    for url in pip.get("extra-index-url", "").split():
        finder.add_index_url(url)
    for url in pip.get("find-links", "").split():
        finder.add_find_links(url)
    return finder


def _pip_settings() -> dict[str, str]:
    """What pip's configuration says, the environment last; `pip config list`."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        check=True,
    )
    settings: dict[str, str] = {}
    for line in sorted(listed.stdout.splitlines(), key=lambda x: x.startswith(":env:")):
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in ("global", "download", "install", ":env:"):
            settings[name] = str(ast.literal_eval(value))
    return settings


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """One process at a time; a lock dies with its process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        flock(descriptor, LOCK_EX)
        yield
    finally:
        os.close(descriptor)
