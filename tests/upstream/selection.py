# SPDX-License-Identifier: Apache-2.0
"""Which of vLLM's own tests run: those that go through what the series changes.

Left out is what needs weights, a GPU, Ray or a multimodal model from a hub.
"""

PATHS = (
    "distributed/test_kv_cache_events.py",
    "distributed/test_events.py",
    "v1/test_request.py",
    "v1/core/prefix_cache",
    "v1/core/test_async_scheduler.py",
    "v1/core/test_contiguous_kv_packing.py",
    "v1/core/test_deferred_block_free.py",
    "v1/core/test_encoder_cache_manager.py",
    "v1/core/test_kv_cache_metrics.py",
    "v1/core/test_kv_cache_utils.py",
    "v1/core/test_kv_sharing.py",
    "v1/core/test_mamba_align_chunk_split.py",
    "v1/core/test_output.py",
    "v1/core/test_prefix_caching.py",
    "v1/core/test_prefix_replay.py",
    "v1/core/test_priority_preemption_bug.py",
    "v1/core/test_scheduler.py",
    "v1/core/test_single_type_kv_cache_manager.py",
    "v1/core/test_swa_inflight_window_free.py",
    "v1/simple_kv_offload/test_kv_events.py",
    "v1/simple_kv_offload/test_scheduler.py",
    "v1/kv_connector/unit/offloading_connector",
    "v1/kv_connector/unit/test_output_aggregator.py",
    "v1/kv_connector/unit/test_multi_connector.py",
    "v1/streaming_input",
    "v1/engine/test_admission_control.py",
    "v1/engine/test_input_processor_trace_replay.py",
    "v1/engine/test_output_processor.py",
    "v1/engine/test_parallel_sampling.py",
    "v1/engine/test_preprocess_error_handling.py",
    "entrypoints/openai/test_session_id.py",
    "entrypoints/openai/chat_completion/test_chat_error.py",
    "entrypoints/openai/chat_completion/test_non_object_body_validation.py",
    "entrypoints/openai/chat_completion/test_serving_chat.py",
    "entrypoints/openai/completion/test_completion_error.py",
    "entrypoints/openai/completion/test_lora_resolvers.py",
    "entrypoints/openai/responses/test_errors.py",
    "entrypoints/openai/responses/test_protocol.py",
    "entrypoints/openai/responses/test_responses_utils.py",
    "entrypoints/openai/responses/test_sampling_params.py",
    "entrypoints/openai/responses/test_serving_responses.py",
    "entrypoints/openai/responses/test_streaming_events.py",
    "entrypoints/anthropic/test_anthropic_messages_conversion.py",
    "entrypoints/anthropic/test_protocol_exports.py",
)
"""Files and folders under upstream's `tests/`; a release may lack one."""

SHORT = (
    "distributed/test_kv_cache_events.py",
    "v1/test_request.py",
    "v1/core/test_prefix_caching.py",
    "v1/simple_kv_offload/test_kv_events.py",
    "entrypoints/openai/test_session_id.py",
    "entrypoints/openai/responses/test_serving_responses.py",
)
"""Those of `PATHS` that run with our own tests."""

_BY_CHANCE = "random numbers and the stand-in's few tokens: its outcome is chance's"

DESELECTED = {
    "distributed/test_events.py::test_event_publisher_factory": "binds all interfaces",
    "v1/engine/test_output_processor.py::test_logprobs_processor": _BY_CHANCE,
    "v1/engine/test_output_processor.py::test_stop_string": _BY_CHANCE,
}
"""Test -> why it does not run."""

_HEADER = (
    "msgspec sizes an event's map header by the fields that it may have; the publisher"
    " gives unlabeled ones stock's shape, as tests/engine/test_stock_bytes.py holds"
)
_EVENTS = "tests/distributed/test_kv_cache_events.py::test_block_stored"

CHANGED = {
    f"{_EVENTS}_locality_is_wire_compatible": (_HEADER, ("0.32.0",)),
    f"{_EVENTS}_session_id_is_wire_compatible": (_HEADER, ("0.32.0",)),
    "tests/entrypoints/openai/test_session_id.py"
    "::test_get_session_id_ignores_empty_and_non_string_values": (
        "a label that is no string is refused by name, not ignored",
        ("0.32.0", "0.33.0"),
    ),
}
"""Test -> why its outcome rightly differs on a patched tree, and of which releases."""

HUB_MODELS = (
    "facebook/opt-125m",
    "facebook/opt-350m",
    "gpt2",
    "openai-community/gpt2",
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen3-1.7B",
    "Qwen/Qwen2.5-1.5B",
    "Qwen/Qwen2.5-1.5B-Instruct",
    "Qwen/Qwen1.5-7B",
    "meta-llama/Llama-3.2-1B",
    "meta-llama/Llama-3.2-1B-Instruct",
)
"""Names that the tests want a config and a tokenizer of; a stand-in serves."""
