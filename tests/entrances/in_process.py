# SPDX-License-Identifier: Apache-2.0
"""Requests to an engine in this process: what labels they published, or the refusal.

    python in_process.py sync|async MODEL_FOLDER

Prints one JSON object: name of a scenario -> list of (session_id, continuation_id),
or the message of a VLLMValidationError. `test_in_process.py` runs it inside a tree.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

from cpu_engine.server import EventSource
from cpu_engine.tap import EventTap, Frame
from engine.engine import BLOCK, fresh_text, fresh_tokens
from ports import free_ports
from vllm import LLM, SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.protocol import StreamingInput
from vllm.exceptions import VLLMValidationError
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm_coordinates.stream.wire import BlockStored

LABELS: dict[str, Any] = {"session_id": "s", "continuation_id": "c"}
OTHERS: dict[str, Any] = {"session_id": "other s", "continuation_id": "other c"}
END = "end of scenario"


EVENTS, REPLAY = free_ports(2)


def engine_args(model: str) -> dict[str, Any]:
    return {
        "model": model,
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": BLOCK,
        "num_gpu_blocks_override": 512,
        "max_model_len": 1024,
        "kv_events_config": {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{EVENTS}",
            "replay_endpoint": f"tcp://*:{REPLAY}",
        },
    }


def params(n: int = 1, **extra_args: Any) -> SamplingParams:
    return SamplingParams(max_tokens=2, n=n, extra_args=extra_args or None)


def prompt(blocks: int = 2) -> TokensPrompt:
    return TokensPrompt(prompt_token_ids=fresh_tokens(blocks * BLOCK))


class Scenarios:
    """Names, and what was published or refused under each."""

    def __init__(self) -> None:
        base = "tcp://127.0.0.1:"
        self._tap = EventTap(EventSource(0, f"{base}{EVENTS}", f"{base}{REPLAY}", None))
        self.results: dict[str, Any] = {}

    def published(self, name: str) -> None:
        """Note the labels published since the last call, up to the end's."""
        labels = set()
        for event in self._stored(self._tap.read_until(self._ends)):
            labels.add((event.session_id, event.continuation_id))
        self.results[name] = sorted(labels - {(None, END)}, key=str)

    def refused(self, name: str, error: VLLMValidationError) -> None:
        self.results[name] = str(error)

    def _ends(self, frame: Frame) -> bool:
        return any(e.continuation_id == END for e in self._stored([frame]))

    def _stored(self, frames: list[Frame]) -> Iterator[BlockStored]:
        for frame in frames:
            for event in frame.batch.events:
                if isinstance(event, BlockStored):
                    yield event


def run_sync(model: str) -> dict[str, Any]:
    """Through LLM and LLMEngine."""
    llm = LLM(**engine_args(model))
    engine = llm.llm_engine
    scenarios = Scenarios()

    def generate(**extra_args: Any) -> None:
        llm.generate([prompt(), prompt()], params(**extra_args), use_tqdm=False)

    def add_request(*, given: SamplingParams | None = None, **labels: Any) -> None:
        engine.add_request("request", prompt(), given or params(), **labels)
        while engine.has_unfinished_requests():
            engine.step()

    def chat() -> None:
        message = {"role": "user", "content": fresh_text()}
        llm.chat([message], params(**LABELS), use_tqdm=False)

    run: dict[str, Callable[[], None]] = {
        "generate, no labels": generate,
        "generate, both in extra_args": lambda: generate(**LABELS),
        "generate, session alone in extra_args": lambda: generate(session_id="s"),
        "generate, continuation alone": lambda: generate(continuation_id="c"),
        "generate, empty labels": lambda: generate(session_id="", continuation_id=""),
        "generate, n > 1": lambda: generate(n=3, **LABELS),
        "chat": chat,
        "add_request": lambda: add_request(**LABELS),
        "add_request, n > 1": lambda: add_request(given=params(n=3), **LABELS),
        "add_request, extra_args lose": lambda: add_request(
            given=params(**OTHERS), **LABELS
        ),
        "generate, long": lambda: generate(continuation_id="x" * 257),
        "generate, no string": lambda: generate(continuation_id=7),
        "generate, mode": lambda: generate(kv_cache_report_mode="partial"),
        "generate, mode lacks a label": lambda: generate(
            continuation_id="c", kv_cache_report_mode="coordinates"
        ),
        "add_request, blank": lambda: add_request(session_id=" "),
        "add_request, surrogate": lambda: add_request(session_id="\ud800"),
    }
    for name, scenario in run.items():
        try:
            scenario()
        except VLLMValidationError as error:
            scenarios.refused(name, error)
            continue
        llm.generate(prompt(), params(continuation_id=END), use_tqdm=False)
        scenarios.published(name)
    return scenarios.results


async def run_async(model: str) -> dict[str, Any]:
    """Through AsyncLLM."""
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_args(model)))
    scenarios = Scenarios()
    numbers = iter(range(1000))

    async def generate(what: Any, given: SamplingParams, **labels: Any) -> None:
        async for _ in llm.generate(what, given, f"request-{next(numbers)}", **labels):
            pass

    async def chunks() -> AsyncGenerator[StreamingInput, None]:
        for _ in range(3):
            yield StreamingInput(prompt=prompt())

    streaming = SamplingParams(max_tokens=1, output_kind=RequestOutputKind.DELTA)
    run: dict[str, Any] = {
        "no labels": (prompt(), params(), {}),
        "arguments": (prompt(), params(), LABELS),
        "extra_args": (prompt(), params(**LABELS), {}),
        "extra_args lose": (prompt(), params(**OTHERS), LABELS),
        "n > 1": (prompt(), params(n=3), LABELS),
        "resumable": (chunks(), streaming, LABELS),
        "blank": (prompt(), params(), {"continuation_id": " "}),
        "no string": (prompt(), params(), {"session_id": 7}),
        "resumable, blank": (chunks(), streaming, {"continuation_id": " "}),
    }
    for name, (what, given, labels) in run.items():
        try:
            await generate(what, given, **labels)
        except VLLMValidationError as error:
            scenarios.refused(name, error)
            continue
        await generate(prompt(), params(), continuation_id=END)
        await asyncio.to_thread(scenarios.published, name)
    llm.shutdown()
    return scenarios.results


if __name__ == "__main__":
    kind, model = sys.argv[1:]
    results = run_sync(model) if kind == "sync" else asyncio.run(run_async(model))
    print(json.dumps(results))
