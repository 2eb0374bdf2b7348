# SPDX-License-Identifier: Apache-2.0
"""Give BlockStored and BlockRemoved the fields that carry coordinates.

Why: a control plane reads on the event which continuation it belongs to, instead
    of rebuilding that from hashes (the wire contract's table of fields).

Upstream: BlockStored carries session_id; BlockRemoved names a hash and nothing else.

Adds: continuation_id, token_offset and num_tokens to both, optional and absent when
    unset, and to both `__hash__`, so that events which differ in them stay apart
    where events are counted. An unlabeled BlockStored is published in upstream's
    shape, byte for byte.

Drop when: vllm-project/vllm#48501 is in the supported release.
"""

from vllm_coordinates.semantic import (
    add_element,
    add_field,
    add_import,
    insert_after,
)

EVENTS = "vllm/distributed/kv_events.py"

EDITS = [
    add_field(
        EVENTS,
        "BlockStored",
        '''
        """Position in a chain of turns of the request that emitted the event."""
        continuation_id: str | None = None
        """Report mode "coordinates" only: the span [token_offset, num_tokens) of the
        request's token sequence that the event covers.
        """
        token_offset: int | None = None
        num_tokens: int | None = None
        ''',
    ),
    add_field(
        EVENTS,
        "BlockRemoved",
        '''
        """The continuation that the removed hash is attributed to."""
        continuation_id: str | None = None
        """Prefix length that the removed hash covers, in tokens."""
        num_tokens: int | None = None
        """Report mode "coordinates" only: where the removed span
        [token_offset, num_tokens) starts.
        """
        token_offset: int | None = None
        ''',
    ),
    *(
        add_element(EVENTS, f"{event}.__hash__", "hash($INTO)", f"self.{field}")
        for event in ("BlockStored", "BlockRemoved")
        for field in ("continuation_id", "token_offset", "num_tokens")
    ),
    add_import(EVENTS, "from vllm.distributed.event_shape import shape_unlabeled"),
    insert_after(
        EVENTS,
        "ZmqEventPublisher._publisher_thread",
        "seq = next(self._seq_gen)",
        "shape_unlabeled(event, BlockStored)",
    ),
]
