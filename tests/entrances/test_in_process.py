# SPDX-License-Identifier: Apache-2.0
"""Labels of requests to an engine in process: LLM, LLMEngine and AsyncLLM."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cpu_engine.tiny_model import TinyModel, ensure_model
from engine import served_trees
from sources import CACHE
from trees import ROOT

pytestmark = pytest.mark.engine

Results = dict[str, Any]

BOTH = [["s", "c"]]
NONE = [[None, None]]


def results(kind: str) -> Results:
    """What the scenarios of one kind published or were refused with."""
    paths = [served_trees.patched(), ROOT / "examples", ROOT / "tests", ROOT]
    ran = subprocess.run(
        [
            sys.executable,
            Path(__file__).with_name("in_process.py"),
            kind,
            ensure_model(TinyModel.QWEN2, CACHE / "models"),
        ],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CACHE_ROOT": str(CACHE / "vllm"),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found: Results = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def sync() -> Results:
    return results("sync")


@pytest.fixture(scope="module")
def asynchronous() -> Results:
    return results("async")


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("generate, no labels", NONE),
        ("generate, both in extra_args", BOTH),
        # Without a continuation a request is upstream's, which looks only there
        # where LLMEngine takes session_id.
        ("generate, session alone in extra_args", NONE),
        ("generate, continuation alone", [[None, "c"]]),
        ("generate, empty labels", NONE),
        ("generate, n > 1", BOTH),
        ("chat", BOTH),
        ("add_request", BOTH),
        ("add_request, n > 1", BOTH),
        ("add_request, extra_args lose", BOTH),
    ],
)
def test_llm_carries_labels(sync: Results, scenario: str, expected: Any) -> None:
    assert sync[scenario] == expected


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        (
            "generate, long",
            "continuation_id must have at most 256 characters, not 257.",
        ),
        ("generate, no string", "continuation_id must be a string, not int."),
        (
            "generate, mode",
            "kv_cache_report_mode must be one of incremental, full, coordinates.",
        ),
        (
            "generate, mode lacks a label",
            "kv_cache_report_mode 'coordinates' needs both labels, and session_id is"
            " missing; send it, or use one of incremental, full.",
        ),
        ("add_request, blank", "session_id must not be blank."),
        (
            "add_request, surrogate",
            "session_id must be encodable as UTF-8 (it has a lone surrogate).",
        ),
    ],
)
def test_llm_refuses_what_is_no_label(
    sync: Results, scenario: str, message: str
) -> None:
    assert str(sync[scenario]).startswith(message)


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("no labels", NONE),
        ("arguments", BOTH),
        ("extra_args", BOTH),
        ("extra_args lose", BOTH),
        ("n > 1", BOTH),
        ("resumable", BOTH),
    ],
)
def test_async_llm_carries_labels(
    asynchronous: Results, scenario: str, expected: Any
) -> None:
    assert asynchronous[scenario] == expected


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("blank", "continuation_id must not be blank."),
        ("no string", "session_id must be a string, not int."),
        ("resumable, blank", "continuation_id must not be blank."),
    ],
)
def test_async_llm_refuses_what_is_no_label(
    asynchronous: Results, scenario: str, message: str
) -> None:
    assert str(asynchronous[scenario]).startswith(message)
