# SPDX-License-Identifier: Apache-2.0
"""Labels are identity, never semantics: they take no part in caching."""

from engine.engine import BLOCK, Engine, fresh_tokens


def labeled(name: str) -> dict[str, str]:
    return {"session_id": f"session {name}", "continuation_id": f"continuation {name}"}


def test_one_prefix_under_two_labels_is_admitted_once(engine: Engine) -> None:
    prefix = fresh_tokens(3 * BLOCK)
    engine.stored()
    engine.complete([*prefix, 5], **labeled("a")).raise_for_status()
    engine.complete([*prefix, 6], **labeled("b")).raise_for_status()
    [admission] = engine.stored()
    assert admission.token_ids == prefix
    assert admission.continuation_id == "continuation a"


def test_the_second_request_reuses_the_blocks_of_the_first(engine: Engine) -> None:
    prefix = fresh_tokens(3 * BLOCK)
    engine.complete([*prefix, 5], **labeled("a")).raise_for_status()
    answer = engine.complete([*prefix, 6], **labeled("b")).raise_for_status().json()
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 3 * BLOCK


def test_what_follows_the_fork_hangs_on_the_shared_blocks(engine: Engine) -> None:
    prefix = fresh_tokens(2 * BLOCK)
    engine.stored()
    engine.complete([*prefix, 5], **labeled("a")).raise_for_status()
    branch = fresh_tokens(BLOCK)
    engine.complete([*prefix, *branch, 5], **labeled("b")).raise_for_status()
    shared, own = engine.stored()
    assert own.token_ids == branch
    assert own.parent_block_hash == shared.block_hashes[-1]
    assert own.continuation_id == "continuation b"
