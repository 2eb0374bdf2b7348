# SPDX-License-Identifier: Apache-2.0
"""Ports of this machine for what has to be told one before it starts.

Below those that a kernel gives to outgoing connections: one of these may take a
port between its use by one server and the next.
"""

import random
import socket
from contextlib import ExitStack

FIRST, LAST = 20_000, 32_767
_MOST_TRIES = 1000


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, each another one."""
    with ExitStack() as stack:
        return [_bound(stack.enter_context(socket.socket())) for _ in range(count)]


def _bound(probe: socket.socket) -> int:
    # Hypothesis seeds the module's generator, for every worker alike.
    generator = random.SystemRandom()
    for _ in range(_MOST_TRIES):
        port = generator.randint(FIRST, LAST)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return port
    raise OSError(f"no port from {FIRST} to {LAST} is free on this machine")
