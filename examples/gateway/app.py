# SPDX-License-Identifier: Apache-2.0
"""The HTTP surface: one app for clients, and another for whoever runs the gateway.

Clients reach what is named here and nothing else: no path of a replica is passed on
because it looks like one. What is resident, and whose it is, is on the operator's app,
which listens elsewhere: a client has no business with another's sessions.
"""

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException

from gateway import picture
from gateway.labels import APIS
from gateway.proxy import Gateway, refusal


def client_app(gateway: Gateway) -> FastAPI:
    """What clients talk to."""
    app = _app()

    @app.get("/v1/models")
    async def models() -> Response:
        return await gateway.models()

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200 if gateway.fleet.living() else 503)

    for path in APIS:
        app.post(path)(gateway.generate)
    return app


def operator_app(gateway: Gateway) -> FastAPI:
    """What the operator looks at; not for a network with clients in it."""
    app = _app()

    @app.get("/")
    async def root() -> Response:
        return RedirectResponse("/sessions")

    @app.get("/sessions")
    async def sessions() -> Response:
        return HTMLResponse(picture.html(picture.take(gateway)))

    @app.get("/sessions.json")
    async def sessions_json() -> picture.Picture:
        return picture.take(gateway)

    return app


def _app() -> FastAPI:
    # No pages about itself: they would be reachable, too.
    app = FastAPI(openapi_url=None)

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        where = f"{request.method} {request.url.path}"
        return refusal(error.status_code, f"{where}: {error.detail}")

    return app
