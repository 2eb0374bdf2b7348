# SPDX-License-Identifier: Apache-2.0
"""A gateway before real replicas, and what a test asks through it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from cpu_engine.server import MODEL_NAME, EngineServer, ServerOptions
from cpu_engine.tiny_model import TinyModel, ensure_model
from engine import served_trees
from engine.engine import fresh_text
from sources import CACHE
from trees import ROOT

BLOCK = 32
_PATIENCE_S = 60.0


class Client:
    """A client of a gateway: it says anything and sees what any client sees."""

    def __init__(
        self, clients: str, operator: str, servers: list[EngineServer]
    ) -> None:
        self.url = clients
        self.operator = operator
        self.servers = servers

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=120)

    def post(self, path: str, **request: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", timeout=120, **request)

    def chat(
        self, messages: list[dict[str, str]], *, headers: Any = None, **body: Any
    ) -> httpx.Response:
        return self.post(
            "/v1/chat/completions",
            json={"model": MODEL_NAME, "messages": messages, "max_tokens": 1, **body},
            headers=headers,
        )

    def sessions(self) -> dict[str, Any]:
        """What the operator sees."""
        picture: dict[str, Any] = httpx.get(f"{self.operator}/sessions.json").json()
        return picture

    def names(self) -> set[str]:
        """Every label that any replica holds anything of."""
        return names(self.sessions())

    def wait_until(self, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The first picture for which it holds."""
        deadline = time.monotonic() + _PATIENCE_S
        while not holds(picture := self.sessions()):
            assert time.monotonic() < deadline, picture
            time.sleep(0.05)
        return picture


def names(picture: dict[str, Any]) -> set[str]:
    """Every label in what the operator sees."""
    return {
        branch[name]
        for branch in picture["branches"]
        for name in ("session_id", "continuation_id")
    }


def opening() -> list[dict[str, str]]:
    """How a conversation opens that no other one opens like; three blocks long."""
    return [{"role": "user", "content": fresh_text()}]


def reply(answer: httpx.Response) -> list[dict[str, str]]:
    """The answer and a next question."""
    message = answer.raise_for_status().json()["choices"][0]["message"]
    return [
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": "And then?"},
    ]


def cached(answer: httpx.Response) -> int:
    """How many tokens of the prompt were in the cache of the replica."""
    usage = answer.raise_for_status().json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def replica(answer: httpx.Response) -> str:
    """Which replica answered."""
    return str(answer.raise_for_status().json()["model"])


def options(name: str) -> ServerOptions:
    """A replica that says its name in every answer."""
    return ServerOptions(
        ensure_model(TinyModel.QWEN2, CACHE / "models"),
        cache=CACHE / "vllm",
        tree=served_trees.patched(),
        num_blocks=256,
        max_model_len=2048,
        extra_args=("--served-model-name", name, MODEL_NAME),
    )


@contextmanager
def gateway_before(
    servers: list[EngineServer], *arguments: str, ready: bool = True
) -> Iterator[Client]:
    """`python -m gateway` as a person starts it; `ready` waits until all live."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "--port=0", "--operator-port=0", *arguments]
        + [server.url for server in servers],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'examples'}:{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = [process.stdout.readline().split()[1] for _ in range(2)]
        client = Client(
            said[0].removesuffix("/v1"), said[1].removesuffix("/sessions"), servers
        )
        if ready:
            client.wait_until(lambda p: not any(r["fault"] for r in p["replicas"]))
        yield client
    finally:
        process.terminate()
        process.wait()
