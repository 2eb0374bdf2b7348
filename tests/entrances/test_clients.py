# SPDX-License-Identifier: Apache-2.0
"""The clients that applications use, as they are, send labels that arrive."""

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from cpu_engine.server import MODEL_NAME
from engine.engine import Engine, fresh_text
from entrances.ways import message

HEADER: Any = {"extra_headers": {"X-Session-ID": "s", "X-Continuation-ID": "c"}}
BODY: Any = {"extra_body": {"session_id": "s", "continuation_id": "c"}}
XARGS: Any = {"extra_body": {"vllm_xargs": {"session_id": "s", "continuation_id": "c"}}}
everywhere = pytest.mark.parametrize(
    "labels", [HEADER, BODY, XARGS], ids=["header", "body", "xargs"]
)
streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture
def client(engine: Engine) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{engine.server.url}/v1", api_key="none", max_retries=0
    )


@pytest.fixture
def claude(engine: Engine) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=engine.server.url, api_key="none", max_retries=0
    )


@pytest.fixture(autouse=True)
def _only_what_the_test_sends(engine: Engine) -> Iterator[None]:
    engine.stored()
    yield
    engine.stored()


def published(engine: Engine) -> set[tuple[str | None, str | None]]:
    return {(event.session_id, event.continuation_id) for event in engine.stored()}


def drain(answer: Any, stream: bool) -> None:
    if stream:
        assert list(answer)


@everywhere
@streamed
def test_chat_completions(
    engine: Engine, client: openai.OpenAI, labels: Any, stream: bool
) -> None:
    messages: Any = message()
    answer = client.chat.completions.create(
        model=MODEL_NAME, messages=messages, max_tokens=1, stream=stream, **labels
    )
    drain(answer, stream)
    assert published(engine) == {("s", "c")}


@everywhere
@streamed
def test_completions(
    engine: Engine, client: openai.OpenAI, labels: Any, stream: bool
) -> None:
    answer = client.completions.create(
        model=MODEL_NAME, prompt=fresh_text(), max_tokens=1, stream=stream, **labels
    )
    drain(answer, stream)
    assert published(engine) == {("s", "c")}


@everywhere
@streamed
def test_responses(
    engine: Engine, client: openai.OpenAI, labels: Any, stream: bool
) -> None:
    answer = client.responses.create(
        model=MODEL_NAME,
        input=fresh_text(),
        max_output_tokens=16,
        stream=stream,
        **labels,
    )
    drain(answer, stream)
    assert published(engine) == {("s", "c")}


@pytest.mark.parametrize("conversation", ["conv_1", {"id": "conv_1"}])
def test_a_conversation_of_responses_names_the_session(
    engine: Engine, client: openai.OpenAI, conversation: Any
) -> None:
    answer = client.responses.create(
        model=MODEL_NAME,
        input=fresh_text(),
        max_output_tokens=16,
        conversation=conversation,
    )
    assert published(engine) == {("conv_1", answer.id)}


def test_a_chain_of_responses_needs_no_label(
    engine: Engine, client: openai.OpenAI
) -> None:
    root = client.responses.create(
        model=MODEL_NAME, input=fresh_text(), max_output_tokens=16
    )
    assert published(engine) == {(root.id, root.id)}
    child = client.responses.create(
        model=MODEL_NAME,
        input=fresh_text(),
        max_output_tokens=16,
        previous_response_id=root.id,
    )
    assert published(engine) == {(root.id, child.id)}


@pytest.mark.parametrize("labels", [HEADER, XARGS], ids=["header", "xargs"])
def test_messages(engine: Engine, claude: anthropic.Anthropic, labels: Any) -> None:
    messages: Any = message()
    claude.messages.create(model=MODEL_NAME, messages=messages, max_tokens=1, **labels)
    assert published(engine) == {("s", "c")}


def test_a_stream_of_messages(engine: Engine, claude: anthropic.Anthropic) -> None:
    messages: Any = message()
    with claude.messages.stream(
        model=MODEL_NAME, messages=messages, max_tokens=1, **HEADER
    ) as stream:
        stream.get_final_message()
    assert published(engine) == {("s", "c")}


def test_counting_tokens_takes_labels_and_publishes_nothing(
    engine: Engine, claude: anthropic.Anthropic
) -> None:
    messages: Any = message()
    count = claude.messages.count_tokens(model=MODEL_NAME, messages=messages, **HEADER)
    assert count.input_tokens > 0
    assert published(engine) == set()


def test_openai_raises_its_own_error_and_names_the_field(
    client: openai.OpenAI,
) -> None:
    messages: Any = message()
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=MODEL_NAME,
            messages=messages,
            stream=True,
            extra_body={"continuation_id": " "},
        )
    assert caught.value.param == "continuation_id"
    assert "continuation_id must not be blank." in caught.value.message


def test_anthropic_raises_its_own_error_and_names_the_field(
    claude: anthropic.Anthropic,
) -> None:
    messages: Any = message()
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(
            model=MODEL_NAME,
            messages=messages,
            max_tokens=1,
            extra_headers={"X-Continuation-ID": "x" * 257},
        )
    assert "continuation_id must have at most 256 characters" in caught.value.message
