# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""A publisher's epoch: the nonce that tells its restart apart from a pause."""

import inspect
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import msgspec

_OPTIONS = ("send_publisher_epoch", "coordinates")


class EpochEventBatch(
    msgspec.Struct,
    array_like=True,  # type: ignore[call-arg]
    omit_defaults=True,  # type: ignore[call-arg]
    gc=False,  # type: ignore[call-arg]
):
    """An event batch with the epoch of its publisher: one element more.

    A type of its own, since msgspec writes every element of an array and consumers
    exist that insist on the three of `EventBatch`.
    """

    ts: float
    events: list[Any]
    data_parallel_rank: int | None
    publisher_epoch: str


def mint_publisher_epoch() -> str:
    """A new epoch, 32 hex digits; no two publishers ever share one."""
    return uuid4().hex


def with_epoch(batch: Any, epoch: str) -> EpochEventBatch:
    """`batch`, an `EventBatch`, in the shape that carries the epoch."""
    return EpochEventBatch(batch.ts, batch.events, batch.data_parallel_rank, epoch)


def publisher_options(
    publisher: Callable[..., Any], options: dict[str, Any]
) -> dict[str, Any]:
    """The part of a KV-events configuration that a publisher's constructor takes.

    A publisher that a plug-in registered knows the fields of upstream only.

    Args:
        publisher: The constructor.
        options: The configuration's fields, by name.

    Raises:
        ValueError: The configuration sets an epoch, or asks for one from a
            publisher that has none.
    """
    options = dict(options)
    if options.pop("publisher_epoch") is not None:
        raise ValueError(
            "publisher_epoch is minted by the publisher; remove it from "
            "--kv-events-config (send_publisher_epoch puts it on the wire)."
        )
    taken = inspect.signature(publisher).parameters
    if any(p.kind == inspect.Parameter.VAR_KEYWORD for p in taken.values()):
        return options
    if options["send_publisher_epoch"] and "send_publisher_epoch" not in taken:
        raise ValueError(
            f"The event publisher {publisher!r} sends no publisher_epoch; remove "
            "send_publisher_epoch from --kv-events-config, or use publisher 'zmq'."
        )
    return {k: v for k, v in options.items() if k in taken or k not in _OPTIONS}
