# SPDX-License-Identifier: Apache-2.0
"""Mint an epoch per publisher, show it, and send it where asked to.

Why: sequence numbers start over when an engine restarts, so a consumer that missed
    the gap keeps coverage that is gone; a new epoch says so.

Upstream: a batch carries a time, events and a rank; GET /kv_event_sources shows
    each rank's resolved configuration (0.31.0 on).

Adds: a nonce minted when the publisher starts, one per endpoint and rank. It is
    always shown in /kv_event_sources; it is on the wire, as a fourth element of a
    batch type of its own, with `"send_publisher_epoch": true`, since consumers
    exist that insist on three. Publishers of plug-ins keep getting the fields they
    know.

Drop when: vllm-project/vllm#48501 is in the supported release.
"""

from vllm_coordinates.semantic import (
    add_argument,
    add_field,
    add_import,
    add_parameter,
    insert_before,
    replace,
)

EVENTS = "vllm/distributed/kv_events.py"
PUBLISHER = "ZmqEventPublisher"

EDITS = [
    add_field(
        "vllm/config/kv_events.py",
        "KVEventsConfig",
        '''
        send_publisher_epoch: bool = False
        """Whether each event batch carries the publisher's epoch as a fourth element.
        Off by default: consumers exist that insist on three.
        """

        publisher_epoch: str | None = None
        """The running publisher's epoch, a nonce minted when it started. Shown by
        GET /kv_event_sources; not to be set.
        """
        ''',
    ),
    add_import(
        EVENTS,
        "from vllm.distributed.publisher_epoch import (\n"
        "    mint_publisher_epoch,\n"
        "    publisher_options,\n"
        "    with_epoch,\n"
        ")",
    ),
    add_parameter(
        EVENTS, f"{PUBLISHER}.__init__", "send_publisher_epoch: bool = False"
    ),
    add_parameter(EVENTS, f"{PUBLISHER}.__init__", "coordinates: bool = True"),
    insert_before(
        EVENTS,
        f"{PUBLISHER}.__init__",
        "self._publisher_config = KVEventsConfig($$$)",
        """
        self._send_publisher_epoch = send_publisher_epoch
        self._publisher_epoch = mint_publisher_epoch()
        """,
    ),
    *(
        add_argument(EVENTS, f"{PUBLISHER}.__init__", "KVEventsConfig($$$)", argument)
        for argument in (
            "send_publisher_epoch=send_publisher_epoch",
            "publisher_epoch=self._publisher_epoch",
            "coordinates=coordinates",
        )
    ),
    insert_before(
        EVENTS,
        f"{PUBLISHER}._publisher_thread",
        "payload = self._pack.encode(event)",
        """
        if self._send_publisher_epoch:
            event = with_epoch(event, self._publisher_epoch)
        """,
    ),
    replace(
        EVENTS,
        "EventPublisherFactory.create",
        "constructor(data_parallel_rank=data_parallel_rank, **config_dict)",
        """
        constructor(
            data_parallel_rank=data_parallel_rank,
            **publisher_options(constructor, config_dict),
        )
        """,
    ),
]
