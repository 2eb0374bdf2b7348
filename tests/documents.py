# SPDX-License-Identifier: Apache-2.0
"""The documents: each block and command that they show, and what runs it.

The tables below are the one place that says so. A test that is named in them takes
from here what it has to run (`blocks_run_by`, `commands_run_by`), and `test_docs.py`
fails on whatever is in no table: so nothing that a reader may type goes untried.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from trees import ROOT

DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)

COMMANDS = {
    "make test": "this run",
    "make env": "what this run starts from",
    "make lint": ".ci/run, before this run",
    "make demo": "tests/engine/test_documents.py, its parts",
    "make serve": "tests/engine/test_documents.py, its parts",
    "make docs": "tests/test_docs.py",
    "make bench": "tests/benchmarks, in its short form",
    "make bench-routing": "tests/gateway, its parts",
    "PYTHONPATH=examples .venv/bin/python -m gateway": "tests/gateway",
    "pip install .": "tests/test_install.py",
    "vllm-coordinates apply": "tests/test_install.py",
    "vllm-coordinates status": "tests/test_install.py",
    "vllm-coordinates diff": "tests/test_install.py",
    "vllm-coordinates revert": "tests/test_install.py",
    "vllm-coordinates diff --tree checkout --series": "tests/tool/test_review.py",
    "git -C checkout am": "tests/tool/test_review.py",
    "make wheel": "tests/test_install.py",
    "vllm serve MODEL": "tests/in_tree/test_documents.py",
    "docker run": "tests/in_tree/test_documents.py",
    "curl": "tests/engine/test_documents.py",
    "vllm-coordinates record": "tests/engine/test_documents.py",
    "vllm-coordinates verify": "tests/engine/test_documents.py",
    "vllm-coordinates watch": "tests/engine/test_documents.py",
    ".venv/bin/vllm-coordinates verify": "tests/engine/test_documents.py",
    ".venv/bin/vllm-coordinates watch": "tests/engine/test_documents.py",
    ".venv/bin/python -m pytest tests/pool --release": "tests/test_every_release.py",
    "make soak": "tests/pool/test_soak.py, for a moment",
    "make test-upstream": "tests/upstream/test_short.py, a part of it",
    "RESTARTS=20 .venv/bin/python -m pytest tests/stream/test_real_engine.py": (
        "tests/stream/test_real_engine.py, once"
    ),
    "docker build": "tests/test_container.py",
}
"""How each command of a `console` block starts, and what runs it."""

BLOCKS = {
    ("README.md", "text"): "tests/engine/test_documents.py",
    ("docs/consumers.md", "python"): "tests/engine/test_documents.py",
    ("docs/entrances.md", "json"): "tests/engine/test_documents.py",
    ("docs/gateway.md", "nginx"): "tests/gateway/test_nginx.py",
    ("docs/gateway.md", "yaml"): "tests/gateway/test_envoy.py",
    ("docs/index.md", "json"): "tests/test_docs.py",
    ("docs/patches.md", "diff"): "tests/test_docs.py",
    ("docs/patches.md", "python"): "tests/test_docs.py",
    ("docs/patches.md", "text"): "tests/test_docs.py",
    ("docs/quickstart.md", "python"): "tests/engine/test_documents.py",
}
"""What runs the blocks of one language in one document."""

NOT_RUN = {
    ("docs/entrances.md", "sh"): "They\nhave not been compiled",
}
"""What cannot be run here, and the words of the document that say so."""

SHOWS_OUTPUT = {"PYTHONPATH=examples .venv/bin/python -m gateway": "tests/gateway"}
"""Commands that a `console` block shows with what they print."""

_BLOCK = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        document: Path from the root of the repository.
        line: Of its first line of text, from 1.
        language: What stands behind the fence.
        text: What is between the fences, without their indentation.
    """

    document: str
    line: int
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The commands of a `console` block, without prompts; none of another."""
        return [command for command, _ in self._parts()]

    @property
    def outputs(self) -> list[tuple[str, str]]:
        """Each command of a `console` block that is shown with output, and that."""
        return [(command, output) for command, output in self._parts() if output]

    def _parts(self) -> list[tuple[str, str]]:
        parts: list[tuple[str, str]] = []
        if self.language != "console":
            return parts
        lines = self.text.splitlines()
        while lines:
            line = lines.pop(0)
            if line.startswith("$ "):
                command = line.removeprefix("$ ")
                while lines and not _is_complete(command):
                    command += f"\n{lines.pop(0)}"
                parts.append((command, ""))
            else:
                command, output = parts.pop() if parts else ("", "")
                parts.append((command, f"{output}{line}\n"))
        return parts

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(document: str) -> list[Block]:
    """The fenced blocks of a document, in order."""
    text = (ROOT / document).read_text()
    return [
        Block(
            document,
            text.count("\n", 0, found.start(3)) + 1,
            found[2],
            dedent(found[3]),
        )
        for found in _BLOCK.finditer(text)
    ]


def blocks_run_by(place: Path, language: str, document: str = "") -> list[Block]:
    """The blocks of one language that the tables leave to the test file `place`."""
    mine = {key for key, runner in BLOCKS.items() if _is(place, runner)}
    return [
        block
        for name, kind in sorted(mine)
        for block in blocks(name)
        if kind == block.language == language and document in ("", name)
    ]


def commands_run_by(place: Path) -> list[tuple[Block, str]]:
    """The commands that the tables leave to the test file `place`, with their block."""
    return [
        (block, command)
        for document in DOCUMENTS
        for block in blocks(document)
        for command in block.commands
        if _is(place, runner_of(command) or "")
    ]


def rows(document: str, heading: str) -> list[list[str]]:
    """The cells of the tables in one section, without the rows that head them."""
    text = (ROOT / document).read_text()
    _, found, section = text.partition(f"# {heading}\n")
    assert found, f"{document} has no section {heading!r}"
    section = re.split(r"^#", section, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    ruled = [i for i, line in enumerate(lines) if set(line) <= set("|-: ")]
    heads = {i for rule in ruled for i in (rule - 1, rule)}
    kept = [line for i, line in enumerate(lines) if i not in heads]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in kept]


def runner_of(command: str) -> str | None:
    """What the table says of a command; None where it says nothing."""
    starts = [start for start in COMMANDS if f"{command} ".startswith(f"{start} ")]
    return COMMANDS[max(starts, key=len)] if starts else None


def file_of(runner: str) -> str:
    """The file or folder that a table names."""
    return runner.partition(",")[0]


def _is(place: Path, runner: str) -> bool:
    return place.relative_to(ROOT).as_posix() == runner


def _is_complete(command: str) -> bool:
    if command.endswith("\\"):
        return False
    try:
        shlex.split(command)
    except ValueError:
        return False
    return True
