# SPDX-License-Identifier: Apache-2.0
"""The launcher and the tap, which the demonstration and the tests stand on."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from cpu_engine.server import EngineServer, ServerError
from cpu_engine.tap import EventTap
from engine import served_trees
from engine.conftest import Options
from engine.engine import BLOCK, Engine, assert_ended, family, fresh_tokens
from trees import ROOT


def test_a_server_that_does_not_start_says_why(options: Options) -> None:
    server = EngineServer(options(served_trees.stock(), max_model_len=10**6))
    with pytest.raises(ServerError, match="max_model_len") as raised:
        server.start()
    assert str(raised.value).startswith("the server exited before it answered")
    assert str(server.log) in str(raised.value)
    assert not server.alive()


def test_the_engine_core_is_a_process_that_a_stop_must_reach(engine: Engine) -> None:
    """Every server of these tests is checked for what it leaves behind."""
    assert len(family(engine.server)) > 1


def test_a_tap_that_joins_late_reads_from_the_first_batch_on(engine: Engine) -> None:
    engine.complete(fresh_tokens(BLOCK + 1)).raise_for_status()
    last = engine.frames()[-1].seq
    with EventTap(engine.sources[0]) as late:
        frames = late.read_until(lambda frame: frame.seq == last)
    assert [frame.seq for frame in frames] == list(range(last + 1))


STARTER = """
from cpu_engine.server import EngineServer, ServerOptions
from pathlib import Path
server = EngineServer(ServerOptions(Path("{model}"), Path("{cache}"), Path("{tree}")))
server.start(lambda phase: print(server.pid, flush=True))
"""


def test_a_server_ends_with_the_process_that_started_it(options: Options) -> None:
    """Even when that one is killed, and the server is only about to start."""
    chosen = options(served_trees.stock())
    program = STARTER.format(model=chosen.model, cache=chosen.cache, tree=chosen.tree)
    starter = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'examples'}:{ROOT}"},
    )
    with starter:
        assert starter.stdout
        server = psutil.Process(int(starter.stdout.readline()))
        starter.kill()
    assert_ended([server])


def test_a_demonstration_that_is_told_to_end_takes_its_server_along(
    options: Options,
) -> None:
    chosen = options(served_trees.stock())
    command = [sys.executable, "-m", "cpu_engine.demo", "--keep"]
    demo = subprocess.Popen(
        [*command, "--cache", chosen.cache.parent],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'examples'}:{ROOT}"},
        text=True,
    )
    with demo:
        assert demo.stdout
        assert any("The server runs until" in line for line in demo.stdout)
        servers = psutil.Process(demo.pid).children(recursive=True)
        assert servers
        demo.send_signal(signal.SIGTERM)
        # Its last words need somebody who listens.
        assert "Stopping the server" in demo.stdout.read()
    assert demo.returncode == 0
    assert_ended(servers)
