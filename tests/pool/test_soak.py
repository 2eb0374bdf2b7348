# SPDX-License-Identifier: Apache-2.0
"""`make soak`, for a moment."""

from pool.soak import soak


def test_it_runs_both_machines_for_as_many_steps_as_it_says(capsys):
    soak(steps=2, first_seed=7, chunk=1)
    pool, scheduler = capsys.readouterr().out.splitlines()
    assert pool.startswith("PoolHistory: seed 7, ")
    assert scheduler.startswith("SchedulerHistory: seed 7, ")
    assert " 0 steps" not in pool + scheduler
