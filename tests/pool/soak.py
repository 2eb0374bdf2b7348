# SPDX-License-Identifier: Apache-2.0
"""The histories of the state machines, for as many steps as one cares to wait.

    make soak STEPS=1000000 RELEASE=0.33.0

Prints the rate as it goes, and of a failure the shortest history that shows it.
"""

import argparse
import logging
import os
import subprocess
import sys
import time
from typing import Any

from trees import RELEASE_NAMES, environment, patched_tree

CHUNK = 500
"""Histories between two lines of output; each chunk has a seed of its own."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the state machines for long.")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--release", choices=RELEASE_NAMES, default=RELEASE_NAMES[-1])
    parser.add_argument("--seed", type=int, default=0, help="the first chunk's")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        soak(options.steps, options.seed)
        return
    tree = dict(environment(patched_tree(options.release)))
    tree["PYTHONPATH"] = os.pathsep.join([tree["PYTHONPATH"], *sys.path])
    command = [sys.executable, "-m", "pool.soak", *sys.argv[1:], "--inside"]
    sys.exit(subprocess.call(command, env=tree))


def soak(steps: int, first_seed: int, chunk: int = CHUNK) -> None:
    """Check `steps` steps or more, half of them of each machine."""
    from pool.test_pool_machine import PoolHistory
    from pool.test_scheduler_machine import SchedulerHistory

    logging.disable(logging.CRITICAL)
    for machine in (PoolHistory, SchedulerHistory):
        done, seed, started = 0, first_seed, time.monotonic()
        while done < steps // 2:
            done += _run(machine, seed, chunk)
            rate = done / (time.monotonic() - started)
            name = machine.__name__
            print(f"{name}: seed {seed}, {done:,} steps, {rate:,.0f}/s", flush=True)
            seed += 1


def _run(machine: Any, seed: int, chunk: int) -> int:
    """Run a chunk of histories; the number of their steps."""
    import hypothesis
    from hypothesis.stateful import run_state_machine_as_test

    steps = 0

    class Counted(machine):  # type: ignore[misc]
        def check_invariants(self, *args: Any) -> None:
            nonlocal steps
            steps += 1
            super().check_invariants(*args)

    settings = hypothesis.settings(machine.TestCase.settings, max_examples=chunk)
    run_state_machine_as_test(hypothesis.seed(seed)(Counted), settings=settings)
    return steps


if __name__ == "__main__":
    main()
