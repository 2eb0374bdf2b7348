# SPDX-License-Identifier: Apache-2.0
"""One server for all tests of this folder, with every endpoint switched on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cpu_engine.server import ServerOptions
from cpu_engine.tiny_model import TinyModel, ensure_model
from engine import served_trees
from engine.engine import Engine, running
from sources import CACHE

STORE = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and "engine" in getattr(
            item, "fixturenames", ()
        ):
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Patched 0.32.0, which stores responses and prints what it does at INFO."""
    options = ServerOptions(
        ensure_model(TinyModel.QWEN2, CACHE / "models"),
        cache=CACHE / "vllm",
        tree=served_trees.patched(),
        num_blocks=1024,
        extra_args=(
            "--enable-scale-out",
            "--enable-log-requests",
            "--enable-auto-tool-choice",
            "--tool-call-parser=hermes",
        ),
        env=STORE,
    )
    with running(options) as started:
        yield started
