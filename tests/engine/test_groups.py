# SPDX-License-Identifier: Apache-2.0
"""A model with several cache groups: each event of an admission carries the labels."""

from collections.abc import Iterator

import pytest

from cpu_engine.tiny_model import TinyModel
from engine import served_trees
from engine.conftest import Options
from engine.engine import BLOCK, Engine, fresh_tokens, running


@pytest.fixture(scope="module")
def grouped(options: Options) -> Iterator[Engine]:
    """Patched 0.32.0: three sliding-window layers and one of full attention."""
    with running(options(served_trees.patched(), TinyModel.GEMMA3)) as started:
        yield started


def test_every_group_s_admission_carries_the_labels(grouped: Engine) -> None:
    grouped.stored()
    grouped.complete(
        fresh_tokens(8 * BLOCK), session_id="s", continuation_id="c"
    ).raise_for_status()
    admissions = grouped.stored()
    assert {event.group_idx for event in admissions} == {0, 1, 2, 3}
    assert {event.continuation_id for event in admissions} == {"c"}
    assert {event.session_id for event in admissions} == {"s"}
