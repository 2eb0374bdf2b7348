# SPDX-License-Identifier: Apache-2.0
"""The stock Rust frontend of 0.33.0 before a patched engine.

The frontend is upstream's binary: it threads session_id, and hands `vllm_xargs` to
the engine whole. The engine core takes what a Python frontend would have resolved
and refused.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from cpu_engine.server import MODEL_NAME, ServerOptions
from cpu_engine.tiny_model import TinyModel, ensure_model
from engine import served_trees
from engine.engine import BLOCK, Engine, fresh_text, fresh_tokens, running
from entrances.stock_binary import NoBinary, stock_binary
from entrances.ways import HEADERS, post
from sources import CACHE

Published = set[tuple[str | None, str | None]]


@pytest.fixture(scope="module")
def rust() -> Iterator[Engine]:
    """Patched 0.33.0 behind the stock binary."""
    try:
        binary = stock_binary()
    except NoBinary as reason:
        pytest.skip(str(reason))
    options = ServerOptions(
        ensure_model(TinyModel.QWEN2, CACHE / "models"),
        cache=CACHE / "vllm",
        tree=served_trees.patched_0_33(),
        num_blocks=1024,
        env={
            "VLLM_USE_RUST_FRONTEND": "1",
            "VLLM_RUST_FRONTEND_PATH": str(binary),
        },
    )
    with running(options) as started:
        yield started


def published(engine: Engine, headers: Any = None, **body: Any) -> Published:
    """Both labels, as the events of a completion and of a chat carry them."""
    engine.stored()
    engine.complete(fresh_tokens(2 * BLOCK), headers=headers, **body).raise_for_status()
    engine.chat(fresh_text(), headers=headers, **body).raise_for_status()
    return {(event.session_id, event.continuation_id) for event in engine.stored()}


def test_it_is_the_rust_frontend(rust: Engine) -> None:
    assert "RustFrontend" in rust.server.log.read_text()


class TestSessionId:
    """Upstream's own label is taken as ever, in the order of the Python frontend."""

    header: ClassVar = {HEADERS["session_id"]: "header"}
    xargs: ClassVar = {"session_id": "xargs"}

    def test_of_the_body_wins(self, rust: Engine) -> None:
        found = published(rust, self.header, session_id="body", vllm_xargs=self.xargs)
        assert found == {("body", None)}

    def test_of_the_header_is_next(self, rust: Engine) -> None:
        found = published(rust, self.header, session_id="", vllm_xargs=self.xargs)
        assert found == {("header", None)}

    def test_of_vllm_xargs_is_last(self, rust: Engine) -> None:
        found = published(
            rust, {HEADERS["session_id"]: ""}, session_id="", vllm_xargs=self.xargs
        )
        assert found == {("xargs", None)}

    def test_may_be_absent(self, rust: Engine) -> None:
        assert published(rust) == {(None, None)}


def test_a_continuation_in_vllm_xargs_reaches_the_events(rust: Engine) -> None:
    found = published(rust, session_id="s", vllm_xargs={"continuation_id": "c"})
    assert found == {("s", "c")}


def test_both_labels_in_vllm_xargs_reach_the_events(rust: Engine) -> None:
    labels = {"session_id": "s", "continuation_id": "c"}
    assert published(rust, vllm_xargs=labels) == {("s", "c")}


def test_an_empty_continuation_counts_as_absent(rust: Engine) -> None:
    found = published(rust, session_id="s", vllm_xargs={"continuation_id": ""})
    assert found == {("s", None)}


def test_the_stock_binary_knows_no_other_place(rust: Engine) -> None:
    header = {HEADERS["continuation_id"]: "c"}
    assert published(rust, header, continuation_id="c") == {(None, None)}


@pytest.mark.parametrize(
    "bad",
    ["x" * 257, " ", "a\x1bb", 7, ["a"], True],
    ids=["long", "blank", "control", "number", "list", "bool"],
)
def test_a_bad_continuation_is_dropped_and_the_engine_goes_on(
    rust: Engine, bad: Any
) -> None:
    found = published(rust, session_id="s", vllm_xargs={"continuation_id": bad})
    assert found == {("s", None)}
    assert "loses its continuation_id: it must " in rust.server.log.read_text()


def test_a_bad_session_is_dropped_and_the_continuation_stays(rust: Engine) -> None:
    found = published(rust, session_id="x" * 2**20, vllm_xargs={"continuation_id": "c"})
    assert found == {(None, "c")}


def test_a_lone_surrogate_is_no_json_to_rust(rust: Engine) -> None:
    body = {"model": MODEL_NAME, "prompt": "a", "session_id": "\ud800"}
    assert post(rust, "/v1/completions", body).status_code == 400
    assert published(rust, session_id="s") == {("s", None)}


def test_the_coordinates_mode_is_met(rust: Engine) -> None:
    rust.stored()
    rust.complete(
        fresh_tokens(2 * BLOCK),
        session_id="s",
        vllm_xargs={"continuation_id": "c", "kv_cache_report_mode": "coordinates"},
    ).raise_for_status()
    [event] = rust.stored()
    assert (event.block_hashes, event.token_ids) == ([], [])
    assert (event.token_offset, event.num_tokens) == (0, 2 * BLOCK)


@pytest.mark.parametrize(
    "xargs",
    [
        {"kv_cache_report_mode": "partial"},
        {"kv_cache_report_mode": "coordinates"},
        {"kv_cache_report_mode": 7},
    ],
    ids=["unknown", "without a label", "number"],
)
def test_a_mode_that_cannot_be_met_is_incremental(
    rust: Engine, xargs: dict[str, Any]
) -> None:
    rust.stored()
    prompt = fresh_tokens(2 * BLOCK)
    rust.complete(prompt, vllm_xargs=xargs).raise_for_status()
    [event] = rust.stored()
    assert event.token_ids == prompt


def test_of_a_header_that_comes_twice_the_first_counts(rust: Engine) -> None:
    rust.stored()
    body = {"model": MODEL_NAME, "prompt": fresh_tokens(BLOCK), "max_tokens": 1}
    headers = [(HEADERS["session_id"], value) for value in ("first", "second")]
    post(rust, "/v1/completions", body, headers).raise_for_status()
    assert {event.session_id for event in rust.stored()} == {"first"}


def test_a_header_that_is_not_ascii_counts_as_absent(rust: Engine) -> None:
    rust.stored()
    body = {"model": MODEL_NAME, "prompt": fresh_tokens(BLOCK), "max_tokens": 1}
    headers = [(HEADERS["session_id"], "Grün")]
    post(rust, "/v1/completions", body, headers).raise_for_status()
    assert {event.session_id for event in rust.stored()} == {None}


def test_it_does_not_show_the_epoch(rust: Engine) -> None:
    assert [source.publisher_epoch for source in rust.sources] == [None]
