# SPDX-License-Identifier: Apache-2.0
"""`make demo` and `make serve`: labels go in over HTTP and come back on the events."""

import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.markup import escape

from cpu_engine.conversation import Conversation, Sent
from cpu_engine.report import Exchange, faults, table
from cpu_engine.server import MODEL_NAME, EngineServer, ServerError, ServerOptions
from cpu_engine.tap import EventTap, Frame, StreamError
from cpu_engine.tiny_model import TinyModel, ensure_model
from vllm_coordinates.stream.wire import BlockStored

# So few that the sessions do not fit in together: each evicts some of the other.
NUM_BLOCKS = 11
MAX_MODEL_LEN = 320

SYSTEM = (
    "You answer questions about the prefix cache of an inference engine. Such an"
    " engine keeps the keys and values of every token it has seen, block by block."
    " When it needs room, it evicts the blocks that nobody has used for the longest"
    " time. Keep your answers short, friendly and exact; if you do not know"
    " something, say that you do not know it."
)
QUESTIONS = {
    "alice": (
        "Which blocks would be evicted first, and which ones last?",
        "Suppose I pause this conversation to run a tool. What becomes of its blocks?",
        "Good. Would a second conversation with your instructions keep them alive?",
    ),
    "bob": (
        "How could a load balancer find the engine that knows my conversation?",
        "Does it have to tokenize my messages to be able to do that, or not?",
        "Thanks! Then please summarize what it must remember, in one sentence.",
    ),
}

console = Console(highlight=False)
errors = Console(highlight=False, stderr=True)


def main(
    cache: Annotated[Path, typer.Option(help="Where models and caches are kept.")],
    keep: Annotated[bool, typer.Option(help="Leave the server running.")] = False,
    tree: Annotated[
        Path | None, typer.Option(help="Serve the vLLM of this folder instead.")
    ] = None,
) -> None:
    """Plays two labeled sessions against a real server and shows its events."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        complete = _run(cache.resolve(), keep=keep, tree=tree)
    except (ServerError, StreamError, httpx.HTTPError) as error:
        _complain("error", str(error))
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        console.print("Stopped.")
        raise typer.Exit(130) from None
    raise typer.Exit(0 if complete else 1)


def demo_options(cache: Path, tree: Path | None = None) -> ServerOptions:
    """What the demonstration serves.

    Args:
        cache: Where models and caches are kept.
        tree: A folder that holds another `vllm` than the installed one.
    """
    return ServerOptions(
        model=ensure_model(TinyModel.QWEN2, cache / "models"),
        cache=cache / "vllm",
        tree=tree,
        num_blocks=NUM_BLOCKS,
        max_model_len=MAX_MODEL_LEN,
        kv_events={"send_publisher_epoch": True},
    )


def _interrupt(*_: object) -> None:
    # As Ctrl-C does, so that the server is not left behind; a second one is late.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _run(cache: Path, *, keep: bool, tree: Path | None) -> bool:
    with console.status("Making a tiny model with random weights"):
        server = EngineServer(demo_options(cache, tree))
    try:
        _start(server)
        complete = play_and_report(server)
        if keep:
            _serve_until_interrupted(server)
        return complete
    finally:
        server.stop()


def _start(server: EngineServer) -> None:
    with console.status("") as status:

        def show(phase: str) -> None:
            status.update(f"Starting vllm serve: {phase}")
            if not console.is_terminal:
                console.print(f"Starting vllm serve: {phase}")

        server.start(show)


def play_and_report(server: EngineServer) -> bool:
    """Play the sessions, print the table, and tell whether nothing was missing."""
    block_size = server.options.block_size
    [source] = server.event_sources()
    console.print(f"vllm serve   {server.url}\nits events   {source.endpoint}\n")
    with EventTap(source) as tap:
        exchanges = [
            Exchange(sent, tuple(_events_of(sent, tap, block_size)))
            for sent in _play(server.url)
        ]
    console.print(table(exchanges, block_size))
    found = faults(exchanges, block_size, source.publisher_epoch)
    for fault in found:
        _complain("missing", fault)
    if not found:
        console.print(_summary(exchanges))
    return not found


def _complain(kind: str, sentence: str) -> None:
    # The log of a server has brackets of its own.
    errors.print(f"[red]{kind}:[/] {escape(sentence)}", soft_wrap=True)


def _play(url: str) -> Iterator[Sent]:
    sessions = {
        session_id: Conversation(url, session_id, SYSTEM) for session_id in QUESTIONS
    }
    for turn in zip(*QUESTIONS.values(), strict=True):
        for session_id, question in zip(QUESTIONS, turn, strict=True):
            yield sessions[session_id].ask(question)


def _events_of(sent: Sent, tap: EventTap, block_size: int) -> list[Frame]:
    missing = len(sent.admitted(block_size))

    def complete(frame: Frame) -> bool:
        nonlocal missing
        for event in frame.batch.events:
            if isinstance(event, BlockStored):
                missing -= len(event.token_ids)
        return missing <= 0

    return tap.read_until(complete) if missing else []


def _summary(exchanges: list[Exchange]) -> str:
    stored = sum(len(exchange.stored) for exchange in exchanges)
    removed = sum(len(exchange.removed) for exchange in exchanges)
    shared = exchanges[1].sent.cached
    return (
        f"\nEvery label came back: {len(exchanges)} turns, {stored} admissions,"
        f" {removed} evictions, one epoch.\n"
        f"Both sessions share their first {shared} tokens, which were admitted once,"
        " by the first of them.\n"
        "A removal names the continuation whose block had to go."
    )


def _serve_until_interrupted(server: EngineServer) -> None:
    port = int(server.url.rpartition(":")[2])
    variables = [f"{k}={v}" for k, v in server.options.variables().items()]
    installed = Path(sys.executable).parent
    command = shlex.join(
        ["env", *variables, f"{installed / 'vllm'}", *server.options.arguments(port)]
    )
    # From the moment that it says so, an interrupt is a normal end.
    try:
        console.print(
            "\nThe server runs until Ctrl-C. Try, from another terminal:\n\n"
            f"  curl {server.url}/v1/chat/completions \\\n"
            "      -H 'Content-Type: application/json' \\\n"
            "      -H 'X-Session-ID: carol' -H 'X-Continuation-ID: carol-1' \\\n"
            f"""      -d '{{"model": "{MODEL_NAME}", "max_tokens": 40, "messages":\n"""
            """           [{"role": "user", "content": "Hello!"}]}'\n"""
            f"  {installed / 'vllm-coordinates'} watch {server.url}\n\n"
            f"It was started by\n\n  {command}\n",
            soft_wrap=True,
            markup=False,
        )
        server.wait()
    except KeyboardInterrupt:
        console.print("Stopping the server.")


if __name__ == "__main__":
    typer.run(main)
