# SPDX-License-Identifier: Apache-2.0
"""The series as a reader finds it: numbered, explained, and ours alone."""

import ast
import re
from pathlib import Path

import pytest

from patches.replay import plan_for, stock_texts
from sources import sources_of
from trees import RELEASE_NAMES, ROOT
from vllm_coordinates import series as series_module
from vllm_coordinates.series import load_series

PATCHES = sorted((ROOT / "patches").glob("*.py"))
MODULES = sorted((ROOT / "vllm").rglob("*.py"))
LONG = 40
"""Characters of a line that two people do not write alike by chance."""

SPELLED_ALIKE = {
    # Options of msgspec, and what a type checker makes of them.
    "array_like=True,  # type: ignore[call-arg]",
    "omit_defaults=True,  # type: ignore[call-arg]",
    # A parameter's type, as upstream's types are called.
    "request: ChatCompletionRequest | CompletionRequest | ResponsesRequest,",
}
"""Lines that anyone would write to use what they use."""

every_patch = pytest.mark.parametrize("path", PATCHES, ids=lambda path: path.stem)


def test_every_patch_is_in_the_series_once_and_in_order():
    names = [f"{p.number:04}_{p.name}" for p in load_series().patches]
    assert names == [path.stem for path in PATCHES]
    numbers = [patch.number for patch in load_series().patches]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("patch", load_series().patches, ids=lambda patch: patch.name)
def test_a_patch_says_why_what_upstream_does_what_it_adds_and_when_to_drop_it(patch):
    assert re.fullmatch(r"[A-Z].{20,80}[^.]", patch.title)
    for part in (patch.why, patch.upstream, patch.adds, patch.drop_when):
        assert len(part) > LONG
        assert part.endswith(".")
    assert re.search(r"vllm-project/vllm#\d+", patch.drop_when)


@every_patch
def test_a_patch_is_small(path):
    assert len(path.read_text().splitlines()) <= 140


@every_patch
def test_a_patch_imports_the_vocabulary_and_nothing_else(path):
    nodes = ast.walk(ast.parse(path.read_text()))
    imports = [n for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)]
    assert [getattr(n, "module", n) for n in imports] == ["vllm_coordinates.semantic"]


@pytest.mark.parametrize("missing", ["Why", "Upstream", "Adds", "Drop when"])
def test_a_patch_that_lacks_a_part_is_refused(missing, tmp_path, monkeypatch):
    headings = [h for h in ("Why", "Upstream", "Adds", "Drop when") if h != missing]
    text = '"""Title.\n\n' + "\n\n".join(f"{h}: because." for h in headings) + '\n"""\n'
    (tmp_path / "0010_invented.py").write_text(text + "EDITS = []\n")
    monkeypatch.setattr(series_module, "_home", lambda name: tmp_path)
    with pytest.raises(
        ValueError, match=f"^0010_invented.py: the docstring has no part '{missing}'.$"
    ):
        load_series.__wrapped__()


def test_the_digest_tells_series_apart(tmp_path, monkeypatch):
    text = '"""Title.\n\nWhy: a.\n\nUpstream: b.\n\nAdds: c.\n\nDrop when: d.\n"""\n'
    monkeypatch.setattr(series_module, "_home", lambda name: tmp_path)
    digests = set()
    for name, edits in [("0010_a", "[]"), ("0010_a", "[1][:0]"), ("0020_a", "[]")]:
        file = tmp_path / f"{name}.py"
        file.write_text(f"{text}EDITS = {edits}\n")
        digests.add(load_series.__wrapped__().digest)
        file.unlink()
    assert len(digests) == 3


def own_lines(path: Path) -> set[str]:
    """The long lines of a file of ours, without white space around them."""
    lines = {line.strip() for line in path.read_text().splitlines()}
    return {line for line in lines if len(line) >= LONG and "SPDX" not in line}


def anchors() -> set[str]:
    """The lines of the anchors, which have to be upstream's: they name a place."""
    edits = [edit for patch in load_series().patches for edit in patch.edits]
    found = [getattr(edit, "anchor", "") for edit in edits]
    lines = {line.strip() for anchor in found for line in anchor.splitlines()}
    return {line for line in lines if len(line) >= LONG}


def test_no_line_of_upstreams_is_in_a_patch_or_module():
    ours = set().union(*map(own_lines, [*PATCHES, *MODULES]))
    theirs = {
        stripped
        for release in RELEASE_NAMES
        for text in stock_texts(release).values()
        for line in text.splitlines()
        if (stripped := line.strip()) in ours
    }
    copied = {
        line
        for line in theirs - SPELLED_ALIKE
        if " import " not in line and not any(anchor in line for anchor in anchors())
    }
    assert copied == set()


@pytest.mark.parametrize("release", RELEASE_NAMES)
def test_ours_are_new_files(release):
    ours = {change.path for change in plan_for(release).changes if not change.before}
    assert ours == load_series().modules.keys()
    assert not any((sources_of(release) / path).exists() for path in ours)
