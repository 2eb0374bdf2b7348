# SPDX-License-Identifier: Apache-2.0
"""The real ZMQ publisher: what its thread takes, and how long it can stop a step."""

import threading
import time
from itertools import cycle

import zmq

from vllm.distributed.kv_events import KVCacheEvent, KVEventBatch, ZmqEventPublisher

from . import publishing, traffic

_REPLAY_TIMEOUT_MS = 10_000


class _Scene:
    """A pool with room for one context, and a publisher with one subscriber."""

    def __init__(self, mode: str, num_blocks: int, step_blocks: int) -> None:
        self.pool = traffic.pool(num_blocks, events=mode != "off")
        self.requests = cycle(
            [traffic.request(context, num_blocks, mode) for context in (0, 1)]
        )
        self.step_blocks = step_blocks
        self.publisher = publishing.start()
        self.subscriber = _subscriber(self.publisher)
        self._step: list[KVCacheEvent] = []

    def play(self) -> None:
        """One context, a batch for each step, until all of it is sent."""
        blocks = traffic.prefill(
            self.pool,
            next(self.requests),
            self.step_blocks,
            evicted=self._keep,
            admitted=self._publish,
        )
        traffic.free(self.pool, blocks)
        publishing.drain(self.publisher)

    def _keep(self, events: list[KVCacheEvent]) -> None:
        self._step = events

    def _publish(self, events: list[KVCacheEvent]) -> None:
        if events := self._step + events:
            self.publisher.publish(KVEventBatch(ts=time.time(), events=events))


_scenes: dict[str, _Scene] = {}


def prepare(modes: list[str], num_blocks: int) -> None:
    """Makes a scene for each mode, and fills its pool."""
    for mode in modes:
        _scenes[mode] = _Scene(mode, num_blocks, traffic.STEP_BLOCKS)
        _scenes[mode].play()
        _scenes[mode].play()


def measure(mode: str) -> dict[str, float]:
    """Plays one context that evicts another.

    Returns:
        CPU seconds of the whole process, the publisher's thread included, as
        `context`.
    """
    start = time.process_time()
    _scenes[mode].play()
    return {"context": time.process_time() - start}


def stall(
    mode: str, num_blocks: int, buffered: int, queue_size: int, steps: int
) -> dict[str, float]:
    """Lets a consumer ask for a replay while the engine goes on publishing.

    Args:
        mode: Of the requests.
        num_blocks: Blocks of one batch: a whole context is admitted in a step.
        buffered: Batches in the replay buffer.
        queue_size: The publisher's `max_queue_size`.
        steps: Batches that are published meanwhile.

    Returns:
        `payload`: bytes of one batch; `replay`: seconds until the end of the replay
        arrived; `replayed`: batches that arrived; `longest`: seconds that the
        longest of the calls of `publish` took.
    """
    pool = traffic.pool(num_blocks, events=True)
    events: list[KVCacheEvent] = []
    request = traffic.request(0, num_blocks, mode)
    traffic.prefill(pool, request, num_blocks, len, events.extend)
    publisher = publishing.start(queue_size, buffered)
    for _ in range(buffered):
        publisher.publish(KVEventBatch(ts=0.0, events=events))
    publishing.drain(publisher)
    payload = len(publisher._buffer[-1][1])
    replay: dict[str, float] = {}
    asked = threading.Event()
    consumer = threading.Thread(target=_replay, args=(publisher, asked, replay))
    consumer.start()
    asked.wait()
    longest = 0.0
    for _ in range(steps):
        start = time.perf_counter()
        publisher.publish(KVEventBatch(ts=0.0, events=events))
        longest = max(longest, time.perf_counter() - start)
        time.sleep(0.001)  # the rest of the step, in which others may run
    consumer.join()
    publisher.shutdown()
    return {"payload": payload, "longest": longest, **replay}


def _replay(
    publisher: ZmqEventPublisher, asked: threading.Event, found: dict[str, float]
) -> None:
    socket: publishing.Socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.set_hwm(0)
    socket.connect(publishing.address(publisher._replay))
    start = time.perf_counter()
    socket.send_multipart((b"", (0).to_bytes(8, "big")))
    asked.set()
    found["replayed"] = 0
    while socket.poll(_REPLAY_TIMEOUT_MS):
        _, _, seq, _ = socket.recv_multipart(copy=False)
        if seq.bytes == ZmqEventPublisher.END_SEQ:
            break
        found["replayed"] += 1
    found["replay"] = time.perf_counter() - start
    socket.close(linger=0)


def _subscriber(publisher: ZmqEventPublisher) -> publishing.Socket:
    """A subscriber that takes nothing off its queue: libzmq receives for it."""
    socket: publishing.Socket = zmq.Context.instance().socket(zmq.SUB)
    socket.set_hwm(1)
    socket.subscribe(b"")
    socket.connect(publishing.address(publisher._pub))
    return socket
