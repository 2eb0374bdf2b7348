# SPDX-License-Identifier: Apache-2.0
"""The table of `docs/entrances.md`, from what the tests hold the engine to.

    PYTHONPATH=examples:tests python -m entrances.table

writes it anew into the document.
"""

from collections.abc import Iterator, Sequence

from entrances.ways import WAYS, Place, Way
from trees import ROOT

DOCUMENT = ROOT / "docs" / "entrances.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"

# What has no HTTP endpoint: name, entrance, places of session_id, of continuation_id.
# Each row is held by test_run_batch, test_in_process or test_rust_frontend.
OTHER_ROWS = [
    ("a line of a batch", "`vllm run-batch`", "body field, vllm_xargs", None),
    ("offline", "`LLM.generate`, `LLM.chat`", "extra_args¹", "extra_args"),
    ("in process", "`LLMEngine.add_request`", "argument, extra_args¹", None),
    ("in process, async", "`AsyncLLM.generate`", "argument, extra_args¹", None),
    (
        "in process, resumable input",
        "`AsyncLLM.generate`",
        "argument, extra_args¹",
        None,
    ),
    (
        "Rust frontend, stock binary",
        "`/v1/chat/completions`, `/v1/completions`",
        "body field, header, vllm_xargs",
        "vllm_xargs",
    ),
]


def table() -> str:
    """The table in Markdown."""
    head = ("way", "entrance", "`session_id` from", "`continuation_id` from")
    lines = [head, ("---",) * 4, *(_row(way) for way in WAYS), *_others()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def in_document(document: str) -> str:
    """The table that a document shows."""
    return document.split(BEGIN)[1].split(END)[0]


def renewed(document: str) -> str:
    """The document with the table of now."""
    before, rest = document.split(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.split(END)[1]}"


def _row(way: Way) -> Sequence[str]:
    places = [
        "`sampling_params.extra_args`"
        if place is Place.XARGS and way.xargs != ("vllm_xargs",)
        else place.value
        for place in Place
        if place in way.places
    ]
    continuation = ", ".join(places)
    return (
        way.name,
        f"`{way.path}`",
        continuation.replace("args`", "args`¹"),
        continuation,
    )


def _others() -> Iterator[Sequence[str]]:
    for name, entrance, session, continuation in OTHER_ROWS:
        yield name, entrance, session, continuation or session.replace("¹", "")


if __name__ == "__main__":
    DOCUMENT.write_text(renewed(DOCUMENT.read_text()))
