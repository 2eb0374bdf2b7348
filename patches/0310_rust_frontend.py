# SPDX-License-Identifier: Apache-2.0
"""Give the Rust frontend the field, the header and the gRPC field.

Why: a request that comes in through the Rust frontend carries its labels in the
    same places, with the same precedence, as one that comes in through Python.

Upstream: rust/ threads session_id from body, header, `vllm_xargs` and gRPC into
    EngineCoreRequest, which it encodes as an array.

Adds: continuation_id at every such place, their tests included; last in
    EngineCoreRequest, where its Python twin has it; and field 19 of the gRPC
    request. An installed vLLM has no rust/, and its binary stays what it is: it
    forwards `vllm_xargs`, from which the engine core takes the label.

Drop when: vllm-project/vllm#48501 is in the supported release.
"""

from vllm_coordinates.semantic import add_proto_field, insert_after, twin_rust

WHERE = "rust"

EDITS = [
    twin_rust(
        "session_id",
        "continuation_id",
        stems=(("session", "continuation"), ("Session", "Continuation")),
        doc="Position in a chain of turns, named by content: an opaque label.",
        last=("EngineCoreRequest",),
        within="rust/src/**/*.rs",
        places=40,
    ),
    insert_after(
        "rust/src/engine-core-client/src/protocol/request.rs",
        "tests.engine_core_request_serializes_as_full_array",
        "let array = match value { $$$ };",
        """
        let (last, array) = array.split_last().unwrap();
        assert_eq!(last, &Value::from("continuation-1"));
        """,
    ),
    add_proto_field(
        "rust/proto/inference.proto",
        "GenerateRequest",
        "  // Position in a chain of turns, named by content: an opaque label.\n"
        "  optional string continuation_id = 19;\n",
    ),
]
