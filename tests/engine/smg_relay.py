# SPDX-License-Identifier: Apache-2.0
"""Runs smg's relay on one endpoint and prints what it forwards, a line per batch.

A program of its own: it runs in the consumers' environment, not in this one.
"""

import asyncio
import json
import sys
from typing import Any

from smg_grpc_servicer.kv_relay import (  # type: ignore[import-not-found]
    Engine,
    RankSource,
    relay,
)


class Context:
    """What the relay needs of a gRPC call."""

    async def send_initial_metadata(self, _: object) -> None:
        print(json.dumps({"ready": True}), flush=True)

    def cancelled(self) -> bool:
        return False

    async def abort(self, code: object, details: str) -> None:
        print(json.dumps({"aborted": f"{code}: {details}"}), flush=True)


async def main(endpoint: str) -> None:
    sources = [RankSource(0, endpoint)]
    async for batch in relay(sources, Engine.VLLM, 0, Context()):
        found: dict[str, Any] = {
            "seq": batch.sequence_number,
            "stored": [],
            "removed": [],
        }
        for event in batch.events:
            found["stored"] += [block.block_hash for block in event.stored.blocks]
            found["removed"] += list(event.removed.block_hashes)
        print(json.dumps(found), flush=True)


asyncio.run(main(sys.argv[1]))
