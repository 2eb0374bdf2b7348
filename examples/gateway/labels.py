# SPDX-License-Identifier: Apache-2.0
"""Labels: what clients say of themselves goes, what the engine hears is minted here.

No header of a client's reaches a replica, however it is spelled; a body is decoded, rid
of what a client may not say, and encoded again, so a replica reads what was looked at.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from vllm_coordinates.stream import mint
from vllm_coordinates.stream.mint import Chain

Body = dict[str, Any]

_LABELS = {
    "session_id": "X-Session-ID",
    "continuation_id": "X-Continuation-ID",
}
_REPORT_MODE = "kv_cache_report_mode"
_XARGS = "vllm_xargs"
# Nor may a client name the request itself, blocks of others to be transferred, or its
# place in the queue.
_STRIPPED = frozenset(
    (
        *_LABELS,
        "ec_transfer_params",
        "kv_transfer_params",
        "priority",
        "request_id",
    )
)
_STRIPPED_XARGS = frozenset((*_STRIPPED, _REPORT_MODE))
_CREDENTIALS = ("authorization", "x-api-key")


class Api(NamedTuple):
    """How an endpoint's bodies are read: their chain, and the field of their turns."""

    chain: Callable[[Mapping[str, Any]], Chain]
    turns: str


APIS = {
    "/v1/chat/completions": Api(mint.chat, "messages"),
    "/v1/responses": Api(mint.responses, "input"),
    "/v1/messages": Api(mint.messages, "messages"),
}

# A replica keeps these to itself, and a request that names one may go to another.
_KEPT_BY_A_REPLICA = ("previous_response_id", "conversation")


@dataclass(frozen=True, slots=True)
class Labeled:
    """A request as a replica gets it.

    `chain` leads from its root (model and cache salt) to `continuation_id`.
    """

    path: str
    body: Body
    session_id: str
    continuation_id: str
    chain: Chain


def label(
    path: str, headers: Mapping[str, str], body: Body, *, trusted: bool = False
) -> Labeled:
    """The request without the client's labels and with minted ones.

    `headers` are looked up without regard to case. Where `trusted`, labels that come
    with the request are kept, in the engine's order: body, header, `vllm_xargs`.

    Raises ValueError (one sentence) where the body cannot be labeled.
    """
    stripped = _strip(body)
    for field in _KEPT_BY_A_REPLICA:
        if stripped.get(field) is not None:
            raise ValueError(
                f"{field} names what one replica stored, and this gateway keeps no"
                " store: send the whole input"
            )
    if (salt := _tenant_salt(headers, stripped)) is not None:
        stripped["cache_salt"] = salt
    api = APIS[path]
    chain = api.chain(stripped)
    session_id = _session_id(api, stripped)
    continuation_id = chain.continuation_id
    if trusted:
        session_id = _given("session_id", headers, body) or session_id
        continuation_id = _given("continuation_id", headers, body) or continuation_id
    xargs = stripped.get(_XARGS) or {}
    if not isinstance(xargs, dict):
        raise ValueError(f"{_XARGS} must be an object")
    minted = {
        "session_id": session_id,
        "continuation_id": continuation_id,
        _REPORT_MODE: "coordinates",
    }
    return Labeled(
        path,
        {**stripped, _XARGS: {**xargs, **minted}},
        session_id,
        continuation_id,
        chain,
    )


def _strip(body: Body) -> Body:
    kept = {field: value for field, value in body.items() if field not in _STRIPPED}
    if isinstance(xargs := kept.get(_XARGS), dict):
        kept[_XARGS] = {k: v for k, v in xargs.items() if k not in _STRIPPED_XARGS}
    return kept


def _given(name: str, headers: Mapping[str, str], body: Body) -> str | None:
    xargs = body.get(_XARGS)
    candidates = (
        body.get(name),
        headers.get(_LABELS[name]),
        xargs.get(name) if isinstance(xargs, dict) else None,
    )
    return next((c for c in candidates if c and isinstance(c, str)), None)


def _session_id(api: Api, body: Body) -> str:
    """A conversation is named by how it opens: up to its first message of a user.

    That needs no memory, so it is the same at every gateway and after a restart. Two
    conversations that open with the same words have one name until they are told apart
    by their continuations.
    """
    turns = body.get(api.turns)
    if isinstance(turns, list):
        spoken = (isinstance(t, dict) and t.get("role") == "user" for t in turns)
        opening = next((n for n, users in enumerate(spoken, 1) if users), len(turns))
        body = {**body, api.turns: turns[:opening]}
    return f"session-{api.chain(body).continuation_id}"


def _tenant_salt(headers: Mapping[str, str], body: Body) -> str | None:
    """The cache salt of whoever holds this API key; the client's own without a key.

    With it, no other client's request has the same root: it can neither be given this
    one's continuations nor find out, by what is cached, what was said in them.
    """
    salt = body.get("cache_salt")
    key = next((headers[name] for name in _CREDENTIALS if headers.get(name)), None)
    if key is None or not isinstance(salt, str | None):
        return salt
    state = hashlib.blake2b(key.encode(), digest_size=20)
    if salt is not None:
        state.update(b"\0" + salt.encode())
    return state.hexdigest()
