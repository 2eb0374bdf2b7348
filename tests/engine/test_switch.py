# SPDX-License-Identifier: Apache-2.0
"""`"coordinates": false` keeps labels off the wire, whatever clients send."""

from engine.engine import BLOCK, Engine, fresh_tokens

LABELS = {"session_id": "s", "continuation_id": "c"}


def test_no_event_carries_a_continuation(switched_off: Engine) -> None:
    switched_off.events()
    for _ in range(3):
        switched_off.complete(fresh_tokens(5 * BLOCK), **LABELS).raise_for_status()
    frames = switched_off.frames()
    assert any(b"BlockRemoved" in frame.payload for frame in frames)
    assert not any(b"continuation_id" in frame.payload for frame in frames)


def test_session_id_is_stock_vllm_s_and_stays(switched_off: Engine) -> None:
    switched_off.events()
    switched_off.complete(fresh_tokens(2 * BLOCK), **LABELS).raise_for_status()
    assert {event.session_id for event in switched_off.stored()} == {"s"}


def test_even_a_bad_continuation_is_ignored(switched_off: Engine) -> None:
    response = switched_off.complete(fresh_tokens(BLOCK), continuation_id=" ")
    assert response.status_code == 200


def test_even_a_bad_header_is_ignored(switched_off: Engine) -> None:
    tokens = fresh_tokens(BLOCK)
    for path, body in (
        ("/v1/completions", {"prompt": tokens, "max_tokens": 1}),
        (
            "/inference/v1/generate",
            {"token_ids": tokens, "sampling_params": {"max_tokens": 1}},
        ),
    ):
        headers = [("X-Continuation-ID", "one"), ("X-Continuation-ID", "x" * 257)]
        response = switched_off.post(path, body, headers=headers)
        assert response.status_code == 200, response.text


def test_the_coordinates_mode_is_refused(switched_off: Engine) -> None:
    response = switched_off.complete(
        fresh_tokens(BLOCK),
        vllm_xargs={"kv_cache_report_mode": "coordinates"},
        **LABELS,
    )
    assert response.status_code == 400
    assert (
        "kv_cache_report_mode must be one of incremental, full"
        " (this server has coordinates switched off)."
    ) in response.json()["error"]["message"]
