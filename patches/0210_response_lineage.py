# SPDX-License-Identifier: Apache-2.0
"""Derive the labels that a request to the Responses API comes without.

Why: a client of that API already says what a turn continues, so its sessions are
    coherent without a label from it (the contract's lineage).

Upstream: `conversation` is ignored, and previous_response_id fetches the turns
    before; session_id is what the request carries, or nothing.

Adds: a ResponseLineage per server, asked before the labels are resolved; and, on
    each stored response, the session that it belongs to, which is in no body.

Drop when: vllm-project/vllm#48501 is in the supported release, and derives labels.
"""

from vllm_coordinates.semantic import (
    add_field,
    add_import,
    insert_after,
    insert_before,
)

SERVING = "vllm/entrypoints/openai/responses/serving.py"

EDITS = [
    add_field(
        "vllm/entrypoints/openai/responses/protocol.py",
        "ResponsesResponse",
        '''
        _session_id: str | None = None
        """The session of this response's request; private, so never serialized."""
        ''',
    ),
    add_import(
        SERVING,
        "from vllm.entrypoints.openai.responses.lineage import ResponseLineage",
    ),
    insert_after(
        SERVING,
        "OpenAIServingResponses.__init__",
        "self.response_store: dict[str, ResponsesResponse] = {}",
        """
        self.lineage = ResponseLineage(
            self.response_store, engine_client.vllm_config.kv_events_config
        )
        """,
    ),
    insert_before(
        SERVING,
        "OpenAIServingResponses._create_responses",
        "session_id = self._get_session_id(request, raw_request)",
        "self.lineage.complete(request, raw_request)",
    ),
    insert_before(
        SERVING,
        "OpenAIServingResponses",
        "self.response_store[response.id] = response",
        "self.lineage.remember(request, response)",
        places=2,
    ),
]
