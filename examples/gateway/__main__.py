# SPDX-License-Identifier: Apache-2.0
"""`python -m gateway http://replica-a:8000 http://replica-b:8000`"""

import asyncio
import logging
from typing import Annotated

import typer

from gateway.proxy import Gateway
from gateway.replicas import base_urls
from gateway.serve import Address, serve


def main(
    replicas: Annotated[
        list[str],
        typer.Argument(metavar="REPLICA...", help="Base URLs of patched vLLM servers."),
    ],
    host: Annotated[str, typer.Option(help="Where clients come in.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="0 is any free port.")
    ] = 8080,
    operator_host: Annotated[
        str, typer.Option(help="Where /sessions is; keep clients away from it.")
    ] = "127.0.0.1",
    operator_port: Annotated[
        int, typer.Option(min=0, max=65535, help="0 is any free port.")
    ] = 8081,
    trust_labels: Annotated[
        bool,
        typer.Option(
            "--trust-labels",
            help="Keep labels that come with requests: something in front mints them,"
            " and no client reaches this port.",
        ),
    ] = False,
) -> None:
    """Sends sessions back to the replica that still holds their prefix."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("gateway").setLevel(logging.INFO)

    def ready(clients: str, operator: str) -> None:
        print(f"clients   {clients}/v1\nsessions  {operator}/sessions", flush=True)

    try:
        gateway = Gateway(base_urls(replicas), trust_labels=trust_labels)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    try:
        asyncio.run(
            serve(
                gateway,
                Address(host, port),
                Address(operator_host, operator_port),
                ready,
            )
        )
    except OSError as error:
        typer.echo(
            f"error: cannot listen at {error.filename} ({error.strerror}): name another"
            " address with --host and --port, or --operator-host and --operator-port",
            err=True,
        )
        raise typer.Exit(1) from error


if __name__ == "__main__":
    typer.run(main)
