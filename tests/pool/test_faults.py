# SPDX-License-Identifier: Apache-2.0
"""Whatever breaks in the attributions, the engine lives and no phantom is left."""

import logging

import pytest
from pool.invariants import Readers
from pool.layouts import MAMBA
from pool.ledger import Ledger
from pool.test_reports import Bench
from pool.traffic import Lineage, Voice

from vllm.v1.core import admissions, coordinate_events
from vllm.v1.core.admissions import Admissions

PLACES = [
    (Admissions, "_admit"),
    (Admissions, "_adopt"),
    (Admissions, "_attribute"),
    (Admissions, "_say"),
    (Admissions, "_withdraw"),
    (Admissions, "_publish_span"),
    (Admissions, "_publish_removal"),
    (Admissions, "_start_run"),
    (Admissions, "_value"),
    (Admissions, "_owner"),
    (Admissions, "_release"),
    (Admissions, "report_reuse"),
    (admissions, "span_stored"),
    (admissions, "span_removed"),
    (admissions, "external_hash"),
    (coordinate_events, "_resident_runs"),
    (coordinate_events, "_longest_entry"),
]
VOICES = (Voice.STOCK, Voice.COORDINATES, Voice.LABELED, Voice.FULL, Voice.COORDINATES)
TURNS = ("ac", "acd", "ac", "dd", "ddb", "acd", "c", "cb", "ac", "acda")


class Fault(Exception):
    pass


def breaking(function, after):
    """The function, which raises from some call on."""
    calls = 0

    def broken(*args, **options):
        nonlocal calls
        calls += 1
        if calls > after:
            raise Fault("injected")
        return function(*args, **options)

    return broken


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[n for _, n in PLACES])
def test_a_fault_ends_the_coordinates_and_nothing_else(
    owner, name, after, monkeypatch, caplog
):
    bench = Bench(MAMBA, num_blocks=50)
    pool = bench.engine.pool
    lineage = Lineage()
    ledger = Ledger(lineage, MAMBA.block_sizes)
    readers = Readers(ledger, pool)
    monkeypatch.setattr(owner, name, breaking(getattr(owner, name), after))
    with caplog.at_level(logging.ERROR):
        for i, turns in enumerate(TURNS * 3):
            request = bench.ask(turns, VOICES[i % 5], max_tokens=5)
            for _ in range(7):
                if request in bench.engine.requests:
                    lineage.note(turns, bench.engine.requests[request])
                bench.engine.step(lambda request: 50 + request.num_output_tokens)
                readers.take(bench.engine.published.take())
                readers.check_no_phantom()
            if i % 4 == 3:
                pool.evict_blocks({i, i + 1, i + 2})
                readers.check_no_phantom()
    broke = [r for r in caplog.records if "Session coordinates are off" in r.message]
    assert len(broke) == 1
    assert not pool.admissions.attributions
    assert not pool.admissions._owners
