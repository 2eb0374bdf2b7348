# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The bytes of events without labels: those of a server without coordinates."""

from functools import cache
from operator import attrgetter
from typing import Any

import msgspec

_COORDINATES = ("continuation_id", "token_offset", "num_tokens")


def shape_unlabeled(batch: Any, event_type: type[msgspec.Struct]) -> None:
    """Give a batch's events without a continuation_id upstream's shape.

    msgspec heads a map by the number of keys that its struct could have, so a field
    more is two bytes more in an event that does not set it.

    Args:
        batch: An `EventBatch`; its `events` are replaced.
        event_type: The type that has the fields of coordinates, `BlockStored`.
    """
    shape, values = _upstream_shape(event_type)
    batch.events = [
        shape(*values(event))
        if type(event) is event_type and event.continuation_id is None
        else event
        for event in batch.events
    ]


@cache
def _upstream_shape(
    event_type: type[msgspec.Struct],
) -> tuple[type[msgspec.Struct], attrgetter]:
    """A struct without the fields of coordinates, and what reads its values."""
    names = event_type.__struct_fields__
    defaults = event_type.__struct_defaults__
    required = names[: len(names) - len(defaults)]
    optional = dict(zip(names[len(required) :], defaults))
    kept = [
        (name, Any) if name in required else (name, Any, optional[name])
        for name in names
        if name not in _COORDINATES
    ]
    shape = msgspec.defstruct(
        event_type.__name__, kept, tag=True, omit_defaults=True, gc=False
    )
    return shape, attrgetter(*shape.__struct_fields__)
