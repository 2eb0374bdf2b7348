# SPDX-License-Identifier: Apache-2.0
"""What a server's answer says of its publishers."""

import msgspec
import pytest

from vllm_coordinates.stream.sources import Publisher, publishers
from vllm_coordinates.stream.subscriber import Source


def test_a_publisher_is_where_its_server_is_under_its_topic() -> None:
    rank = {
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://0.0.0.0:5657",
        "topic": "kv@pod",
        "publisher_epoch": "e",
        "coordinates": True,
    }
    for server, host in (("http://gpu-1:8000", "gpu-1"), ("http://[::1]:80", "[::1]")):
        source = Source(f"tcp://{host}:5557", f"tcp://{host}:5657", "kv@pod")
        answer = msgspec.json.encode({"0": rank})
        assert publishers(answer, server) == [Publisher(source, "e", True)]


def test_ranks_are_in_order() -> None:
    answer = {str(n): {"endpoint": f"tcp://h:{n}"} for n in (10, 2, 1)}
    found = publishers(msgspec.json.encode(answer), "http://h")
    assert [p.source.endpoint for p in found] == [f"tcp://h:{n}" for n in (1, 2, 10)]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b'"hello"',
        b'{"0": "x"}',
        b'{"0": {}}',
        b'{"zero": {"endpoint": "tcp://h:1"}}',
        b'{"0": {"endpoint": "nonsense"}}',
        b'{"0": {"endpoint": "tcp://h:0"}}',
        b'{"0": {"endpoint": "tcp://h:65536"}}',
        b'{"0": {"endpoint": "tcp://h:1", "replay_endpoint": "nonsense"}}',
    ],
)
def test_an_odd_answer_is_an_error(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        publishers(answer, "http://h")
