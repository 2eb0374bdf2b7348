# SPDX-License-Identifier: Apache-2.0
"""What the server's own schema says of labels, generated and sent: never a 500."""

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from cpu_engine.server import MODEL_NAME
from engine.engine import Engine
from entrances.ways import HEADERS, LABELS, post

Json = dict[str, Any]

PROMPTS: dict[str, Json] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 1,
    },
    "/v1/responses": {"input": "a", "max_output_tokens": 1},
}
EXAMPLES = 60
MODES = ["incremental", "full", "coordinates", "partial"]


@pytest.fixture(scope="module")
def document(engine: Engine) -> Json:
    """The OpenAPI document of the server."""
    document: Json = httpx.get(f"{engine.server.url}/openapi.json").json()
    return document


def about_labels(document: Json, path: str) -> Json:
    """The document of one endpoint, less what is not about labels."""
    operation = document["paths"][path]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]
    request = document["components"]["schemas"][reference["$ref"].split("/")[-1]]
    known = request["properties"]
    fixed = {"model": MODEL_NAME, **PROMPTS[path]}
    xarg = known["vllm_xargs"]["anyOf"][0]["additionalProperties"]
    label = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    body = {
        "type": "object",
        "additionalProperties": False,
        "required": [*LABELS, *fixed],
        "properties": {
            **{name: {"const": value} for name, value in fixed.items()},
            **{name: known[name] for name in LABELS},
            "vllm_xargs": {
                "type": "object",
                "properties": {
                    **dict.fromkeys(LABELS, xarg),
                    "kv_cache_report_mode": {"enum": MODES},
                },
            },
            **({"conversation": label} if path == "/v1/responses" else {}),
        },
    }
    parameters = [
        {"name": header, "in": "header", "schema": {"type": "string"}}
        for header in HEADERS.values()
    ]
    return {
        "openapi": document["openapi"],
        "info": document["info"],
        "paths": {
            path: {
                "post": {
                    "parameters": parameters,
                    "requestBody": {"content": {"application/json": {"schema": body}}},
                    "responses": operation["responses"],
                }
            }
        },
    }


@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("path", PROMPTS)
def test_generated_labels_find_no_500(
    engine: Engine, document: Json, path: str, mode: GenerationMode
) -> None:
    schema = schemathesis.openapi.from_dict(about_labels(document, path))
    statuses = set()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=schema[path]["POST"].as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case[Any]) -> None:
        answer = case.call(base_url=engine.server.url)
        statuses.add(answer.status_code)
        assert answer.status_code < 500, answer.text

    send()
    expected = {GenerationMode.POSITIVE: 200, GenerationMode.NEGATIVE: 400}
    assert expected[mode] in statuses


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=300)


@pytest.mark.parametrize("path", PROMPTS)
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(labels=st.dictionaries(st.sampled_from([*LABELS, "conversation"]), ANY_TEXT))
def test_any_text_at_all_is_taken_or_refused(
    engine: Engine, path: str, labels: dict[str, str]
) -> None:
    body = {"model": MODEL_NAME, **PROMPTS[path], **labels}
    assert post(engine, path, body).status_code in (200, 400)
