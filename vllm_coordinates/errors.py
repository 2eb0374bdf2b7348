# SPDX-License-Identifier: Apache-2.0
"""What can go wrong in front of a user, with the exit code each kind ends with.

`str(error)` is one sentence: what is wrong, where, and what to do now. The
command line prints it after `error: ` and never shows a traceback for it.

| exit code | meaning                                                              |
|-----------|----------------------------------------------------------------------|
| 0         | done, or nothing to do                                               |
| 1         | `verify` found a stream that breaks the contract                     |
| 2         | wrong usage of the command line                                      |
| 3         | no vLLM to work on: none, not one, several, or an editable install   |
| 4         | a release of vLLM that the series was not tested on                  |
| 5         | a place that a patch needs was not found as often as it states       |
| 6         | a file was modified by somebody else                                 |
| 7         | the tree or the output cannot be written                             |
| 8         | another process is at work on the same tree                          |
| 9         | an apply or a revert was interrupted and waits to be finished        |
| 10        | a wheel that cannot be built from                                    |
| 11        | no source of events, or nothing was read from it                     |
| 12        | a file that is not a recording                                       |
| 130       | stopped by Ctrl-C; what reads a stream just ends by it               |
"""

from collections.abc import Sequence
from typing import ClassVar


class CoordinatesError(Exception):
    """An expected fault, told in one sentence."""

    exit_code: ClassVar[int] = 1


class TargetError(CoordinatesError):
    """There is no single vLLM to work on."""

    exit_code = 3


class UnsupportedError(CoordinatesError):
    """The vLLM found is not of a tested release."""

    exit_code = 4


class AnchorError(CoordinatesError):
    """A place that an edit names is missing, or there are too many of it.

    Args:
        patch: Name of the patch, e.g. `"0003_block_stored"`.
        file: Path in vLLM's tree.
        anchor: The place in words.
        release: The release that the tree was recognised as.
        expected: How many places the edit states.
        found: How many there are.
        tested: Whether the series is tested on that release.
    """

    exit_code = 5

    def __init__(
        self,
        *,
        patch: str,
        file: str,
        anchor: str,
        release: str,
        expected: int,
        found: int,
        tested: bool = True,
    ) -> None:
        advice = f"vLLM {release} is not supported; install a tested release"
        if tested:
            files = "those files" if "*" in file else "that file"
            advice = f"restore {files}, or wait for a series that supports it"
        super().__init__(
            f"patch {patch} does not fit {file} of vLLM {release}: {anchor} was"
            f" found {_times(found)}, expected {_times(expected)}; nothing was"
            f" written: {advice}"
        )
        self.patch = patch
        self.file = file
        self.anchor = anchor
        self.release = release
        self.expected = expected
        self.found = found


class ModifiedError(CoordinatesError):
    """A file differs from what its distribution, or `apply`, put there."""

    exit_code = 6


class WriteError(CoordinatesError):
    """A file or folder cannot be written."""

    exit_code = 7


class BusyError(CoordinatesError):
    """Another process holds the tree."""

    exit_code = 8


class UnfinishedError(CoordinatesError):
    """An interrupted `apply` or `revert` has to be finished first."""

    exit_code = 9


class WheelError(CoordinatesError):
    """The file is not a wheel of vLLM that can be patched."""

    exit_code = 10


class StoppedError(CoordinatesError):
    """The user pressed Ctrl-C."""

    exit_code = 130


def enumerate_paths(paths: Sequence[str]) -> str:
    """Paths as a sentence has them: `a`, `a and b`, `a, b and c`."""
    if len(paths) == 1:
        return paths[0]
    return f"{', '.join(paths[:-1])} and {paths[-1]}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
