# SPDX-License-Identifier: Apache-2.0
"""0.33.0 serves and echoes labels too, over 0.32.0's compiled extensions."""

from collections.abc import Iterator

import httpx
import pytest

from engine import served_trees
from engine.conftest import Options
from engine.engine import BLOCK, Engine, fresh_text, fresh_tokens, running


@pytest.fixture(scope="module")
def engine_0_33(options: Options) -> Iterator[Engine]:
    """Patched 0.33.0, with the epoch on the wire."""
    with running(
        options(served_trees.patched_0_33(), kv_events={"send_publisher_epoch": True})
    ) as started:
        yield started


def test_it_is_0_33(engine_0_33: Engine) -> None:
    version = httpx.get(f"{engine_0_33.server.url}/version").json()["version"]
    assert version.startswith("0.33.0")


def test_labels_reach_the_admission(engine_0_33: Engine) -> None:
    engine_0_33.stored()
    engine_0_33.chat(
        fresh_text(), headers={"X-Session-ID": "s", "X-Continuation-ID": "c"}
    ).raise_for_status()
    [event] = engine_0_33.stored()
    assert (event.session_id, event.continuation_id) == ("s", "c")


def test_a_bad_label_is_refused(engine_0_33: Engine) -> None:
    response = engine_0_33.complete(fresh_tokens(BLOCK), continuation_id=" ")
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert "continuation_id must not be blank." in message


def test_the_epoch_is_shown_and_sent(engine_0_33: Engine) -> None:
    [source] = engine_0_33.sources
    engine_0_33.complete(fresh_tokens(BLOCK + 1)).raise_for_status()
    epochs = {frame.batch.publisher_epoch for frame in engine_0_33.frames()}
    assert epochs == {source.publisher_epoch} != {None}
