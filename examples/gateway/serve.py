# SPDX-License-Identifier: Apache-2.0
"""Serves a gateway's two apps, each on a port of its own."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn

from gateway.app import client_app, operator_app
from gateway.proxy import Gateway


@dataclass(frozen=True)
class Address:
    """Where to listen; port 0 is any free one."""

    host: str = "127.0.0.1"
    port: int = 0


async def serve(
    gateway: Gateway,
    clients: Address,
    operator: Address,
    on_ready: Callable[[str, str], None] = lambda clients, operator: None,
) -> None:
    """Until a signal to stop, or cancelled.

    `on_ready` gets the base URLs of the clients' and of the operator's app, as soon as
    both listen. Raises OSError where an address cannot be had.
    """
    apps = (client_app(gateway), clients), (operator_app(gateway), operator)
    sockets = [_listen(address) for _, address in apps]
    servers = [
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        for app, _ in apps
    ]
    watching = asyncio.create_task(gateway.run())
    serving = [
        asyncio.create_task(server.serve([listener]))
        for server, listener in zip(servers, sockets, strict=True)
    ]
    on_ready(*(_url(listener) for listener in sockets))
    try:
        # Whatever ends first, ends all: a gateway that is blind serves nobody.
        done, _ = await asyncio.wait(
            [watching, *serving], return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            task.result()
    finally:
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*serving, return_exceptions=True)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _listen(address: Address) -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(1024)
    except OSError as error:
        name = f"{address.host}:{address.port}"
        raise OSError(error.errno, error.strerror, name) from error
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
