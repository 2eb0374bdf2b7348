# SPDX-License-Identifier: Apache-2.0
"""Frames of an event stream, raw and without gaps, in the order of publication."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import zmq

from cpu_engine.server import EventSource
from vllm_coordinates.stream.wire import EventBatch, decode_batch

_END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_REPLAY_TIMEOUT_S = 10.0
# How long a frame may be on its way before it is asked for again.
_PATIENCE_S = 1.0


class StreamError(RuntimeError):
    """The stream did not say what was waited for: one sentence."""


@dataclass(frozen=True)
class Frame:
    """One published batch, as it came.

    Attributes:
        seq: The sequence number, from 0.
        payload: The batch's msgpack bytes.
    """

    seq: int
    payload: bytes

    @property
    def batch(self) -> EventBatch:
        """The payload, decoded."""
        return decode_batch(self.payload)


class EventTap:
    """Reads one publisher from its first batch on; a context manager.

    A subscriber that joins late misses what was published before the publisher
    heard of it. The tap notices by the sequence numbers, and asks the replay
    socket for whatever it lacks.
    """

    def __init__(self, source: EventSource) -> None:
        self.source = source
        self._context = zmq.Context()
        self._live = self._context.socket(zmq.SUB)
        self._live.subscribe(b"")
        self._live.connect(source.endpoint)
        self._next = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the sockets."""
        self._context.destroy(linger=0)

    def read_until(
        self, last: Callable[[Frame], bool], timeout_s: float = 60.0
    ) -> list[Frame]:
        """The frames that were not read yet, up to the first for which `last` holds.

        Raises:
            StreamError: There was no such frame within `timeout_s`.
        """
        read: list[Frame] = []
        for frame in self._frames(timeout_s):
            read.append(frame)
            if last(frame):
                return read
        raise StreamError(
            f"{self.source.endpoint} did not publish what was waited for within"
            f" {timeout_s:.0f} s; it published {len(read)} other batches"
        )

    def _frames(self, timeout_s: float) -> Iterator[Frame]:
        deadline = time.monotonic() + timeout_s
        while (remaining := deadline - time.monotonic()) > 0:
            if self._live.poll(int(1000 * min(remaining, _PATIENCE_S))):
                _, seq, payload = self._live.recv_multipart()
                arrived = [Frame(int.from_bytes(seq, "big"), payload)]
            else:
                arrived = []
            if not arrived or arrived[0].seq > self._next:
                arrived = [*self.replay(self._next), *arrived]
            for frame in arrived:
                if frame.seq == self._next:
                    self._next += 1
                    yield frame

    def replay(self, start: int) -> list[Frame]:
        """The frames from sequence number `start` on, from the replay socket.

        Raises:
            StreamError: It did not answer.
        """
        frames: list[Frame] = []
        with self._replay_socket() as replay:
            replay.send_multipart((b"", start.to_bytes(8, "big")))
            while replay.poll(int(1000 * _REPLAY_TIMEOUT_S)):
                _, _, seq, payload = replay.recv_multipart()
                if seq == _END_OF_REPLAY:
                    return frames
                frames.append(Frame(int.from_bytes(seq, "big"), payload))
        raise StreamError(
            f"{self.source.replay_endpoint} did not answer within"
            f" {_REPLAY_TIMEOUT_S:.0f} s"
        )

    @contextmanager
    def _replay_socket(self) -> Iterator[zmq.Socket[bytes]]:
        replay = self._context.socket(zmq.DEALER)
        try:
            replay.connect(self.source.replay_endpoint)
            yield replay
        finally:
            replay.close(linger=0)
