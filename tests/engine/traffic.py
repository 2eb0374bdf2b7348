# SPDX-License-Identifier: Apache-2.0
"""One piece of traffic, and what servers publish for it, payload by payload."""

from typing import Any

from engine.engine import BLOCK, Engine

SMALL_POOL: dict[str, Any] = {
    "num_blocks": 13,
    "max_model_len": 12 * BLOCK,
    # Hashes that do not differ between two runs, and a reset to ask for.
    "env": {"PYTHONHASHSEED": "0", "VLLM_SERVER_DEV_MODE": "1"},
}
"""Options of a server in which `talk` evicts, and `reset` is there."""


def talk(engine: Engine, first: int = 10, **labels: Any) -> list[bytes]:
    """Shared prefixes, forks and generated blocks.

    Args:
        engine: The server.
        first: The first token, so that one talk shares no prefix with another.
        labels: Fields of the body of every request; without them, every third has
            a session_id, which stock knows.
    """
    prefix = list(range(first, first + 3 * BLOCK))
    for turn in range(4):
        for fork in range(3):
            own = [200 + 10 * fork + turn] * (BLOCK + 5 * turn)
            session = {} if fork else {"session_id": "stock knows sessions"}
            engine.complete(
                [*prefix, *own],
                max_tokens=BLOCK + 8,
                ignore_eos=True,
                temperature=0,
                **session | labels,
            ).raise_for_status()
    return [frame.payload for frame in engine.frames()]


def reset(engine: Engine) -> list[bytes]:
    """A reset, and what is said after it: to a salted cache, and in two choices."""
    engine.post("/reset_prefix_cache", {}).raise_for_status()
    engine.complete(list(range(10, 10 + 3 * BLOCK)), cache_salt="s").raise_for_status()
    engine.chat("Tell me about blocks. " * 8, n=2, seed=0).raise_for_status()
    return [frame.payload for frame in engine.frames()]
