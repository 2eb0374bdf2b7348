# SPDX-License-Identifier: Apache-2.0
"""What requests without labels publish: stock's bytes, and where full mode differs."""

import json
import subprocess
import sys
from collections import Counter

import pytest
from pool.stock_traffic import SCENES

from trees import ROOT, environment, patched_tree, stock_tree

FULL = [scene for scene in SCENES if "FULL" in scene]
INCREMENTAL = [scene for scene in SCENES if scene not in FULL]


@pytest.fixture(scope="module")
def played(release):
    """Every scene, played by the patched and the stock vLLM of one release."""
    patched, stock = (
        subprocess.Popen(
            [sys.executable, "-m", "pool.stock_traffic"],
            env=_environment(tree(release)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for tree in (patched_tree, stock_tree)
    )
    outputs = [process.communicate()[0] for process in (patched, stock)]
    assert patched.returncode == stock.returncode == 0
    ours, theirs = (json.loads(out[out.index("{") :]) for out in outputs)
    return {
        scene: list(zip(ours[scene], theirs[scene], strict=True)) for scene in SCENES
    }


def _environment(tree):
    return {
        **environment(tree),
        "PYTHONPATH": f"{tree}:{ROOT / 'tests'}:{ROOT}",
        # Upstream keeps the hashes of one block in a set.
        "PYTHONHASHSEED": "0",
    }


def without_reports(step):
    return [e for i, e in enumerate(step["events"]) if i not in step["reports"]]


@pytest.mark.parametrize("scene", SCENES)
def test_blocks_go_where_stock_puts_them(scene, played):
    for ours, theirs in played[scene]:
        assert ours["seen"] == theirs["seen"]


@pytest.mark.parametrize("scene", INCREMENTAL)
def test_incremental_events_are_stocks_byte_for_byte(scene, played):
    told = 0
    for ours, theirs in played[scene]:
        assert ours["events"] == theirs["events"]
        told += len(ours["events"])
    assert told > 50


@pytest.mark.parametrize("scene", FULL)
def test_full_mode_keeps_every_event_but_the_reports_of_reuse(scene, played):
    for ours, theirs in played[scene]:
        assert without_reports(ours) == without_reports(theirs)


@pytest.mark.parametrize("scene", FULL)
def test_full_mode_reports_what_is_true_of_stocks_reports_once(scene, played):
    said = 0
    for ours, theirs in played[scene]:
        assert ours["said"] == theirs["due"]
        said += len(ours["said"])
    assert said > 10


def test_of_full_attention_the_missing_events_are_those_of_requests_that_wait(played):
    repeated = 0
    for ours, theirs in played["plain, STOCK_FULL"]:
        missing = Counter(theirs["events"])
        missing.subtract(ours["events"])
        assert min(missing.values(), default=0) >= 0
        assert missing.total() == len(theirs["said"]) - len(theirs["due"])
        repeated += missing.total()
    assert repeated > 0
