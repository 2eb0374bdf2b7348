# SPDX-License-Identifier: Apache-2.0
"""What the documents tell a reader to type works, and what they show is so.

Every block and command is in a table of `documents.py`, with what runs it.
"""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from documents import (
    BLOCKS,
    COMMANDS,
    DOCUMENTS,
    NOT_RUN,
    SHOWS_OUTPUT,
    Block,
    blocks,
    blocks_run_by,
    file_of,
    rows,
    runner_of,
)
from sources import sources_of
from trees import RELEASE_NAMES, ROOT
from vllm_coordinates import errors
from vllm_coordinates.errors import AnchorError
from vllm_coordinates.plan import make_plan
from vllm_coordinates.semantic import Edit
from vllm_coordinates.series import Patch, Series, load_patch, load_series
from vllm_coordinates.stream.wire import BlockRemoved, BlockStored

HERE = Path(__file__)
RUNNERS = {*COMMANDS.values(), *BLOCKS.values(), *SHOWS_OUTPUT.values()}
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
NAMES_EVERY_RELEASE = ("README.md", "CHANGELOG.md", "docs/index.md", "docs/limits.md")

every_document = pytest.mark.parametrize("document", DOCUMENTS)


@every_document
def test_every_fence_is_one_of_a_block(document: str) -> None:
    """Whatever looks like code is looked at by the tests below."""
    fences = re.findall(r"^\s*(?:```|~~~)", (ROOT / document).read_text(), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(document))


@every_document
def test_every_block_is_run_somewhere(document: str) -> None:
    known = BLOCKS.keys() | NOT_RUN.keys()
    unknown = [
        f"{block} is in no table of tests/documents.py"
        for block in blocks(document)
        if block.language != "console" and (document, block.language) not in known
    ]
    assert unknown == []


@every_document
def test_every_command_is_run_somewhere(document: str) -> None:
    commands = [command for block in blocks(document) for command in block.commands]
    assert [command for command in commands if runner_of(command) is None] == []


@every_document
def test_output_is_shown_only_where_a_test_compares_it(document: str) -> None:
    shown = [command for block in blocks(document) for command, _ in block.outputs]
    starts = tuple(SHOWS_OUTPUT)
    assert [command for command in shown if not command.startswith(starts)] == []


@pytest.mark.parametrize("place", sorted(RUNNERS))
def test_what_is_said_to_run_something_is_there(place: str) -> None:
    path = file_of(place)
    assert "/" not in path or (ROOT / path).exists()


@pytest.mark.parametrize("key", [*BLOCKS, *NOT_RUN], ids=" in ".join)
def test_no_table_names_a_block_that_is_gone(key: tuple[str, str]) -> None:
    document, language = key
    assert language in {block.language for block in blocks(document)}


@pytest.mark.parametrize("key", NOT_RUN, ids=" in ".join)
def test_the_document_says_what_was_not_run(key: tuple[str, str]) -> None:
    assert NOT_RUN[key] in (ROOT / key[0]).read_text().replace("**", "")


@every_document
def test_every_link_leads_to_a_file(document: str) -> None:
    path = ROOT / document
    targets = LINK.findall(path.read_text())
    assert [t for t in targets if not (path.parent / t).exists()] == []


@pytest.mark.parametrize("document", NAMES_EVERY_RELEASE)
def test_every_tested_release_is_named_where_people_look(document: str) -> None:
    text = (ROOT / document).read_text()
    assert [name for name in RELEASE_NAMES if name not in text] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    options = ("--quiet", "--fail-on-warning", "--keep-going", "--nitpicky")
    folders = ("--doctree-dir", folder / "doctrees", ROOT / "docs", folder / "html")
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, *folders],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return folder / "html"


def test_the_site_has_every_page(site: Path) -> None:
    """Each is in the navigation, and every link leads to a heading."""
    pages = {f"docs/{path.stem}.md" for path in site.glob("*.html")}
    assert pages >= {name for name in DOCUMENTS if name.startswith("docs/")}


def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    fetched = re.compile(r'<(?:script|img|iframe)[^>]*src="https?:|<link[^>]*"https?:')
    styles = re.compile(r"""@import|url\(['"]?https?:""")
    fetching = [
        path.name
        for path in site.rglob("*")
        if (path.suffix == ".html" and fetched.search(path.read_text()))
        or (path.suffix == ".css" and styles.search(path.read_text()))
    ]
    assert fetching == []


class TestTheWorkedExample:
    """`docs/patches.md`: a patch, what it makes, and what it says when it is lost."""

    @pytest.fixture
    def patch(self, tmp_path: Path) -> Patch:
        [example] = blocks_run_by(HERE, "python", "docs/patches.md")
        module = tmp_path / "0999_example.py"
        module.write_text(example.text)
        return load_patch(module)

    @pytest.fixture
    def edit(self, patch: Patch) -> Edit:
        [edit] = patch.edits
        return edit

    @pytest.fixture
    def before(self, edit: Edit) -> str:
        return (sources_of("0.32.0") / edit.file).read_text()

    def test_it_adds_the_line_that_is_shown(self, edit: Edit, before: str) -> None:
        [shown] = blocks_run_by(HERE, "diff", "docs/patches.md")
        old, new = before.splitlines(), edit.apply(before).splitlines()
        [at] = [i for i, line in enumerate(new) if old[i : i + 1] != [line]][:1]
        assert new == [*old[:at], shown.text.removeprefix("+").rstrip("\n"), *old[at:]]

    def test_it_changes_nothing_a_second_time(self, edit: Edit, before: str) -> None:
        after = edit.apply(before)
        assert edit.apply(after) == after

    @pytest.mark.parametrize(
        "moved", ["def reset_prefix_cache", "BlockHashToBlockMap()"]
    )
    def test_it_says_so_when_its_place_is_gone(
        self, patch: Patch, edit: Edit, before: str, moved: str, tmp_path: Path
    ) -> None:
        [shown] = blocks_run_by(HERE, "text", "docs/patches.md")
        tree = tmp_path / "tree"
        (tree / edit.file).parent.mkdir(parents=True)
        (tree / edit.file).write_text(before.replace(moved, "gone"))
        series = Series((patch,), {}, "0" * 64)
        with pytest.raises(AnchorError) as error:
            make_plan(tree, "0.32.0", "0.32.0", series=series)
        assert str(error.value) == shown.text.rstrip("\n")


@pytest.mark.parametrize("block", blocks_run_by(HERE, "json", "docs/index.md"), ids=str)
def test_an_event_that_is_shown_is_one(block: Block) -> None:
    """With the contract's fields and no others."""
    shown = msgspec.json.decode(block.text)
    event = msgspec.json.decode(block.text, type=BlockStored | BlockRemoved)
    assert msgspec.to_builtins(event) == shown


def test_the_vocabulary_is_described_whole() -> None:
    import vllm_coordinates.semantic as vocabulary

    checks = {"rust_error", "threads"}
    verbs = {name for name in vocabulary.__all__ if name[0].islower()} - checks
    table = (ROOT / "docs" / "patches.md").read_text()
    described = set(re.findall(r"`(\w+)`", table))
    assert verbs <= described


def test_the_contract_names_every_field_that_a_patch_adds() -> None:
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


def test_the_exit_codes_are_those_of_the_errors():
    shown = {int(code): meaning for code, meaning in rows("docs/tool.md", "Exit codes")}
    told = re.findall(r"^\| (\d+) +\| (.*?) +\|$", errors.__doc__, re.MULTILINE)
    assert shown == {int(code): meaning for code, meaning in told}
