# SPDX-License-Identifier: Apache-2.0
"""A publisher on real sockets, that numbers, remembers and replays as vLLM's does."""

import threading
from collections import deque
from collections.abc import Iterable, Sequence

import zmq

from ports import free_ports
from vllm_coordinates.stream.wire import EventBatch, encode_batch

_END = (-1).to_bytes(8, "big", signed=True)


class Publisher:
    """A PUB socket and, unless `replay` is off, its replay ROUTER.

    On free ports, or on the `ports` of one that was there before. `batches`
    are what it remembers, as (number, payload).
    """

    def __init__(
        self,
        *,
        ports: tuple[int, int] | None = None,
        replay: bool = True,
        remembers: int = 1000,
        topic: bytes = b"",
    ) -> None:
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.setsockopt(zmq.LINGER, 0)
        self._pub.setsockopt(zmq.SNDHWM, 0)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._topic = topic
        self.batches: deque[tuple[int, bytes]] = deque(maxlen=remembers)
        self.seq = 0
        self.asked: list[int] = []
        self.ports = (
            _bind(self._pub, ports[0] if ports else None),
            _bind(self._router, ports[1] if ports else None),
        )
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._answer, daemon=True)
        if replay:
            self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.ports[0]}"

    @property
    def replay(self) -> str:
        return f"tcp://127.0.0.1:{self.ports[1]}"

    def has_reader(self, seconds: float = 0.0) -> bool:
        """Is a reader's subscription here, or within `seconds`?

        A reader on the caller's own thread is to be polled meanwhile: ZeroMQ
        subscribes anew, after a connection broke, on the thread that reads.
        """
        if not self._pub.poll(round(1000 * seconds)):
            return False
        self._pub.recv()
        return True

    def publish(self, batch: EventBatch, *, heard: bool = True) -> None:
        """Send the next batch, or lose it on the way."""
        self.publish_bytes(encode_batch(batch), heard=heard)

    def publish_bytes(self, payload: bytes, *, heard: bool = True) -> None:
        with self._lock:
            self.batches.append((self.seq, payload))
            self.seq += 1
        if heard:
            self.send(self.seq - 1, payload)

    def send(self, seq: int, payload: bytes) -> None:
        """Put a frame on the socket, whatever it is."""
        self.send_frames((self._topic, seq.to_bytes(8, "big"), payload))

    def send_frames(self, frames: Sequence[bytes]) -> None:
        self._pub.send_multipart(frames)

    def answers(self, start: int) -> Iterable[tuple[bytes, ...]]:
        """The frames that answer a replay request."""
        with self._lock:
            remembered = list(self.batches)
        for seq, payload in remembered:
            if seq >= start:
                yield (self._topic, seq.to_bytes(8, "big"), payload)
        yield (b"", _END, b"")

    def close(self) -> None:
        """Go away, as a killed engine does: connections break."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        self._context.destroy(linger=0)

    def _answer(self) -> None:
        while not self._closed.is_set():
            if not self._router.poll(20):
                continue
            client, _, start = self._router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            for frames in self.answers(self.asked[-1]):
                self._router.send_multipart((client, b"", *frames))


def _bind(socket: "zmq.Socket[bytes]", port: int | None) -> int:
    if port is None:
        [port] = free_ports(1)
    socket.bind(f"tcp://127.0.0.1:{port}")
    return port
