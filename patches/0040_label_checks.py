# SPDX-License-Identifier: Apache-2.0
"""Check labels and report mode before a request is queued, and in the engine core.

Why: offline, batch and in-process requests obey the shape rule too, and the engine
    core takes requests that no Python frontend has seen (the Rust frontend's).

Upstream: InputProcessor passes session_id on as it is; Request takes any
    kv_cache_report_mode and treats an unknown one as "incremental".

Adds: one call in InputProcessor, which raises VLLMValidationError, two where
    /inference/v1/generate reads its body and headers, and one in EngineCore, which
    drops with a warning and falls back to `extra_args["continuation_id"]`. The switch
    `"coordinates"` of the KV-events configuration acts here, since both have it.

Drop when: vllm-project/vllm#48501 is in the supported release.
"""

from vllm_coordinates.semantic import (
    add_field,
    add_import,
    insert_after,
    insert_before,
    prepend_to,
)

PROCESSOR = "vllm/v1/engine/input_processor.py"
GENERATE = "vllm/entrypoints/scale_out/token_in_token_out/serving.py"
GENERATE_PROTOCOL = "vllm/entrypoints/scale_out/token_in_token_out/protocol.py"
CORE = "vllm/v1/engine/core.py"

EDITS = [
    add_field(
        "vllm/config/kv_events.py",
        "KVEventsConfig",
        '''
        coordinates: bool = True
        """Whether requests' continuation_id reaches the events and
        kv_cache_report_mode "coordinates" is accepted. Switch it off for consumers
        that refuse events with unknown fields: the events are then those of a
        server without session coordinates, whatever clients send.
        """
        ''',
    ),
    add_import(PROCESSOR, "from vllm.v1.coordinates import check_coordinates"),
    prepend_to(
        PROCESSOR,
        "InputProcessor.process_inputs",
        """
        session_id, continuation_id = check_coordinates(
            session_id,
            continuation_id,
            getattr(params, "extra_args", None),
            self.vllm_config.kv_events_config,
        )
        """,
    ),
    add_import(GENERATE, "from vllm.v1.coordinates import check_coordinates"),
    add_import(
        GENERATE_PROTOCOL,
        "from vllm.entrypoints.generate.base.coordinates import check_token_request",
    ),
    prepend_to(
        GENERATE_PROTOCOL,
        "GenerateRequest._capture_sampling_params_provided_keys",
        "check_token_request(data)",
    ),
    insert_after(
        GENERATE,
        "ServingTokens.serve_tokens",
        "continuation_id = self._get_continuation_id_from_headers(raw_request)",
        """
        session_id, continuation_id = check_coordinates(
            session_id,
            continuation_id,
            sampling_params.extra_args,
            self.engine_client.vllm_config.kv_events_config,
        )
        """,
    ),
    add_import(CORE, "from vllm.v1.coordinates import admit_coordinates"),
    insert_after(
        CORE,
        "EngineCore.preprocess_add_request",
        "req = Request.from_engine_core_request($$$)",
        "admit_coordinates(req, self.vllm_config.kv_events_config)",
    ),
    insert_before(
        "vllm/v1/request.py",
        "Request.__init__",
        "if pooling_params is not None:\n    $$$",
        'self.kv_cache_report_mode = "incremental"',
    ),
]
