# SPDX-License-Identifier: Apache-2.0
"""An invented package with vLLM's outline, two series for it, and wheels of it."""

import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

from vllm_coordinates.records import record_hash
from vllm_coordinates.semantic import Edit, add_field, append_to
from vllm_coordinates.series import Patch, Series
from vllm_coordinates.tree import Tree, find_tree

POOL = "vllm/v1/core/block_pool.py"
REQUEST = "vllm/v1/request.py"
EVENTS = "vllm/distributed/kv_events.py"
OURS = "vllm/v1/coordinates.py"
OURS_IN_A_NEW_FOLDER = "vllm/entrypoints/labels/resolve.py"
OURS_IN_ANOTHER = "vllm/labels/v2/resolve.py"
COMPILED = "vllm/_C.abi3.so"
SCRIPT = "vllm/utils/numa.sh"

SOURCES: Mapping[str, bytes] = {
    "vllm/__init__.py": b'"""Invented."""\n',
    "vllm/_version.py": b"__version__ = version = '0.32.0'\n",
    "vllm/entrypoints/__init__.py": b"",
    "vllm/v1/__init__.py": b"",
    "vllm/v1/core/__init__.py": b"",
    "vllm/v1/engine/__init__.py": b"",
    POOL: dedent(
        '''\
        class BlockPool:
            """Invented."""

            def touch(self, block):
                self.touched = block
        '''
    ).encode(),
    REQUEST: b"class Request:\n    session_id: str | None = None\n",
    EVENTS: b"class Removed:\n    medium: str | None = None\n",
    SCRIPT: b"#!/bin/sh\necho invented\n",
    COMPILED: b"\x7fELF" + bytes(4096),
}
EXECUTABLE = {COMPILED, SCRIPT}


def series(*edits: Edit, modules: Mapping[str, bytes], digest: str) -> Series:
    """A series of one patch."""
    patch = Patch(
        number=10,
        name="labels",
        title="Label things",
        why="to test",
        upstream="does not",
        adds="labels",
        drop_when="never",
        edits=edits,
    )
    return Series((patch,), modules, digest)


SERIES = series(
    append_to(POOL, "BlockPool.touch", "self.label = block"),
    add_field(REQUEST, "Request", "continuation_id: str | None = None"),
    modules={OURS: b"LABEL = 1\n", OURS_IN_A_NEW_FOLDER: b"RESOLVE = 1\n"},
    digest="1" * 64,
)
NEXT_SERIES = series(
    append_to(POOL, "BlockPool.touch", "self.label = [block]"),
    add_field(EVENTS, "Removed", "continuation_id: str | None = None"),
    modules={OURS: b"LABEL = 2\n", OURS_IN_ANOTHER: b"RESOLVE = 2\n"},
    digest="2" * 64,
)
"""Drops the change to REQUEST and one module, changes another, adds others."""


def write_sources(folder: Path, *, version: str = "0.32.0") -> Path:
    """An unpacked sdist: the sources, and PKG-INFO beside them."""
    for path, data in SOURCES.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(0o755 if path in EXECUTABLE else 0o644)
    (folder / "PKG-INFO").write_text(f"Name: vllm\nVersion: {version}\n")
    return folder


def write_wheel(
    folder: Path,
    *,
    name: str = "vllm",
    version: str = "0.32.0",
    tags: str = "py3-none-any",
    inner_tags: str | None = None,
    sources: Mapping[str, bytes] = SOURCES,
    recorded: Mapping[str, bytes] | None = None,
) -> Path:
    """A stock wheel.

    Args:
        inner_tags: The tags in WHEEL, where they are not those of the file name.
        recorded: What RECORD is made from, where that is not the sources.
    """
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        "Requires-Dist: packaging\n\nName: no\n"
    )
    wheel = f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {inner_tags or tags}\n"
    members = {
        **sources,
        f"{stem}.data/scripts/vllm-bench": b"#!python\nprint('invented')\n",
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": wheel.encode(),
        f"{info}/entry_points.txt": b"[console_scripts]\nvllm = vllm:main\n",
    }
    record = "".join(
        f"{path},{record_hash(data)},{len(data)}\n"
        for path, data in (members | dict(recorded or {})).items()
    )
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    path = folder / f"{stem}-{tags}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            entry = zipfile.ZipInfo(member, (2026, 1, 2, 3, 4, 6))
            mode = 0o755 if member in EXECUTABLE else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return path


def pip(environment: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run this environment's pip on another environment."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    return subprocess.run(
        [*command, "--python", environment / "bin/python", *arguments],
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )


def site_packages(environment: Path) -> Path:
    """The site-packages folder of a virtual environment of this Python's."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return environment / "lib" / version / "site-packages"


def tree_in(folder: Path) -> Tree:
    """The tree in a folder, anew."""
    return find_tree(folder)


def snapshot(folder: Path, *, bytecode: bool = False) -> dict[str, tuple[int, bytes]]:
    """Every file below a folder: its permissions and its bytes."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mode, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and (bytecode or path.suffix != ".pyc")
    }


def folders(root: Path) -> set[str]:
    """Every folder below a folder, those for bytecode aside."""
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_dir() and path.name != "__pycache__"
    }
