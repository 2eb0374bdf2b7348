# SPDX-License-Identifier: Apache-2.0
"""A pytest plug-in for vLLM's own tests: it hurries them, and writes down outcomes.

Loaded into upstream's run with `-p plugin`, from this folder.
"""

import json
import os
from pathlib import Path

import pytest

outcomes: dict[str, str] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Upstream's conftest collects the whole heap after each test without it.
        item.add_marker("skip_global_cleanup")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # A test that fails in its set-up or tear-down has no say in its call.
    if report.when == "call" or report.outcome != "passed":
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xpassed" if report.passed else "xfailed"
        elif report.when != "call" and report.failed:
            outcome = "error"
        outcomes[report.nodeid] = outcome


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        outcomes[f"{report.nodeid} (collection)"] = "error"


def pytest_sessionfinish() -> None:
    Path(os.environ["OUTCOMES"]).write_text(json.dumps(outcomes))
