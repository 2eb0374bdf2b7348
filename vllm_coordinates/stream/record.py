# SPDX-License-Identifier: Apache-2.0
"""A stream in a file: every delivery of a subscriber, in order.

The file is a line that names the format, then one msgpack object per delivery,
each behind its length in four bytes. A recording that was cut off is read up
to its last whole delivery, and says so. Batches are kept as the bytes that came, so a
recording shows what was on the wire, and a reader of it learns what the
subscriber learned: gaps, restarts and all.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from vllm_coordinates.errors import CoordinatesError

from .sequence import Batch, Delivery, Dropped, Reason, Resumed, Suspended, Trouble
from .wire import decode_batch

_FORMAT = b"vllm-coordinates recording 1\n"

_MOST_AT_ONCE = 16 << 20
_TOO_LATE = 253_370_764_800.0
"""The year 9999, in seconds since 1970: what is shown as a time ends with it."""

CUT_OFF = "cut off"
"""What the `Trouble` is called that ends a recording in the middle of a delivery."""


class RecordingError(CoordinatesError):
    """A file is not a recording."""

    exit_code = 12


class _Line(msgspec.Struct, array_like=True):
    kind: str
    endpoint: str
    at: float
    text: str = ""
    detail: str = ""
    seq: int = 0
    payload: bytes = b""
    replayed: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Line).decode


class Recorder:
    """Writes deliveries to a file as they come."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        file.write(_FORMAT)

    def write(self, delivery: Delivery) -> None:
        """Append one delivery, and hand it to the operating system."""
        line = _encode(_to_line(delivery))
        self._file.write(len(line).to_bytes(4, "big") + line)
        self._file.flush()


def is_recording(path: Path) -> bool:
    """Whether `path` is a file that `Recorder` wrote."""
    try:
        with path.open("rb") as file:
            return file.read(len(_FORMAT)) == _FORMAT
    except OSError:
        return False


def read(path: Path) -> Iterator[Delivery]:
    """The deliveries in the file at `path`, in order.

    Raises RecordingError where it is no recording, or damaged in the middle.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise RecordingError(
            f"{path} cannot be read ({error.strerror}): name a file that"
            " `vllm-coordinates record` wrote"
        ) from error
    with file:
        if file.read(len(_FORMAT)) != _FORMAT:
            raise RecordingError(
                f"{path} is no recording: name a file that `vllm-coordinates record`"
                " wrote"
            )
        delivery: Delivery | None = None
        place = file.tell()
        while size := file.read(4):
            length = int.from_bytes(size, "big")
            line = _read_most(file, length)
            if len(size) < 4 or len(line) < length:
                yield _cut_off(path, delivery, len(size) + len(line), place)
                return
            try:
                delivery = _from_line(_decode(line))
                yield delivery
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                deep = isinstance(error, RecursionError)
                why = "nested too deep" if deep else error
                raise RecordingError(
                    f"{path} is damaged at byte {place} ({why}): record it again"
                ) from error
            place = file.tell()


def _read_most(file: BinaryIO, length: int) -> bytes:
    """The next `length` bytes, or what there is of them.

    A damaged length may be more than memory holds, so it is not asked for at once.
    """
    parts: list[bytes] = []
    while length and (part := file.read(min(length, _MOST_AT_ONCE))):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _cut_off(path: Path, last: Delivery | None, left: int, place: int) -> Trouble:
    endpoint, at = (str(path), 0.0) if last is None else (last.endpoint, last.at)
    detail = (
        f"the last {left} bytes of {path}, from byte {place} on, are no whole delivery:"
        " it was cut off there, or is damaged"
    )
    return Trouble(endpoint, at, CUT_OFF, detail)


def _to_line(delivery: Delivery) -> _Line:
    kind, endpoint, at = type(delivery).__name__, delivery.endpoint, delivery.at
    match delivery:
        case Batch(seq=seq, payload=payload, replayed=replayed):
            line = _Line(kind, endpoint, at, "", "", seq, payload, replayed)
        case Dropped(reason=reason, detail=detail):
            line = _Line(kind, endpoint, at, reason, detail)
        case Trouble(what=what, detail=detail):
            line = _Line(kind, endpoint, at, what, detail)
        case Suspended(detail=detail):
            line = _Line(kind, endpoint, at, "", detail)
        case Resumed():
            line = _Line(kind, endpoint, at)
    return line


def _from_line(line: _Line) -> Delivery:
    where = (line.endpoint, line.at)
    # Also false for what is no number.
    if not 0 <= line.at < _TOO_LATE:
        raise ValueError(f"{line.at} is no time in seconds since 1970")
    if not 0 <= line.seq < 2**64:
        raise ValueError(f"{line.seq} is no number of a batch")
    match line.kind:
        case "Batch":
            batch = decode_batch(line.payload)
            return Batch(*where, line.seq, line.payload, batch, line.replayed)
        case "Dropped":
            return Dropped(*where, Reason(line.text), line.detail)
        case "Trouble":
            return Trouble(*where, line.text, line.detail)
        case "Suspended":
            return Suspended(*where, line.detail)
        case "Resumed":
            return Resumed(*where)
    raise ValueError(f"no delivery is called {line.kind!r}")
