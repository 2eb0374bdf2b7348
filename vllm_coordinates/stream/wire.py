# SPDX-License-Identifier: Apache-2.0
"""The wire: KV-cache event batches as typed structs (docs/contract.md).

These are readers' structs, not the engine's. They decode what stock vLLM
publishes from 0.30.0 on and what a patched one adds to it; keys and batch
elements they do not know are skipped. An event of a type they do not know
becomes an `UnknownEvent`, and one of a known type that breaks the contract a
`MalformedEvent`, so one bad event never costs the rest of its batch.

Encoding writes every key that the contract requires, and leaves out optional
ones that are unset, as the engine does; tests and tools build streams with it.
"""

from typing import Any

import msgspec

BlockHash = bytes | int
"""What the engine publishes as a block's hash: 32 bytes, or a 64-bit integer."""

MEDIUM_GPU = "GPU"


class WireError(ValueError):
    """A frame that is no event batch. The message says what is wrong with it."""


class BlockStored(
    msgspec.Struct, tag="BlockStored", omit_defaults=True, gc=False, kw_only=True
):
    """Blocks became resident (an admission) or were used again (a reuse report).

    With hashes: `block_hashes` follow `parent_block_hash`, `block_size` tokens
    each. In coordinates mode: `block_hashes` and `token_ids` are empty and
    [`token_offset`, `num_tokens`) is the span, in tokens, of the sequence that
    `continuation_id` names.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: Any = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    continuation_id: str | None = None
    token_offset: int | None = None
    num_tokens: int | None = None


class BlockRemoved(
    msgspec.Struct, tag="BlockRemoved", omit_defaults=True, gc=False, kw_only=True
):
    """One block left the cache, or, without a hash, a run of blocks did.

    `num_tokens` is the length of the prefix that the removed hash covers;
    with `token_offset` it ends the removed span [`token_offset`, `num_tokens`)
    of the sequence that `continuation_id` names.
    """

    block_hashes: list[BlockHash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None
    continuation_id: str | None = None
    num_tokens: int | None = None
    token_offset: int | None = None


class AllBlocksCleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    """The prefix cache was reset: nothing is resident any more."""


class UnknownEvent(msgspec.Struct, gc=False):
    """An event of a type this reader does not know; it is skipped.

    Never encoded; stands in `EventBatch.events` for what was on the wire.
    """

    type: str


class MalformedEvent(msgspec.Struct, gc=False):
    """An event that breaks the contract; what it meant is lost.

    Never encoded; stands in `EventBatch.events` for what was on the wire.
    `type` is empty where even that was unreadable.
    """

    type: str
    reason: str


KnownEvent = BlockStored | BlockRemoved | AllBlocksCleared
Event = KnownEvent | UnknownEvent | MalformedEvent


class EventBatch(msgspec.Struct, array_like=True, gc=False):
    """What one frame carries: the events of one engine step, in order.

    `ts` is the publisher's clock in seconds since 1970. `publisher_epoch`
    is the fourth element, None from a publisher that does not send it.
    """

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None
    publisher_epoch: str | None = None


class _FastBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[KnownEvent]
    data_parallel_rank: int | None = None
    publisher_epoch: str | None = None


class _RawBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None
    publisher_epoch: str | None = None


class _StockBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class _Tag(msgspec.Struct):
    type: str


_decode_fast = msgspec.msgpack.Decoder(_FastBatch).decode
_decode_raw = msgspec.msgpack.Decoder(_RawBatch).decode
_decode_event = msgspec.msgpack.Decoder(KnownEvent).decode
_decode_tag = msgspec.msgpack.Decoder(_Tag).decode
_encode = msgspec.msgpack.Encoder().encode

_KNOWN = frozenset(("BlockStored", "BlockRemoved", "AllBlocksCleared"))


def decode_batch(payload: bytes) -> EventBatch:
    """The batch in `payload`, one frame's msgpack bytes.

    Raises WireError where the frame is no batch at all (truncated, nested too
    deep, another shape); a single bad event raises nothing, see MalformedEvent.
    """
    try:
        return _as_batch(_decode_fast(payload))
    except msgspec.ValidationError:
        return _decode_tolerant(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise WireError(_sentence(error)) from error


def count_elements(payload: bytes) -> int:
    """How many elements the array has that `payload` begins with; 0 for no array."""
    head = payload[:1]
    if b"\x90" <= head <= b"\x9f":
        return head[0] - 0x90
    width = {b"\xdc": 2, b"\xdd": 4}.get(head, 0)
    return int.from_bytes(payload[1 : 1 + width], "big")


def encode_batch(batch: EventBatch) -> bytes:
    """The frame that a publisher sends for `batch`.

    Three elements, as stock's, where `publisher_epoch` is None; else four.
    """
    if batch.publisher_epoch is None:
        return _encode(_StockBatch(batch.ts, batch.events, batch.data_parallel_rank))
    return _encode(batch)


def _decode_tolerant(payload: bytes) -> EventBatch:
    try:
        raw = _decode_raw(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise WireError(_sentence(error)) from error
    return EventBatch(
        raw.ts,
        [_tolerant_event(event) for event in raw.events],
        raw.data_parallel_rank,
        raw.publisher_epoch,
    )


def _tolerant_event(raw: msgspec.Raw) -> Event:
    try:
        return _decode_event(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        reason = _sentence(error)
    try:
        tag = _decode_tag(raw).type
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return MalformedEvent("", reason)
    return MalformedEvent(tag, reason) if tag in _KNOWN else UnknownEvent(tag)


def _as_batch(fast: _FastBatch) -> EventBatch:
    # Same four fields; the decoder can not be given a union with the two
    # stand-ins, which have no tag of their own on the wire.
    return EventBatch(
        fast.ts, list(fast.events), fast.data_parallel_rank, fast.publisher_epoch
    )


def _sentence(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep"
    return str(error).strip().rstrip(".")
