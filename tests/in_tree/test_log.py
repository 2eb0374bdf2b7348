# SPDX-License-Identifier: Apache-2.0
"""What a server prints of a request: everything but its labels."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest
from vllm.entrypoints.serve.utils.request_logger import RequestLogger
from vllm.logging_utils.dump_input import prepare_object_to_dump
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import NewRequestData

SECRETS = {"session_id": "secret", "continuation_id": "secret"}
MESSAGES = [{"role": "user", "content": "shown"}]


class Kept(logging.Handler):
    """A handler that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def printed() -> Iterator[list[str]]:
    """What is printed of requests, from DEBUG on."""
    logger = logging.getLogger("vllm.entrypoints.serve.utils.request_logger")
    level, kept = logger.level, Kept()
    logger.setLevel(logging.DEBUG)
    logger.addHandler(kept)
    yield kept.lines
    logger.removeHandler(kept)
    logger.setLevel(level)


BODIES: dict[str, Any] = {
    "chat": lambda more: ChatCompletionRequest(messages=MESSAGES, **more),
    "completion": lambda more: CompletionRequest(prompt="shown", **more),
    "response": lambda more: ResponsesRequest(input="shown", **more),
    "conversation": lambda more: ResponsesRequest(
        input="shown", conversation=more["session_id"], **more
    ),
}


bodies_are_printed = pytest.mark.skipif(
    not hasattr(RequestLogger, "log_request_body"),
    reason="this release prints no bodies",
)


@bodies_are_printed
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("secret", ["secret", "secret\ud800"])
def test_a_body_is_printed_without_its_labels(
    printed: list[str], body: Any, secret: str
) -> None:
    labels = dict.fromkeys(SECRETS, secret)
    request = body({**labels, "vllm_xargs": {**labels, "shown": "shown"}})
    RequestLogger(max_log_len=10_000).log_request_body(request)
    assert str(printed).count("shown") == 3
    assert "secret" not in str(printed)
    assert request.continuation_id == request.vllm_xargs["session_id"] == secret


@bodies_are_printed
def test_a_body_of_tokens_is_printed_without_its_labels(
    printed: list[str],
) -> None:
    params = {"extra_args": {**SECRETS, "shown": "shown"}}
    request = GenerateRequest(token_ids=[1], sampling_params=params)
    RequestLogger(max_log_len=10_000).log_request_body(request)
    assert "shown" in str(printed)
    assert "secret" not in str(printed)
    assert request.sampling_params.extra_args["session_id"] == "secret"


def test_parameters_are_printed_without_the_labels_among_them(
    printed: list[str],
) -> None:
    params = SamplingParams(extra_args={**SECRETS, "shown": "shown"})
    RequestLogger(max_log_len=10_000).log_inputs("id", None, None, None, params, None)
    assert "shown" in str(printed)
    assert "secret" not in str(printed)
    assert params.extra_args == {**SECRETS, "shown": "shown"}


def test_parameters_without_labels_are_printed_as_ever(printed: list[str]) -> None:
    params = SamplingParams(extra_args={"shown": "shown"})
    for given in (params, None):
        RequestLogger(max_log_len=10_000).log_inputs(
            "id", None, None, None, given, None
        )
    assert any(str(params) in line for line in printed)
    assert any("params: None" in line for line in printed)


@bodies_are_printed
def test_a_body_without_labels_is_printed_as_ever(printed: list[str]) -> None:
    request = CompletionRequest(prompt="shown", n=2)
    RequestLogger(max_log_len=10_000).log_request_body(request)
    body = request.model_dump_json(exclude_unset=True)
    assert any(body in line for line in printed)


def test_a_dying_engine_dumps_parameters_without_the_labels_among_them() -> None:
    params = SamplingParams(extra_args={**SECRETS, "shown": "shown"})
    data = NewRequestData(
        req_id="id",
        prompt_token_ids=[1],
        mm_features=[],
        sampling_params=params,
        pooling_params=None,
        block_ids=([0],),
        num_computed_tokens=0,
        lora_request=None,
    )
    dumped = prepare_object_to_dump([data])
    assert "shown" in dumped
    assert "secret" not in dumped
    assert params.extra_args == {**SECRETS, "shown": "shown"}
