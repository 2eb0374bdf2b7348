# SPDX-License-Identifier: Apache-2.0
"""Resolve and check both labels where an HTTP request comes in.

Why: a label is opaque but has a shape, and a request whose label cannot be carried
    is refused with a 400 that names the field (the contract's shape rule).

Upstream: session_id is taken from body, header or vllm_xargs as it is; a lone
    surrogate ends in a 500, and a megabyte is published.

Adds: the fields of the OpenAI protocols, a check of the labels' types before these
    validate a body, the header X-Continuation-ID, and the hand-over of the resolvers
    to `vllm.entrypoints.generate.base.coordinates`, which keeps upstream's order:
    body, header, vllm_xargs.

Drop when: vllm-project/vllm#48501 is in the supported release.
"""

from vllm_coordinates.semantic import (
    add_import,
    add_method,
    insert_after,
    replace_body,
)

SERVING = "vllm/entrypoints/generate/base/serving.py"
CHAT = "vllm/entrypoints/openai/chat_completion/protocol.py"
COMPLETION = "vllm/entrypoints/openai/completion/protocol.py"
RESPONSES = "vllm/entrypoints/openai/responses/protocol.py"

FIELD = """
continuation_id: str | None = Field(
    default=None,
    description=(
        "Position in a chain of turns, named by content: an opaque label that "
        "the server echoes on the KV-cache events of this request. It takes no "
        "part in caching or scheduling. 1 to 256 characters."
    ),
)
"""

VALIDATOR = """
@model_validator(mode="before")
@classmethod
def _check_label_types(cls, data: Any) -> Any:
    check_label_types(data)
    return data
"""

BODIES = [
    (CHAT, "ChatCompletionRequest"),
    (COMPLETION, "CompletionRequest"),
    (RESPONSES, "ResponsesRequest"),
]

EDITS = [
    *(
        insert_after(file, request, "session_id: str | None = Field($$$)", FIELD)
        for file, request in BODIES
    ),
    *(
        add_import(
            file,
            "from vllm.entrypoints.generate.base.coordinates import check_label_types",
        )
        for file in (CHAT, COMPLETION, RESPONSES)
    ),
    *(
        add_method(file, request, VALIDATOR)
        for file, request in [*BODIES, (CHAT, "BatchChatCompletionRequest")]
    ),
    add_import(
        SERVING,
        "from vllm.entrypoints.generate.base.coordinates import (\n"
        "    asks_for_coordinates,\n"
        "    label_from_headers,\n"
        "    resolve_continuation_id,\n"
        "    resolve_label,\n"
        ")",
    ),
    add_import(SERVING, "from vllm.v1.coordinates import coordinates_enabled"),
    replace_body(
        SERVING,
        "GenerateBaseServing._get_session_id_from_headers",
        'return label_from_headers("session_id", raw_request)',
        of="1d7beffb8a84",
    ),
    replace_body(
        SERVING,
        "GenerateBaseServing._get_session_id",
        'return resolve_label("session_id", request, raw_request)',
        of="9b1659fc53dd",
    ),
    add_method(
        SERVING,
        "GenerateBaseServing",
        """
        def _get_continuation_id_from_headers(
            self, raw_request: Request | None
        ) -> str | None:
            config = self.engine_client.vllm_config.kv_events_config
            if not coordinates_enabled(config):
                return None
            return label_from_headers("continuation_id", raw_request)

        def _get_continuation_id(
            self,
            request: ChatCompletionRequest | CompletionRequest | ResponsesRequest,
            raw_request: Request | None,
        ) -> str | None:
            if not asks_for_coordinates(request, raw_request):
                return None
            config = self.engine_client.vllm_config.kv_events_config
            return resolve_continuation_id(request, raw_request, config)
        """,
    ),
]
