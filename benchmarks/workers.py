# SPDX-License-Identifier: Apache-2.0
"""Processes that import vLLM from a tree of their own and measure on request.

A worker is idle between two requests, so any number of them can take turns. It is
`python -m benchmarks.on_tree MODULE`, and reads one JSON line for each call.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from trees import ROOT, environment


class WorkerError(RuntimeError):
    """A worker died: what it was asked for; what it printed is on the terminal."""


class Worker:
    """One process; a context manager that ends it.

    Args:
        tree: The folder to import `vllm` from.
        module: Of `benchmarks/on_tree`, by its name there; its functions can be
            called.
        env: More environment variables.
    """

    def __init__(
        self, tree: Path, module: str, env: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.on_tree", module],
            cwd=ROOT,
            env={**environment(tree), **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.kill()
        self._process.communicate()

    def begin(self, function: str, **arguments: Any) -> None:
        """Asks for a call without waiting for it; `end` returns the result."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([function, arguments]) + "\n")
        self._process.stdin.flush()

    def end(self) -> Any:
        """What the call that was begun returned.

        Raises:
            WorkerError: It raised an exception.
        """
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise WorkerError(f"a worker exited with {self._process.wait()}")
        return json.loads(answer)

    def call(self, function: str, **arguments: Any) -> Any:
        """Calls a function of the worker's module and waits for what it returns."""
        self.begin(function, **arguments)
        return self.end()
