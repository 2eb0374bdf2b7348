# SPDX-License-Identifier: Apache-2.0
"""A distribution's RECORD: what it says of a file, and edits that keep the rest.

Only the lines of the files in question change; order, quoting and line endings
of all others stay as the installer wrote them. Source: the packaging
specification "Recording installed projects".
"""

import base64
import csv
import hashlib
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property


def is_record(path: str) -> bool:
    """Whether a path is that of a RECORD."""
    return path.endswith(".dist-info/RECORD")


def record_hash(data: bytes) -> str:
    """The hash of `data` in RECORD's notation, `sha256=<urlsafe base64>`."""
    digest = hashlib.sha256(data).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@dataclass(frozen=True)
class Record:
    """The bytes of a RECORD file, readable by path."""

    data: bytes

    @cached_property
    def _lines(self) -> list[tuple[str, list[str]]]:
        lines = [_text(line) for line in self.data.splitlines(keepends=True)]
        return [(line, next(csv.reader([line]), [])) for line in lines]

    @cached_property
    def _hashes(self) -> dict[str, str]:
        return {row[0]: row[1] for _, row in self._lines if len(row) > 1}

    @property
    def paths(self) -> Iterable[str]:
        """Every path that it lists, in order."""
        return self._hashes.keys()

    def lists(self, path: str) -> bool:
        """Whether the distribution owns `path` (POSIX, relative to RECORD's root)."""
        return path in self._hashes

    def vouches_for(self, path: str, data: bytes) -> bool:
        """Whether `data` is what the distribution installed at `path`.

        A path that is not listed is not vouched for; one that is listed without a
        hash is.
        """
        if not self.lists(path):
            return False
        algorithm, _, digest = self._hashes[path].partition("=")
        if not digest:
            return True
        found = hashlib.new(algorithm, data).digest()
        return base64.urlsafe_b64encode(found).rstrip(b"=").decode() == digest

    def edited(
        self, files: Mapping[str, bytes], unhashed: Iterable[str] = ()
    ) -> "Record":
        """The same RECORD with lines for `files` put in, or put right.

        Args:
            files: Path -> the bytes that are to be on record for it.
            unhashed: Paths to list without hash and size.
        """
        rows = {
            path: [path, record_hash(data), str(len(data))]
            for path, data in files.items()
        } | {path: [path, "", ""] for path in unhashed}
        ending = "\r\n" if b"\r\n" in self.data else "\n"
        lines = []
        for line, row in self._lines:
            edited = rows.pop(row[0], row) if row else row
            lines.append(line if edited == row else _format(edited, ending))
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += ending
        lines += [_format(row, ending) for row in rows.values()]
        return Record("".join(lines).encode(errors="surrogateescape"))


def _text(line: bytes) -> str:
    """A line that is not UTF-8 comes back as it was; it is none of ours."""
    return line.decode(errors="surrogateescape")


def _format(row: list[str], ending: str) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator=ending).writerow(row)
    return line.getvalue()
