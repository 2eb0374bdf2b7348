# SPDX-License-Identifier: Apache-2.0
"""What the documents say of flags and messages is what the patched release has."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from documents import commands_run_by, rows
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import NullEventPublisher
from vllm.distributed.publisher_epoch import publisher_options
from vllm.exceptions import VLLMValidationError
from vllm.v1.coordinates import admit_coordinates, check_coordinates
from vllm.v1.core import admissions

OPERATING = "docs/operating.md"
COMMANDS = commands_run_by(Path(__file__))
LABELS = ("s", "c")


@pytest.mark.parametrize("command", [c for _, c in COMMANDS], ids=lambda c: c[:20])
def test_a_servers_configuration_is_one(command: str) -> None:
    words = shlex.split(command)
    [option] = [i for i, word in enumerate(words) if word == "--kv-events-config"]
    config = KVEventsConfig(**json.loads(words[option + 1]))
    assert config.enable_kv_cache_events
    assert config.publisher == "zmq"


def test_the_table_has_every_flag_with_its_default() -> None:
    shown = {
        field.strip("`"): default for field, default, _ in rows(OPERATING, "Flags")
    }
    fields = asdict(KVEventsConfig())
    assert shown.keys() == fields.keys()
    words = {"publisher", "replay_endpoint", "publisher_epoch"}
    assert {
        f: json.loads(v.strip("`")) for f, v in shown.items() if f not in words
    } == {field: value for field, value in fields.items() if field not in words}


def refusals() -> Iterator[str]:
    """What a server that starts says of a configuration."""
    for changed in ({"publisher_epoch": "e"}, {"send_publisher_epoch": True}):
        config = asdict(KVEventsConfig(**changed))
        options = {k: config[k] for k in ("send_publisher_epoch", "publisher_epoch")}
        with pytest.raises(ValueError, match="remove") as refused:
            publisher_options(NullEventPublisher, options)
        yield str(refused.value)
    with pytest.raises(ValueError, match="Unexpected") as unknown:
        KVEventsConfig(coordinate=True)
    yield str(unknown.value).partition(" [")[0]


def test_the_table_has_what_is_said_at_the_start() -> None:
    table = rows(OPERATING, "At the start")
    documented = [re.findall(r"`([^`]+)`", message)[0] for message, _ in table]
    said = list(refusals())
    assert all(any(part in message for message in said) for part in documented)
    assert all(any(part in message for part in documented) for message in said)


def test_the_table_has_the_refusal_of_a_server_with_coordinates_switched_off() -> None:
    mode = {"kv_cache_report_mode": "coordinates"}
    with pytest.raises(VLLMValidationError) as refused:
        check_coordinates(*LABELS, mode, KVEventsConfig(coordinates=False))
    message = str(refused.value).partition(" (parameter=")[0]
    assert f"`{message}`" in [m for m, _ in rows(OPERATING, "Answers with status 400")]


def test_the_table_has_what_the_engine_core_logs(warnings) -> None:
    request = SimpleNamespace(
        request_id="r",
        session_id="s",
        continuation_id=" ",
        sampling_params=SimpleNamespace(
            extra_args={"kv_cache_report_mode": "coordinates"}
        ),
    )
    admit_coordinates(request, KVEventsConfig())
    pool = SimpleNamespace(medium="GPU", kv_event_queue=[])
    admissions.Admissions(pool).fail("do something")
    documented = [message.strip("`") for message, *_ in rows(OPERATING, "In the log")]
    patterns = [re.escape(m).replace(r"\.\.\.", ".+") for m in documented]
    logged = warnings()
    assert len(logged) == len(patterns)
    for line in logged:
        assert any(re.match(pattern, line) for pattern in patterns), line
