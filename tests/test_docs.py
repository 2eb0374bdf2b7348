# SPDX-License-Identifier: Apache-2.0
"""What the documents tell a reader to type works, and what they show is so.

Every command of a `console` block is in the table below, with what runs it.
"""

import re
from pathlib import Path

import pytest

from sources import sources_of
from trees import ROOT
from vllm_coordinates.series import load_patch, load_series

NAMES = {"ids": lambda document: document.relative_to(ROOT).as_posix()}
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("**/*.md"),
        *ROOT.glob("examples/**/*.md"),
    ]
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")

RUN_BY = {
    "make test": "this run",
    "make env": "what this run starts from",
    "make lint": ".ci/run, before this run",
    "make demo": ".ci/run, before this run",
    "make bench": "tests/benchmarks, in its short form",
    "make bench-routing": "tests/gateway, its parts",
    "PYTHONPATH=examples .venv/bin/python -m gateway": "tests/gateway",
    "pip install .": "tests/test_install.py",
    "vllm-coordinates apply": "tests/test_install.py",
    "vllm-coordinates revert": "tests/test_install.py",
    "vllm serve": "tests/engine/conftest.py",
    ".venv/bin/python -m pytest tests/pool --release": "tests/test_every_release.py",
}
"""How each command of the documents starts, and what runs it."""


def blocks(document: Path, language: str) -> list[str]:
    """The texts of a document's fenced blocks in one language."""
    return [
        text for kind, text in BLOCK.findall(document.read_text()) if kind == language
    ]


def commands(document: Path) -> list[str]:
    """The commands that a document's `console` blocks show, without the prompt."""
    lines = (line for text in blocks(document, "console") for line in text.splitlines())
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


@pytest.mark.parametrize("document", DOCUMENTS, **NAMES)
def test_every_command_is_run_somewhere(document):
    known = tuple(RUN_BY)
    assert [line for line in commands(document) if not line.startswith(known)] == []


@pytest.mark.parametrize("place", sorted(set(RUN_BY.values())))
def test_what_is_said_to_run_a_command_is_there(place):
    path = place.partition(",")[0]
    assert "/" not in path or (ROOT / path).exists()


@pytest.mark.parametrize("document", DOCUMENTS, **NAMES)
def test_every_link_leads_to_a_file(document):
    targets = LINK.findall(document.read_text())
    assert [t for t in targets if not (document.parent / t).exists()] == []


def test_the_example_of_a_patch_is_one(tmp_path):
    (example,) = blocks(ROOT / "docs" / "patches.md", "python")
    module = tmp_path / "0999_example.py"
    module.write_text(example)
    (edit,) = load_patch(module).edits
    before = (sources_of("0.32.0") / edit.file).read_text()
    after = edit.apply(before)
    assert len(after.splitlines()) == len(before.splitlines()) + 1
    assert edit.apply(after) == after


def test_the_vocabulary_is_described_whole():
    import vllm_coordinates.semantic as vocabulary

    checks = {"rust_error", "threads"}
    verbs = {name for name in vocabulary.__all__ if name[0].islower()} - checks
    table = (ROOT / "docs" / "patches.md").read_text()
    described = set(re.findall(r"`(\w+)`", table))
    assert verbs <= described


def test_the_contract_names_every_field_that_a_patch_adds():
    contract = (ROOT / "docs" / "contract.md").read_text()
    fields = {
        name
        for patch in load_series().patches
        for edit in patch.edits
        if getattr(edit, "change", None).__class__.__name__ == "function"
        and edit.change.__name__ == "_field_"
        for name in re.findall(r"^ *(\w+): ", edit.text, re.MULTILINE)
    }
    assert [name for name in sorted(fields) if f"`{name}`" not in contract] == []
