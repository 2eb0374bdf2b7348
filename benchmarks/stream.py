# SPDX-License-Identifier: Apache-2.0
"""What it costs to read: a million events through the consumer kit, by kind of stream.

From the frame's bytes to the index, on one core: decoding, ordering, residency.
Memory is what the index holds at the end, over what it held before.
"""

import gc
import random
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks import results
from vllm_coordinates.stream import mint
from vllm_coordinates.stream.ancestry import Fingerprint
from vllm_coordinates.stream.index import Index
from vllm_coordinates.stream.sequence import Sequencer
from vllm_coordinates.stream.wire import (
    BlockRemoved,
    BlockStored,
    Event,
    EventBatch,
    encode_batch,
)

BLOCK = 16
EVENTS_A_BATCH = 100
CACHE_TOKENS = 4_000_000
"""What the engine holds: older sessions are evicted to make room."""


class Frame(NamedTuple):
    """A batch's bytes, and what the control plane does before it comes.

    `minted` are (continuation, parent, turn, extent), `ended` continuations of
    sessions that are over.
    """

    payload: bytes
    minted: list[tuple[str, str, Fingerprint | None, int]]
    ended: list[str]


class Turn(NamedTuple):
    """What the control plane minted, or `ended`, between two events."""

    continuation_id: str
    parent: str = ""
    fingerprint: Fingerprint | None = None
    extent: int = 0
    ended: bool = False


def main(
    events: Annotated[int, typer.Option(help="Of each stream.")] = 1_000_000,
    output: Annotated[Path | None, typer.Option(help="The JSON file.")] = None,
) -> None:
    """Measures events per second and memory, by kind of stream."""
    found: dict[str, dict[str, float]] = {}
    for name, (make, related) in STREAMS.items():
        found[name] = measure(_framed(make(), events), related=related)
        typer.echo(
            f"{name:36} {found[name]['events_per_second']:>9,.0f} events/s"
            f" {found[name]['bytes'] / 1e6:>7.1f} MB at the end"
        )
    results.write("stream", output, {"events": events, "streams": found})


def measure(frames: list[Frame], *, related: bool) -> dict[str, float]:
    """Events per second without, and bytes held with memory being traced."""
    gc.collect()
    started = time.process_time()
    events = read(Index(), frames, related=related)
    seconds = time.process_time() - started
    tracemalloc.start()
    index = Index()
    read(index, frames, related=related)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return {
        "events": events,
        "events_per_second": events / seconds,
        "wire_bytes": sum(len(frame.payload) for frame in frames),
        "bytes": held,
    }


def read(index: Index, frames: list[Frame], *, related: bool) -> int:
    """All frames, from bytes to residency; how many events that was."""
    sequencer, ancestry = Sequencer("e"), index.ancestry
    ancestry.add_root("root")
    for seq, frame in enumerate(frames):
        if related:
            for name, parent, turn, extent in frame.minted:
                ancestry.add(name, parent, turn)
                ancestry.learn(name, extent)
        for delivery in sequencer.frame(seq, frame.payload, 0.0):
            index.apply(delivery)
        for name in frame.ended:
            index.forget(name)
    return index.counts["stored"] + index.counts["removed"]


def growing() -> Iterator[Event | Turn]:
    """Decoding requests that fill one block after another; nothing is evicted."""
    names = [f"{number:040x}" for number in range(256)]
    position = 0
    while True:
        for name in names:
            yield _span(name, name[-8:], position, position + BLOCK)
        position += BLOCK


def sessions() -> Iterator[Event | Turn]:
    """Agents' sessions of up to 20 turns behind one system prompt, LRU evicted.

    Each turn reports its reuse and its admission; a session that gives way is
    evicted tail first, one run per turn, as the engine merges them.
    """
    rng = random.Random(5)
    yield Turn("system", "root", Fingerprint.of(b"You are an agent." * 40), 1024)
    live: deque[list[tuple[str, int, int]]] = deque()
    held = number = 0
    while True:
        number += 1
        session, parent, end = f"session-{number}", "system", 1024
        turns: list[tuple[str, int, int]] = []
        for turn in range(rng.randint(1, 20)):
            content = f"Do step {turn} of task {number}. ".encode() * 20
            name = mint.mint(parent, content)
            start, end = end, end + BLOCK * rng.randint(8, 120)
            yield Turn(name, parent, Fingerprint.of(content), end)
            yield _span(name, session, 0, start)
            yield _span(name, session, start, end)
            turns.append((name, start, end))
            held += end - start
            parent = name
        live.append(turns)
        while held > CACHE_TOKENS:
            for name, start, end in reversed(live.popleft()):
                held -= end - start
                yield BlockRemoved(
                    block_hashes=[],
                    medium="GPU",
                    group_idx=0,
                    continuation_id=name,
                    token_offset=start,
                    num_tokens=end,
                )
                yield Turn(name, ended=True)


def hashes() -> Iterator[Event | Turn]:
    """A block per event and hash, each evicted in its turn, labeled."""
    resident: deque[tuple[bytes, str, int]] = deque()
    number = 0
    while True:
        number += 1
        name, parent = f"{number:040x}", None
        for place in range(64):
            block_hash = number.to_bytes(16, "big") + place.to_bytes(16, "big")
            yield _block(block_hash, parent, name)
            resident.append((block_hash, name, (place + 1) * BLOCK))
            parent = block_hash
        while len(resident) > CACHE_TOKENS // BLOCK // 16:
            block_hash, owner, end = resident.popleft()
            yield BlockRemoved(
                block_hashes=[block_hash],
                medium="GPU",
                group_idx=0,
                continuation_id=owner,
                num_tokens=end,
            )


STREAMS: dict[str, tuple[Callable[[], Iterator[Event | Turn]], bool]] = {
    "coordinates, growing": (growing, False),
    "coordinates, sessions": (sessions, True),
    "coordinates, sessions, no ancestry": (sessions, False),
    "hashes, labeled": (hashes, False),
}
"""Name -> what happens, and whether the reader is told the ancestry."""


def _span(name: str, session: str, start: int, end: int) -> BlockStored:
    return _stored(name, session, token_offset=start, num_tokens=end)


def _block(block_hash: bytes, parent: bytes | None, name: str) -> BlockStored:
    return _stored(
        name,
        name[-8:],
        block_hashes=[block_hash],
        parent_block_hash=parent,
        token_ids=list(range(BLOCK)),
    )


def _stored(name: str, session: str, **more: Any) -> BlockStored:
    empty: dict[str, Any] = {
        "block_hashes": [],
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        "session_id": session,
        "continuation_id": name,
    }
    return BlockStored(**empty | more)


def _framed(stream: Iterator[Event | Turn], events: int) -> list[Frame]:
    frames: list[Frame] = []
    while len(frames) * EVENTS_A_BATCH < events:
        batch: list[Event] = []
        frame = Frame(b"", [], [])
        while len(batch) < EVENTS_A_BATCH:
            item = next(stream)
            if not isinstance(item, Turn):
                batch.append(item)
            elif item.ended:
                frame.ended.append(item.continuation_id)
            else:
                frame.minted.append(item[:4])
        payload = encode_batch(EventBatch(float(len(frames)), batch, 0))
        frames.append(frame._replace(payload=payload))
    return frames


if __name__ == "__main__":
    typer.run(main)
