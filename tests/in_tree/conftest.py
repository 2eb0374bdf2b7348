# SPDX-License-Identifier: Apache-2.0
"""What the tests of the in-tree modules share: configurations, and the log.

pytest reads this file before there is a `vllm` to import, so the fixtures do that.
"""

import logging
from collections.abc import Callable, Iterator
from logging.handlers import BufferingHandler
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vllm.config.kv_events import KVEventsConfig


@pytest.fixture(
    params=[None, {}, {"coordinates": True}],
    ids=["without a configuration", "by default", "switched on"],
)
def on(request: pytest.FixtureRequest) -> "KVEventsConfig | None":
    """A configuration of a server that takes coordinates."""
    from vllm.config.kv_events import KVEventsConfig

    return None if request.param is None else KVEventsConfig(**request.param)


@pytest.fixture
def off() -> "KVEventsConfig":
    """The configuration of a server that does not."""
    from vllm.config.kv_events import KVEventsConfig

    return KVEventsConfig(coordinates=False)


@pytest.fixture
def warnings() -> Iterator[Callable[[], list[str]]]:
    """Asked, tells what vLLM has warned of."""
    handler = BufferingHandler(capacity=1000)
    logger = logging.getLogger("vllm")
    logger.addHandler(handler)
    yield lambda: [record.getMessage() for record in handler.buffer]
    logger.removeHandler(handler)
