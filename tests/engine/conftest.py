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
from engine.traffic import SMALL_POOL, reset, talk
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


@pytest.fixture(scope="session")
def switched_off(options: Options) -> Iterator[Engine]:
    """Patched 0.32.0 with labels switched off, and a pool that evicts."""
    switch = {
        "kv_events": {"coordinates": False},
        "extra_args": ("--enable-scale-out",),
    }
    with running(options(served_trees.patched(), **SMALL_POOL | switch)) as started:
        yield started


@pytest.fixture(scope="session")
def stock(options: Options) -> Iterator[tuple[Engine, list[bytes]]]:
    """Stock 0.32.0, and what it published for `talk` and `reset` at first."""
    with running(options(served_trees.stock(), **SMALL_POOL)) as started:
        yield started, talk(started) + reset(started)


@pytest.fixture
def stock_engine(stock: tuple[Engine, list[bytes]]) -> Engine:
    """Stock 0.32.0."""
    return stock[0]


@pytest.fixture(scope="session")
def stock_traffic(stock: tuple[Engine, list[bytes]]) -> list[bytes]:
    """The payloads of stock 0.32.0 for `talk` and `reset`."""
    return stock[1]


@pytest.fixture(scope="session")
def patched_traffic(options: Options) -> dict[str, list[bytes]]:
    """Those of patched 0.32.0 as "unlabeled", then of labeled `talk` by report mode."""
    labels: dict[str, Any] = {"session_id": "s", "continuation_id": "c"}
    with running(options(served_trees.patched(), **SMALL_POOL)) as patched:
        found = {"unlabeled": talk(patched) + reset(patched)}
        for number, mode in enumerate(("incremental", "full", "coordinates"), 1):
            xargs = {"kv_cache_report_mode": mode}
            found[mode] = talk(patched, 10 + 100 * number, **labels, vllm_xargs=xargs)
    return found
