# SPDX-License-Identifier: Apache-2.0
"""The real ZMQ publisher, on a free port of this machine."""

import time

import zmq

from vllm.distributed.kv_events import ZmqEventPublisher

Socket = zmq.Socket[bytes]

_PATIENCE_S = 120.0
_POLL_S = 0.0005


def start(queue_size: int = 100_000, buffer_steps: int = 100) -> ZmqEventPublisher:
    """A publisher with a replay socket.

    Args:
        queue_size: Its `max_queue_size`.
        buffer_steps: Batches that it keeps for replays.
    """
    return ZmqEventPublisher(
        0,
        endpoint="tcp://127.0.0.1:*",
        replay_endpoint="tcp://127.0.0.1:*",
        max_queue_size=queue_size,
        buffer_steps=buffer_steps,
    )


def drain(publisher: ZmqEventPublisher) -> None:
    """Waits until everything is sent.

    Raises:
        RuntimeError: It is not within two minutes.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while unsent := publisher._event_queue.unfinished_tasks:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the publisher did not send {unsent} batches")
        time.sleep(_POLL_S)


def address(socket: Socket) -> str:
    """What to connect to for a bound socket."""
    bound: str = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return bound
