# SPDX-License-Identifier: Apache-2.0
"""The series on a release's real sources, edit by edit, in memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.version import Version

from sources import sources_of
from vllm_coordinates.plan import Plan, TreeFiles, concerns, make_plan
from vllm_coordinates.semantic import Edit
from vllm_coordinates.series import load_series


@dataclass(frozen=True)
class Step:
    """One edit, and the tree right before it.

    Attributes:
        patch: The name of the edit's patch.
        edit: The edit.
        root: The folder of the release's sources.
        texts: The files as the edits before have left them; others are stock.
    """

    patch: str
    edit: Edit
    root: Path
    texts: Mapping[str, str]

    def tree(self, **other: str) -> TreeFiles:
        """The tree, to make the edit in; of some files it may have other texts."""
        tree = TreeFiles(self.root)
        tree.texts = {**self.texts, **other}
        return tree


@cache
def steps(release: str) -> tuple[Step, ...]:
    """Each edit that the release needs, in order."""
    found = []
    root = sources_of(release)
    tree = TreeFiles(root)
    for patch in (p for p in load_series().patches if concerns(p, root)):
        for edit in patch.edits:
            if not edit.since or Version(release) >= Version(edit.since):
                texts = dict(tree.texts)
                found.append(Step(patch.name, edit, root, texts))
                edit.rewrite(tree)
    return tuple(found)


@cache
def plan_for(release: str) -> Plan:
    """What the series makes of a release."""
    return make_plan(sources_of(release), release, release)


@cache
def stock_texts(release: str) -> Mapping[str, str]:
    """Every Python file of a release as upstream ships it, by path."""
    root = sources_of(release)
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for path in sorted((root / "vllm").rglob("*.py"))
    }


@cache
def patched_texts(release: str) -> Mapping[str, str]:
    """Upstream's Python files of a release, patched; ours are left out."""
    changed = {c.path: c.after.decode() for c in plan_for(release).changes if c.before}
    return {**stock_texts(release), **changed}
