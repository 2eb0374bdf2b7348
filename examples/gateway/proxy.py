# SPDX-License-Identifier: Apache-2.0
"""A labeled request to a replica, and its answer back as it comes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import httpx
import msgspec
from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from gateway import usage
from gateway.labels import Labeled, label
from gateway.lineage import Lineage
from gateway.replicas import Fleet
from gateway.routing import ByCoordinates, Choice, Router
from vllm_coordinates.stream.index import Index

# A generation takes as long as it takes; that a replica is gone is seen elsewhere.
_TIMEOUT = httpx.Timeout(None, connect=5.0)
# Each request connects anew: a connection kept from before does not tell, until the
# request is written to it, that the server behind it is gone.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=0)

_LOST = "the replica was lost; send the request again"

T = TypeVar("T")


class Gateway:
    """Everything that requests pass through; `run` before the first of them.

    `router` makes the routing of what is known; another one is for comparison.
    """

    def __init__(
        self,
        replicas: Sequence[str],
        *,
        trust_labels: bool = False,
        router: Callable[[Index], Router] = ByCoordinates,
    ) -> None:
        self.lineage = Lineage()
        self.index = self.lineage.index
        self._client = httpx.AsyncClient(timeout=_TIMEOUT, limits=_LIMITS)
        self.fleet = Fleet(replicas, self.index, self._client)
        self._router = router(self.index)
        self._trust_labels = trust_labels

    async def run(self) -> None:
        """Until cancelled: look after the replicas."""
        async with self._client:
            await self.fleet.watch()

    async def generate(self, request: Request) -> Response:
        """Label a request, choose a replica, and pass its answer on."""
        try:
            body = msgspec.json.decode(await request.body())
        except (msgspec.DecodeError, RecursionError) as error:
            return refusal(400, f"the body is not JSON: {error}")
        except ClientDisconnect:
            return Response(status_code=499)  # Nobody reads it.
        if not isinstance(body, dict):
            return refusal(400, "the body must be an object")
        try:
            labeled = label(
                request.url.path,
                request.headers,
                body,
                trusted=self._trust_labels,
            )
        except (ValueError, TypeError, RecursionError) as error:
            return refusal(400, str(error))
        self.lineage.register(labeled)
        return await self._forward(labeled, request)

    async def models(self) -> Response:
        """What the replicas serve; any one of them knows."""
        for replica in self.fleet.living():
            try:
                answer = await self._client.get(f"{replica.url}/v1/models")
            except httpx.RequestError as error:
                self.fleet.lost(replica, error)
            else:
                return _passed(answer)
        return _nobody()

    async def _forward(self, labeled: Labeled, request: Request) -> Response:
        replicas = self.fleet.living()
        while replicas:
            choice = self._router.choose(replicas, labeled)
            async with AsyncExitStack() as stack:
                stack.enter_context(choice.replica.busy())
                try:
                    answer = await _unless_gone(request, self._send(labeled, choice))
                except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                    self.fleet.lost(choice.replica, error)
                    replicas.remove(choice.replica)
                    continue
                except httpx.RequestError as error:
                    # It may have been this very request that ended the replica: the
                    # client decides whether another one gets it.
                    self.fleet.lost(choice.replica, error)
                    return refusal(502, _LOST)
                if answer is None:
                    return Response(status_code=499)  # Nobody reads it.
                if not _is_stream(answer):
                    return _passed(answer)
                stack.push_async_callback(answer.aclose)
                return _Relay(
                    self._events(answer, labeled, choice), stack.pop_all(), answer
                )
        return _nobody()

    async def _send(self, labeled: Labeled, choice: Choice) -> httpx.Response:
        """The answer; whole, unless it is a stream."""
        request = self._client.build_request(
            "POST",
            f"{choice.replica.url}{labeled.path}",
            headers={"content-type": "application/json"},
            content=msgspec.json.encode(usage.asked_for(labeled.path, labeled.body)),
        )
        answer = await self._client.send(request, stream=True)
        if not _is_stream(answer):
            await answer.aread()
            if answer.is_success:
                self._learn(labeled, choice, usage.decode(answer.content))
        return answer

    async def _events(
        self, answer: httpx.Response, labeled: Labeled, choice: Choice
    ) -> AsyncIterator[bytes]:
        hide = not usage.is_asked_for(labeled.path, labeled.body)
        events = usage.events(answer.aiter_bytes())
        try:
            async for event in events:
                if b'"usage"' in event:
                    said = usage.decode_event(event)
                    self._learn(labeled, choice, said)
                    if hide and said.get("choices") == []:
                        continue
                yield event
        except httpx.RequestError as error:
            self.fleet.lost(choice.replica, error)
            yield b"data: " + msgspec.json.encode(_error(502, _LOST)) + b"\n\n"

    def _learn(
        self, labeled: Labeled, choice: Choice, answer: Mapping[str, Any]
    ) -> None:
        if (tokens := usage.prompt_tokens(answer)) is not None:
            self.lineage.learn(labeled, tokens)
            self._router.learn(choice, labeled, tokens)


class _Relay(StreamingResponse):
    """A stream that holds its replica until it ends, or the client leaves."""

    def __init__(
        self, events: AsyncIterator[bytes], held: AsyncExitStack, answer: httpx.Response
    ) -> None:
        super().__init__(events, answer.status_code, _headers(answer))
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            await super().__call__(scope, receive, send)


async def _unless_gone(request: Request, work: Awaitable[T]) -> T | None:
    """The work's result; None, and the work is cancelled, where the client left."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _is_stream(answer: httpx.Response) -> bool:
    return _headers(answer)["content-type"].startswith("text/event-stream")


def _headers(answer: httpx.Response) -> dict[str, str]:
    return {"content-type": answer.headers.get("content-type", "application/json")}


def _passed(answer: httpx.Response) -> Response:
    return Response(answer.content, answer.status_code, _headers(answer))


def refusal(status: int, message: str) -> Response:
    """An error of the gateway's own, in OpenAI's format."""
    return JSONResponse(_error(status, message), status)


def _error(status: int, message: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def _nobody() -> Response:
    return refusal(503, "no replica lives now; send the request again later")
