# SPDX-License-Identifier: Apache-2.0
"""The Rust frontend's sources: what the series makes of them, short of compiling."""

import ast
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from ast_grep_py import SgRoot

from sources import sources_of
from trees import RELEASE_NAMES, ROOT
from vllm_coordinates.plan import make_plan
from vllm_coordinates.series import Series, load_patch

PATCHES = ROOT / "patches"
REQUEST = "rust/src/engine-core-client/src/protocol/request.rs"
PROTO = "rust/proto/inference.proto"
STRUCTS = [
    "ChatCompletionRequest",
    "ChatRequest",
    "CompletionRequest",
    "EngineCoreRequest",
    "GenerateRequest",
    "ResolvedRequestContext",
    "TextRequest",
]


def patched(release: str, folder: str, *patches: str) -> Mapping[str, str]:
    """The files that some patches change, as they leave them."""
    series = Series(tuple(load_patch(PATCHES / p) for p in patches), {}, digest="")
    tree = sources_of(release, folder)
    plan = make_plan(tree, release, release, series=series)
    return {change.path: change.after.decode() for change in plan.changes}


@pytest.fixture(scope="module", params=RELEASE_NAMES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def files(release: str) -> Mapping[str, str]:
    """The changed files of `rust/`."""
    return patched(release, "rust", "0310_rust_frontend.py")


def structs(files: Mapping[str, str]) -> dict[str, list[str]]:
    """The names of the fields of every struct of the changed files."""
    found = {}
    for path, text in files.items():
        if path.endswith(".rs"):
            for struct in SgRoot(text, "rust").root().find_all(kind="struct_item"):
                name = struct.field("name")
                fields = struct.find_all(kind="field_declaration")
                names = [f.field("name") for f in fields]
                assert name is not None
                found[name.text()] = [n.text() for n in names if n is not None]
    return found


def test_every_struct_with_a_session_has_a_continuation(
    files: Mapping[str, str],
) -> None:
    with_label = {
        label: sorted(
            name for name, fields in structs(files).items() if label in fields
        )
        for label in ("session_id", "continuation_id")
    }
    assert with_label["session_id"] == with_label["continuation_id"] == STRUCTS


def test_every_line_that_threads_one_label_threads_the_other(
    files: Mapping[str, str],
) -> None:
    for text in files.values():
        counts = [
            len(re.findall(rf"\b\w*{label}\b", _without_comments(text)))
            for label in ("session_id", "continuation_id")
        ]
        assert counts[0] == counts[1] > 0


def test_both_frontends_encode_the_same_array(
    release: str, files: Mapping[str, str]
) -> None:
    module = patched(
        release, "vllm", "0020_label_resolution.py", "0030_request_plumbing.py"
    )
    python = ast.parse(module["vllm/v1/engine/__init__.py"])
    [request] = (
        node
        for node in python.body
        if isinstance(node, ast.ClassDef) and node.name == "EngineCoreRequest"
    )
    fields = [
        ast.unparse(node.target)
        for node in request.body
        if isinstance(node, ast.AnnAssign)
    ]
    assert structs(files)["EngineCoreRequest"] == fields
    assert fields[-1] == "continuation_id"


def test_an_engine_core_that_sends_no_last_element_is_understood(
    files: Mapping[str, str],
) -> None:
    last = re.search(
        r"#\[serde\(default\)\]\n    pub continuation_id: Option<String>,\n\}",
        files[REQUEST],
    )
    assert last is not None


def test_the_header_is_read_beside_the_session_s(files: Mapping[str, str]) -> None:
    utils = files["rust/src/server/src/utils.rs"]
    assert utils.count('.get("X-Session-ID")') == 1
    assert utils.count('.get("X-Continuation-ID")') == 1


def test_the_grpc_request_has_field_19(files: Mapping[str, str]) -> None:
    message = re.search(
        r"^message GenerateRequest \{\n(.*?)^\}", files[PROTO], re.M | re.S
    )
    assert message is not None
    assert "  optional string continuation_id = 19;\n" in message[1]
    numbers = re.findall(r"= (\d+);", message[1])
    assert len(set(numbers)) == len(numbers)


def test_every_file_is_rust(files: Mapping[str, str]) -> None:
    for path, text in files.items():
        if path.endswith(".rs"):
            assert SgRoot(text, "rust").root().find(kind="ERROR") is None, path


@pytest.mark.skipif(shutil.which("rustfmt") is None, reason="there is no rustfmt here")
def test_every_file_is_formatted(release: str, files: Mapping[str, str]) -> None:
    rules = sources_of(release, "rust") / "rust"
    faults = {path: _format_fault(text, rules) for path, text in files.items()}
    assert {path: fault for path, fault in faults.items() if fault} == {
        PROTO: faults[PROTO]  # which is no Rust: the check can fail
    }


def test_a_tree_without_the_rust_frontend_is_patched_as_ever(tmp_path: Path) -> None:
    shutil.copytree(
        sources_of("0.32.0") / "vllm", tmp_path / "vllm", copy_function=_link
    )
    changed = {c.path for c in make_plan(tmp_path, "0.32.0", "0.32.0").changes}
    assert changed
    assert all(path.startswith("vllm/") for path in changed)


def _link(source: str, target: str) -> None:
    Path(target).symlink_to(source)


def _format_fault(text: str, rules: Path) -> str:
    ran = subprocess.run(
        ["rustfmt", "--check", "--edition", "2024", "--config-path", str(rules)],
        input=text,
        capture_output=True,
        text=True,
    )
    return ran.stdout + ran.stderr if ran.returncode else ""


def _without_comments(text: str) -> str:
    return re.sub(r"//.*", "", text)
