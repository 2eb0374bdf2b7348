# SPDX-License-Identifier: Apache-2.0
"""The picture over time, as one HTML file that needs nothing else."""

from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import msgspec

from vllm_coordinates.errors import WriteError

from .board import Snapshot

_MOST_MOMENTS = 600
_MOST_ROWS = 200
_SECONDS_BETWEEN_WRITES = 5.0
_encode = msgspec.json.Encoder().encode


class Pages:
    """Collects snapshots and writes them, each file replaced as a whole.

    At most 600 moments are kept: beyond that, every other older one goes.
    """

    def __init__(self) -> None:
        self._moments: list[bytes] = []
        self._stride = 1
        self._seen = 0
        self._heard = False
        self._written = float("-inf")

    def add(self, snapshot: Snapshot, path: Path, *, finish: bool = False) -> None:
        """Keep a snapshot, and write the page now and then, or to `finish`.

        Raises WriteError where the page cannot be written.
        """
        if not self._heard and any(row.seq is not None for row in snapshot.endpoints):
            # Before the first batch nothing is known, which is not that nothing is.
            self._heard = True
            self._moments.clear()
        if finish or self._seen % self._stride == 0:
            rows = snapshot.sessions[:_MOST_ROWS]
            self._moments.append(
                _encode(msgspec.structs.replace(snapshot, sessions=rows))
            )
        self._seen += 1
        if len(self._moments) > _MOST_MOMENTS:
            self._moments = self._moments[::2]
            self._stride *= 2
        if finish or snapshot.at >= self._written + _SECONDS_BETWEEN_WRITES:
            self._written = snapshot.at
            part = path.with_name(f"{path.name}.part")
            try:
                part.write_text(render(self._moments), encoding="utf-8")
                part.replace(path)
            except OSError as error:
                raise WriteError(
                    f"{path} cannot be written ({error.strerror}): make room for the"
                    " page, or name a file elsewhere"
                ) from error
            finally:
                with suppress(OSError):
                    part.unlink(missing_ok=True)


def render(moments: list[bytes]) -> str:
    """The page of moments, each a snapshot as JSON."""
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    data = b"[" + b",".join(moments) + b"]"
    # Labels come from clients: nothing in them may end the script element.
    safe = data.decode().replace("<", "\\u003c").replace("\u2028", "\\u2028")
    return template.replace("/*MOMENTS*/[]", safe.replace("\u2029", "\\u2029"), 1)
