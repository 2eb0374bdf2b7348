# SPDX-License-Identifier: Apache-2.0
"""Without labels, a patched server publishes what stock publishes, byte for byte."""

import msgspec

# The array's header, then the timestamp: a float of eight bytes and its type.
_TIMESTAMP = slice(1, 10)


def untimed(payloads: list[bytes]) -> list[bytes]:
    return [payload[:1] + payload[_TIMESTAMP.stop :] for payload in payloads]


def kinds(payloads: list[bytes]) -> set[str]:
    """The types of the events in payloads."""
    batches = [msgspec.msgpack.decode(payload) for payload in payloads]
    return {event["type"] for _, events, _ in batches for event in events}


def test_the_same_unlabeled_traffic_gives_the_same_bytes(
    stock_traffic: list[bytes], patched_traffic: dict[str, list[bytes]]
) -> None:
    stock, patched = untimed(stock_traffic), untimed(patched_traffic["unlabeled"])
    assert kinds(stock_traffic) == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
    for number, (theirs, ours) in enumerate(zip(stock, patched, strict=True)):
        assert ours == theirs, f"batch {number} differs"
