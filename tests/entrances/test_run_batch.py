# SPDX-License-Identifier: Apache-2.0
"""`vllm run-batch` carries the labels of each line, and refuses a line by itself."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zmq

from cpu_engine.server import MODEL_NAME, ServerOptions
from cpu_engine.tiny_model import TinyModel, ensure_model
from engine import served_trees
from engine.engine import fresh_text
from sources import CACHE
from vllm_coordinates.stream.wire import BlockStored, decode_batch

pytestmark = pytest.mark.engine

LINES: dict[str, dict[str, Any]] = {
    "body fields": {"session_id": "s1", "continuation_id": "c1"},
    "xargs": {"vllm_xargs": {"session_id": "s2", "continuation_id": "c2"}},
    "body wins": {
        "session_id": "s3",
        "continuation_id": "c3",
        "vllm_xargs": {"session_id": "no", "continuation_id": "no"},
    },
    # Long enough for the events to leave: the engine is killed as the batch ends.
    "no labels": {"max_tokens": 200, "ignore_eos": True},
    "blank": {"continuation_id": " "},
    "mode": {"vllm_xargs": {"kv_cache_report_mode": "coordinates"}},
}


@dataclass(frozen=True)
class Batch:
    """What a batch answered, by the lines' names, and published."""

    answers: dict[str, dict[str, Any]]
    labels: set[tuple[str | None, str | None]]


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Batch:
    folder = tmp_path_factory.mktemp("batch")
    asked, answered = folder / "asked.jsonl", folder / "answered.jsonl"
    asked.write_text("".join(f"{json.dumps(line)}\n" for line in lines()))
    options = ServerOptions(
        ensure_model(TinyModel.QWEN2, CACHE / "models"),
        cache=CACHE / "vllm",
        tree=served_trees.patched(),
    )
    log = folder / "log"
    with (
        zmq.Context() as context,
        context.socket(zmq.SUB) as subscriber,
        log.open("wb") as output,
        ExitStack() as stack,
    ):
        subscriber.subscribe(b"")
        port = subscriber.bind_to_random_port("tcp://127.0.0.1")
        running = subprocess.Popen(
            command(options, asked, answered, port),
            env=options.environment(),
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        stack.callback(running.kill)
        end, admissions = time.monotonic() + 300, list[BlockStored]()
        # ZeroMQ subscribes at a publisher that comes on the thread that reads.
        while running.poll() is None:
            assert time.monotonic() < end, log.read_text()
            admissions += received(subscriber)
        assert running.returncode == 0, log.read_text()
        admissions += received(subscriber)
    answers = map(json.loads, answered.read_text().splitlines())
    return Batch(
        {answer["custom_id"]: answer for answer in answers},
        {(event.session_id, event.continuation_id) for event in admissions},
    )


def lines() -> Iterator[dict[str, Any]]:
    """A line of each kind."""
    for name, labels in LINES.items():
        messages = [{"role": "user", "content": fresh_text()}]
        body = {"model": MODEL_NAME, "messages": messages, "max_tokens": 2, **labels}
        url = "/v1/chat/completions"
        yield {"custom_id": name, "method": "POST", "url": url, "body": body}


def command(options: ServerOptions, asked: Path, answered: Path, port: int) -> Any:
    """`vllm run-batch` with the arguments that a server would have."""
    _, model, *arguments = options.arguments(port=0)
    kept = [a for a in arguments if a.split("=")[0] not in ("--host", "--port")]
    kept = [a for a in kept if not a.startswith("--kv-events-config")]
    events = {"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{port}"}
    return [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "run-batch"),
        *("-i", str(asked), "-o", str(answered), f"--model={model}", *kept),
        f"--kv-events-config={json.dumps(events)}",
    ]


def received(subscriber: zmq.Socket[bytes]) -> Iterator[BlockStored]:
    """The admissions among what has arrived, and is there when it is asked for."""
    while subscriber.poll(1000):
        _, _, payload = subscriber.recv_multipart()
        for event in decode_batch(payload).events:
            if isinstance(event, BlockStored):
                yield event


def test_each_line_s_labels_reach_its_events(batch: Batch) -> None:
    expected = {("s1", "c1"), ("s2", "c2"), ("s3", "c3"), (None, None)}
    assert batch.labels == expected


def test_a_line_that_is_refused_leaves_the_others_alone(batch: Batch) -> None:
    refused = {"blank", "mode"}
    for name, answer in batch.answers.items():
        assert answer["response"]["status_code"] == (400 if name in refused else 200)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("blank", "continuation_id must not be blank."),
        (
            "mode",
            "kv_cache_report_mode 'coordinates' needs both labels, and session_id is"
            " missing; send it, or use one of incremental, full.",
        ),
    ],
)
def test_a_line_s_refusal_names_the_field(
    batch: Batch, line: str, message: str
) -> None:
    assert message in json.dumps(batch.answers[line]["error"])
