# SPDX-License-Identifier: Apache-2.0
"""The series: the numbered semantic patches, and the modules they hook vLLM to."""

import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the patches need it; the digest does not
    from .semantic import Edit

_PACKAGE = Path(__file__).parent
_SECTIONS = {
    "Why": "why",
    "Upstream": "upstream",
    "Adds": "adds",
    "Drop when": "drop_when",
}
_NAMED = re.compile(r'"((?:vllm|rust)/[^"\s]+)"')
_SECTION = re.compile(rf"^({'|'.join(_SECTIONS)}): ", re.MULTILINE)


@dataclass(frozen=True)
class Patch:
    """One concern of the series: a module of `patches/`.

    Attributes:
        number: The position in the series, from the file's name.
        name: The file's name without number and ending, e.g. `"publisher_epoch"`.
        title: The first line of the module's docstring.
        why: Which part of the contract it serves.
        upstream: What vLLM does without it.
        adds: What the patch changes.
        drop_when: What makes the patch unnecessary.
        edits: The changes, in order.
        where: The folder that a tree must have to be changed, e.g. `"rust"`, which
            an installed vLLM lacks; "" is any tree.
    """

    number: int
    name: str
    title: str
    why: str
    upstream: str
    adds: str
    drop_when: str
    edits: tuple["Edit", ...]
    where: str = ""


@dataclass(frozen=True)
class Series:
    """All patches in order, and the modules that are copied into vLLM's tree.

    Attributes:
        patches: The patches, by number.
        modules: Path in vLLM's tree -> the module's bytes.
        digest: SHA-256 of everything above, as 64 hex digits; two trees that
            were patched by the same series carry the same one.
    """

    patches: tuple[Patch, ...]
    modules: Mapping[str, bytes]
    digest: str


@cache
def load_series() -> Series:
    """The series that this installation carries.

    Raises:
        ValueError: A patch's docstring lacks one of its four parts.
    """
    patches = tuple(map(load_patch, _patch_files()))
    return Series(patches, _modules(), series_digest())


def series_digest() -> str:
    """The digest of that series, from its files alone."""
    patches = ((file.name, file.read_bytes()) for file in _patch_files())
    digest = hashlib.sha256()
    for name, data in [*patches, *_modules().items()]:
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def named_files() -> list[str]:
    """The paths and globs in vLLM's tree that the patches' sources name.

    They cover whatever the series changes, and more, and cost no loading of it.
    """
    texts = (file.read_text() for file in _patch_files())
    return sorted({name for text in texts for name in _NAMED.findall(text)})


def _patch_files() -> list[Path]:
    return sorted(_home("patches").glob("[0-9]*_*.py"))


def module_paths() -> list[str]:
    """Where that series' modules go in vLLM's tree, in order."""
    return list(_modules())


def _modules() -> dict[str, bytes]:
    return {
        f"vllm/{path.relative_to(_home('vllm')).as_posix()}": path.read_bytes()
        for path in sorted(_home("vllm").rglob("*.py"))
    }


def _home(name: str) -> Path:
    """A data folder: inside the installed package, else beside it in a checkout."""
    installed = _PACKAGE / "_data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def load_patch(path: Path) -> Patch:
    """One patch, from the file of its module.

    Raises:
        ValueError: The docstring lacks one of its four parts.
    """
    number, _, name = path.stem.partition("_")
    spec = importlib.util.spec_from_file_location(f"_coordinates_patch_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    written = sys.dont_write_bytecode
    # The series may lie in a folder that is not ours to write to.
    sys.dont_write_bytecode = True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    title, *rest = _SECTION.split(inspect.cleandoc(module.__doc__ or ""))
    parts = {
        _SECTIONS[heading]: " ".join(text.split())
        for heading, text in zip(rest[::2], rest[1::2], strict=True)
    }
    missing = [heading for heading, key in _SECTIONS.items() if not parts.get(key)]
    if missing:
        raise ValueError(f"{path.name}: the docstring has no part {missing[0]!r}.")
    return Patch(
        number=int(number),
        name=name,
        title=" ".join(title.split()).rstrip("."),
        edits=tuple(module.EDITS),
        where=getattr(module, "WHERE", ""),
        **parts,
    )
