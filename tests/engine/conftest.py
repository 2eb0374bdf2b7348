# SPDX-License-Identifier: Apache-2.0
"""The servers that the tests share; each is started once, by the first who asks."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cpu_engine.server import ServerOptions
from cpu_engine.tiny_model import TinyModel, ensure_model
from engine import served_trees
from engine.engine import Engine, running
from sources import CACHE

Options = Callable[..., ServerOptions]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and "options" in getattr(
            item, "fixturenames", ()
        ):
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def options() -> Options:
    """Options of a server, with room for what all tests send together."""

    def make(tree: Path, kind: TinyModel = TinyModel.QWEN2, **other: Any) -> Any:
        other.setdefault("num_blocks", 1024)
        model = ensure_model(kind, CACHE / "models")
        return ServerOptions(model, cache=CACHE / "vllm", tree=tree, **other)

    return make


@pytest.fixture(scope="session")
def engine(options: Options) -> Iterator[Engine]:
    """Patched 0.32.0, with the epoch on the wire."""
    with running(
        options(served_trees.patched(), kv_events={"send_publisher_epoch": True})
    ) as started:
        yield started
