# SPDX-License-Identifier: Apache-2.0
"""The documents, followed by the letter on the server that `make serve` starts."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from cpu_engine import demo
from cpu_engine.server import MODEL_NAME, EngineServer
from documents import blocks, blocks_run_by, commands_run_by, rows
from engine import served_trees
from engine.engine import BLOCK, Engine, fresh_tokens
from sources import CACHE

HERE = Path(__file__)
BIN = Path(sys.executable).parent
FOLLOWED = sorted(
    {block.document for block, _ in commands_run_by(HERE)}
    | {block.document for block in blocks_run_by(HERE, "python")}
)


@dataclass
class Served:
    """The demonstration's server, after the demonstration.

    Attributes:
        server: The server.
        printed: What the demonstration printed.
    """

    server: EngineServer
    printed: str

    def here(self, text: str) -> str:
        """A command or program of the documents, with the addresses of this server."""
        [source] = self.server.event_sources()
        for said, meant in (
            ("http://localhost:8000", self.server.url),
            ("tcp://localhost:5557", source.endpoint),
            ("tcp://localhost:5657", source.replay_endpoint),
            ('"MODEL"', f'"{MODEL_NAME}"'),
            (".venv/bin/", f"{BIN}/"),
        ):
            text = text.replace(said, meant)
        return text

    def post(self, path: str, body: dict[str, Any], **options: Any) -> httpx.Response:
        """The answer to a body, sent as plain `json` writes it."""
        content = json.dumps({"model": MODEL_NAME, **body})
        headers = [("Content-Type", "application/json"), *options.pop("headers", [])]
        return httpx.post(
            f"{self.server.url}{path}",
            content=content,
            headers=headers,
            timeout=60,
            trust_env=False,
        )


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    options = demo.demo_options(CACHE, served_trees.patched())
    printed = StringIO()
    with (
        EngineServer(
            replace(options, env={"VLLM_ENABLE_RESPONSES_API_STORE": "1"})
        ) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        console = Console(file=printed, width=80, highlight=False)
        patch.setattr(demo, "console", console)
        assert demo.play_and_report(server)
        yield Served(server, printed.getvalue())


class TestTheSampleOfTheReadme:
    """A run of the demonstration; ids are those of its content.

    What the random model answers may differ between processors, and with it what
    follows the first turn of each session: there only the shape is compared.
    """

    @staticmethod
    def lines(text: str) -> list[str]:
        """From the table on, without the epoch, which is another one each time."""
        text = text[text.index("sent ") :]
        return [
            re.sub(r" [0-9a-f]{6}$", " epoch", s.rstrip()) for s in text.split("\n")
        ]

    @staticmethod
    def shape(line: str) -> str:
        line = re.sub(r"\b[0-9a-f]{12}\b", "id", line)
        return re.sub(r"\s+", " ", re.sub(r"\d+", "n", line))

    def test_it_is_what_the_demonstration_prints(self, served: Served) -> None:
        [sample] = blocks_run_by(HERE, "text", "README.md")
        shown, printed = self.lines(sample.text), self.lines(served.printed)
        assert shown[:4] == printed[:4]
        assert {self.shape(s) for s in shown} == {self.shape(s) for s in printed}


@dataclass
class Followed:
    """What a document led to: the names of its programs, and what was printed."""

    names: dict[str, Any]
    output: dict[str, str]


def follow(document: str, served: Served, folder: Path) -> Followed:
    """Run the blocks of a document in order, in one folder and one program."""
    done = Followed({}, {})
    for block in blocks(document):
        if block.language == "python":
            code = compile(served.here(block.text), str(block), "exec")
            exec(code, done.names)
        for command in block.commands:
            if command in (mine for _, mine in commands_run_by(HERE)):
                done.output[command] = run(served.here(command), folder)
    return done


def run(command: str, folder: Path) -> str:
    """What a command prints, in a shell that finds this environment's programs."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path, "COLUMNS": "100", "NO_PROXY": "*"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def quick_start_shows_carol(done: Followed) -> None:
    [watched] = [text for name, text in done.output.items() if " watch " in name]
    [verified] = [text for name, text in done.output.items() if " verify " in name]
    assert "carol" in watched
    assert verified.startswith("0 violations")
    assert "stores in coordinates" in verified


