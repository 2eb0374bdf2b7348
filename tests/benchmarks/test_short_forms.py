# SPDX-License-Identifier: Apache-2.0
"""The benchmarks in short: they run, and no mode costs far more than it should.

Only ratios are held against limits, and the limits are wide: a busy machine must not
fail a test. The targets and what is measured at length are in docs/performance.md.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import page, plots
from trees import ROOT

Found = dict[str, Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a benchmark once, and returns what it wrote."""
    seen: dict[str, Found] = {}

    def measure(name: str, *arguments: str) -> Found:
        if name not in seen:
            path = tmp_path_factory.mktemp(name) / "found.json"
            command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
            subprocess.run(
                [*command, "--output", str(path)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": "tests:examples"},
                check=True,
            )
            seen[name] = json.loads(path.read_text())
        return seen[name]

    return measure


@pytest.fixture(scope="module")
def pool(run):
    return run("pool", "--blocks=1024", "--starts=1", "--rounds=5")


@pytest.fixture(scope="module")
def wire(run):
    return run("wire", "--contexts=8192", "--rounds=2")


@pytest.fixture(scope="module")
def memory(run):
    return run("memory", "--blocks=50000", "--continuations=5000", "--rounds=2")


@pytest.fixture(scope="module")
def publisher(run):
    return run("publisher", "--blocks=1024", "--rounds=5", "--buffered=50")


@pytest.fixture(scope="module")
def stream(run):
    return run("stream", "--events=20000")


def median(found: Found, name: str, side: str) -> float:
    [ratio] = (r for r in found["ratios"] if (r["name"], r["side"]) == (name, side))
    value: float = ratio["median"]
    return value


def num_bytes(found: Found, mode: str, side: str) -> int:
    [row] = (
        b
        for b in found["bytes"]
        if (b["mode"], b["tokens"], b["step"]) == (mode, 8192, "whole")
    )
    value: int = row[side]
    return value


@pytest.mark.parametrize("side", ["admission", "eviction"])
@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("events off", 1.5),
        ("unlabeled", 1.5),
        ("labeled", 1.6),
        ("full", 1.6),
        ("coordinates", 0.8),
        ("coordinates to events off", 3.0),
    ],
)
def test_a_block_costs_about_what_it_should(pool, name, side, limit):
    assert median(pool, name, side) < limit


@pytest.mark.parametrize(("side", "less"), [("admission", 100), ("eviction", 100)])
def test_coordinates_take_a_small_part_of_the_bytes(wire, side, less):
    stock, coordinates = (num_bytes(wire, m, side) for m in ("stock", "coordinates"))
    assert coordinates * less < stock


@pytest.mark.parametrize("side", ["admission", "eviction"])
def test_without_labels_the_bytes_are_as_many_as_stocks(wire, side):
    assert num_bytes(wire, "unlabeled", side) == num_bytes(wire, "stock", side)


def test_a_cached_block_takes_no_more_than_150_bytes_of_the_map(memory):
    assert 0 < memory["map_bytes_per_block"]["coordinates"] <= 150
    assert memory["map_bytes_per_block"]["unlabeled"] == 0


def test_continuations_that_are_evicted_leave_nothing_behind(memory):
    assert memory["passing_through"]["longest_container_left"] == 0


def test_a_context_in_coordinates_costs_less_than_stocks_with_its_publication(
    publisher,
):
    ratios = {r["name"]: r["median"] for r in publisher["ratios"]}
    assert ratios["coordinates"] < 0.8


def test_no_batch_of_a_replay_is_lost(publisher):
    assert {s["replayed"] for s in publisher["stalls"]} == {50}


def test_every_event_of_every_stream_is_read(stream):
    assert {s["events"] for s in stream["streams"].values()} == {20000}
    assert all(s["events_per_second"] > 0 for s in stream["streams"].values())


@pytest.mark.parametrize("name", ["pool", "wire", "memory", "publisher"])
def test_the_figures_say_where_they_are_from(request, name):
    found = request.getfixturevalue(name)
    assert found["command"].startswith(f"python -m benchmarks.{name} --")
    assert found["machine"]["cores"] and found["releases"] and found["series"]
    assert str(Path.home()) not in json.dumps(found)
    assert str(ROOT) not in json.dumps(found)


@pytest.mark.parametrize("name", ["pool", "wire", "memory", "publisher", "stream"])
def test_the_docs_are_made_of_the_figures(request, name):
    body = "\n".join(page.SECTIONS[name](request.getfixturevalue(name)))
    assert "| coordinates" in body


@pytest.mark.parametrize("name", ["pool", "wire", "memory", "publisher"])
def test_a_plot_is_made_of_the_figures(request, tmp_path, name):
    plots.PLOTS[name](request.getfixturevalue(name), tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")


def test_a_page_without_a_place_for_the_figures_is_an_error():
    with pytest.raises(
        ValueError, match=r"^performance\.md has 0 places for pool; it needs one$"
    ):
        page.fill("no marks", "pool", "figures")
