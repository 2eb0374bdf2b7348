# SPDX-License-Identifier: Apache-2.0
"""Thread continuation_id wherever a request's session_id goes.

Why: no way into the engine may drop a label silently (the contract's plumbing).

Upstream: session_id is passed from each entrance through AsyncLLM, LLMEngine,
    InputProcessor and EngineCoreRequest to Request, and from there to the events.

Adds: continuation_id at every such place, found by syntax, so that an entrance
    which upstream adds gets it without further work; last in each signature, so
    that no positional argument shifts; and last in EngineCoreRequest, which the
    Rust frontend encodes as an array.

Drop when: vllm-project/vllm#48501 is in the supported release.
"""

from vllm_coordinates.semantic import add_field, twin

EDITS = [
    add_field(
        "vllm/v1/engine/__init__.py",
        "EngineCoreRequest",
        """
        # Last: the request is encoded as an array, also by the Rust frontend.
        continuation_id: str | None = None
        """,
    ),
    twin(
        "session_id",
        "continuation_id",
        within=(
            "vllm/engine/**/*.py",
            "vllm/entrypoints/**/*.py",
            "vllm/v1/**/*.py",
        ),
        # Sessions of tool servers and of speech are other things of that name.
        outside=("vllm/entrypoints/mcp/*", "*/realtime/*"),
        places=34,
    ),
]