def consumers_find_their_prefix(done: Followed) -> None:
    names = done.names
    [prefix] = names["index"].longest(names["next_turn"].continuation_id)
    assert prefix.continuation_id == names["chain"].continuation_id
    prompt = names["usage"]["prompt_tokens"]
    assert prefix.tokens == prompt // BLOCK * BLOCK > 0
    assert names["violations"] == []
    assert names["verifier"].batches > 0


def operators_see_an_epoch(done: Followed) -> None:
    [sources, *_] = [text for name, text in done.output.items() if "curl" in name]
    assert json.loads(sources)["0"]["publisher_epoch"]


AFTERWARDS: dict[str, Callable[[Followed], None]] = {
    "docs/consumers.md": consumers_find_their_prefix,
    "docs/operating.md": operators_see_an_epoch,
    "docs/quickstart.md": quick_start_shows_carol,
}


@pytest.mark.parametrize("document", FOLLOWED)
def test_a_reader_who_follows_the_document_gets_there(
    document: str, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = follow(document, served, tmp_path)
    if document in AFTERWARDS:
        AFTERWARDS[document](done)


class TestTheRefusals:
    """What `docs/operating.md` and `docs/entrances.md` say that a server answers."""

    SWITCHED_OFF = "switched off"  # tests/in_tree/test_documents.py

    @staticmethod
    def refusals(served: Served) -> Iterator[httpx.Response]:
        """One request for each of the messages."""
        text = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 1}
        for label in ("x" * 257, " ", "a\n", "a\ud800"):
            yield served.post("/v1/chat/completions", text | {"continuation_id": label})
        twice = [("X-Session-ID", "a"), ("X-Session-ID", "b")]
        yield served.post("/v1/chat/completions", text, headers=twice)
        for xargs in (
            {"continuation_id": 7},
            {"kv_cache_report_mode": "spans"},
            {"kv_cache_report_mode": "coordinates", "continuation_id": "c"},
        ):
            yield served.post("/v1/chat/completions", text | {"vllm_xargs": xargs})
        turn = {"input": "Hello!", "max_output_tokens": 1}
        no_ids: list[Any] = [{}, ["a"]]
        for no_id in no_ids:
            yield served.post("/v1/responses", turn | {"conversation": no_id})
        parent = served.post("/v1/responses", turn | {"store": True}).json()["id"]
        both = {"conversation": "a", "previous_response_id": parent}
        yield served.post("/v1/responses", turn | both)

    def test_the_table_has_every_message_and_no_other(self, served: Served) -> None:
        answers = list(self.refusals(served))
        assert {answer.status_code for answer in answers} == {400}
        messages = [answer.json()["error"]["message"] for answer in answers]
        table = rows("docs/operating.md", "Answers with status 400")
        documented = {message.strip("`") for message, _ in table}
        assert {m.partition(" (parameter=")[0] for m in messages} == {
            message for message in documented if self.SWITCHED_OFF not in message
        }

    def test_the_example_is_an_answer(self, served: Served) -> None:
        [example] = blocks_run_by(HERE, "json", "docs/entrances.md")
        answer, *_ = self.refusals(served)
        assert answer.json() == json.loads(example.text)


def test_a_stock_engine_serves_labeled_requests_and_names_no_label(
    stock_engine: Engine,
) -> None:
    """`docs/evolution.md`: engines of both kinds behind one gateway."""
    labels = {"session_id": "s", "continuation_id": "c"}
    mode = {"vllm_xargs": {"kv_cache_report_mode": "coordinates"}}
    stock_engine.events()
    prompt = fresh_tokens(2 * BLOCK)
    stock_engine.complete(prompt, **labels, **mode).raise_for_status()
    [event] = stock_engine.stored()
    assert len(event.block_hashes) == 2
    assert (event.session_id, event.continuation_id) == ("s", None)
