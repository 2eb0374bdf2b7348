# SPDX-License-Identifier: Apache-2.0
"""What a benchmark found, as a JSON file, and the circumstances it was found in."""

import json
import os
import platform
import shlex
import sys
from datetime import date
from pathlib import Path
from typing import Any

from trees import ROOT
from vllm_coordinates.series import load_series

FOLDER = ROOT / "docs" / "performance"


def write(benchmark: str, path: Path | None, found: dict[str, Any]) -> Path:
    """Writes what was found, with machine, releases and command.

    Args:
        benchmark: The command's name, e.g. `"pool"`.
        path: The file; None is the one that the docs are made of.
        found: JSON; what it holds is the benchmark's own.

    Returns:
        The file.
    """
    path = path or FOLDER / f"{benchmark}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    arguments = shlex.join(_told(sys.argv[1:]))
    path.write_text(
        json.dumps(
            {
                "benchmark": benchmark,
                "command": f"python -m benchmarks.{benchmark} {arguments}".rstrip(),
                "date": date.today().isoformat(),
                "machine": machine(),
                "series": load_series().digest[:12],
                **found,
            },
            indent=1,
        )
        + "\n"
    )
    return path


def read(benchmark: str) -> dict[str, Any] | None:
    """What the last run found, for the docs; None if there is none."""
    path = FOLDER / f"{benchmark}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def machine() -> dict[str, str | int]:
    """The machine, as far as it bears on a time."""
    return {
        "cpu": _first("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _first("/proc/meminfo", "MemTotal"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _first(path: str, key: str) -> str:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return "unknown"


def _told(arguments: list[str]) -> list[str]:
    """The arguments, less where the result goes: that is a path of this machine."""
    kept = list(arguments)
    if "--output" in kept:
        at = kept.index("--output")
        del kept[at : at + 2]
    return kept
