# SPDX-License-Identifier: Apache-2.0
"""How the stream's commands are typed: record, watch, verify.

A SOURCE is a server (`http://host:8000`, which is asked for its publishers), a
publisher (`tcp://host:5557`, with its replay socket behind a comma:
`tcp://host:5557,tcp://host:5657`) or, where it says so, a recording.

Ctrl-C ends them as `--seconds` does, with the same exit code: it is how a command that
is not told when to stop is ended. Only while a server is asked for its publishers is it
a fault, 130.

`commands` does the work. It needs sockets, an event loop and more, so it is imported
by the command that runs and not by `--help` or by the commands of the tool.
"""

from pathlib import Path
from typing import Annotated

import typer

_SOURCE_HELP = (
    "A server (http://host:8000), or a publisher and its replay socket, if it has one"
    " (tcp://host:5557,tcp://host:5657)."
)

SourcesArgument = Annotated[
    list[str],
    typer.Argument(metavar="SOURCE|FILE", help=f"{_SOURCE_HELP} Or a recording."),
]
SourceArgument = Annotated[str, typer.Argument(metavar="SOURCE", help=_SOURCE_HELP)]
RanksOption = Annotated[
    int,
    typer.Option(
        min=1,
        help="Data-parallel ranks of a publisher's address: each publishes one port up"
        " from the last. A server names its own.",
    ),
]
SecondsOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Stop after so many seconds. Ctrl-C stops just so: exit code 0 where all"
        " is well.",
        show_default="at Ctrl-C",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the tool's `app`."""
    app.command("record")(record_command)
    app.command("watch")(watch_command)
    app.command("verify")(verify_command)


def record_command(
    source: SourceArgument,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Where to; it must not exist yet."),
    ],
    ranks: RanksOption = 1,
    seconds: SecondsOption = None,
    batches: Annotated[
        int | None,
        typer.Option(
            min=1, help="Stop after so many batches.", show_default="at Ctrl-C"
        ),
    ] = None,
) -> None:
    """Capture an event stream in a file that watch and verify read."""
    from . import commands

    commands.record(source, file, ranks=ranks, seconds=seconds, batches=batches)


def watch_command(
    sources: SourcesArgument,
    ranks: RanksOption = 1,
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Show one picture and end: of a whole recording, or after --seconds;"
            " by default once every endpoint has sent a batch, after 4 seconds at"
            " most. Exit code 11 where nobody answers.",
        ),
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print each picture as a line of JSON.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Keep a page of the pictures over time in this file."),
    ] = None,
    sort: Annotated[
        str, typer.Option(help="Order of sessions: tokens, shared, seen, session.")
    ] = "tokens",
    every: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two pictures, at least.")
    ] = 1.0,
    seconds: SecondsOption = None,
) -> None:
    """Show what every session holds where, live."""
    from . import commands

    commands.watch(
        sources,
        ranks=ranks,
        once=once,
        json=json,
        html=html,
        sort=sort,
        every=every,
        seconds=seconds,
    )


def verify_command(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE|FILE", help=f"{_SOURCE_HELP} Or a recording."),
    ],
    ranks: RanksOption = 1,
    seconds: SecondsOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print violations and the sum as JSON lines.")
    ] = False,
) -> None:
    """Check a stream against the contract; exit code 1 where it breaks it."""
    from . import commands

    commands.verify(source, ranks=ranks, seconds=seconds, json=json)
