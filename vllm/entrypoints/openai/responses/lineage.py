# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The labels of a response that nobody gave any: those of the turns before it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastapi import Request

from vllm.entrypoints.generate.base.coordinates import resolve_label
from vllm.exceptions import VLLMValidationError
from vllm.v1.coordinates import (
    CONTINUATION_ID,
    SESSION_ID,
    check_label,
    coordinates_enabled,
    first_given,
    label_fault,
)

if TYPE_CHECKING:
    from vllm.config.kv_events import KVEventsConfig
    from vllm.entrypoints.openai.responses.protocol import (
        ResponsesRequest,
        ResponsesResponse,
    )

CONVERSATION = "conversation"


class ResponseLineage:
    """Derives the labels that a request to the Responses API comes without.

    A client of that API names what a turn continues, by `conversation` or by
    `previous_response_id`, and that says which session the turn is part of.

    Nothing is kept here. A stored response carries its session itself, so the one
    is forgotten with the other.

    Args:
        responses: The store, by response id.
        config: The server's KV-events configuration; with `"coordinates"` off
            nothing is derived.
    """

    def __init__(
        self,
        responses: Mapping[str, "ResponsesResponse"],
        config: "KVEventsConfig | None",
    ) -> None:
        self._responses = responses
        self._config = config

    def complete(
        self, request: "ResponsesRequest", raw_request: Request | None
    ) -> None:
        """Give a request the labels that it lacks.

        The session is that of the conversation, else of the previous response; a
        request that is stored and has neither starts one, named by its own id. The
        continuation is the response's own id. A request that is not stored and
        continues nothing is left without.

        Args:
            request: The parsed body. Its label fields are set to the labels that
                it came with, wherever it carried them, or else to derived ones.
            raw_request: The HTTP request; None for one that has no headers.

        Raises:
            VLLMValidationError: A label is not one, `conversation` is malformed, or
                it comes together with `previous_response_id`.
        """
        if not coordinates_enabled(self._config):
            return
        conversation = conversation_of(request)
        previous = request.previous_response_id
        if conversation is not None and previous is not None:
            raise VLLMValidationError(
                f"{CONVERSATION} and previous_response_id exclude each other; send "
                "only one of them.",
                parameter=CONVERSATION,
            )
        own = None if label_fault(request.request_id) else request.request_id
        if conversation is not None:
            session_id: str | None = conversation
        elif previous is not None:
            session_id = self._session_of(previous)
        elif request.store:
            session_id = own
        else:
            session_id = own = None
        request.session_id = (
            resolve_label(SESSION_ID, request, raw_request) or session_id
        )
        request.continuation_id = (
            resolve_label(CONTINUATION_ID, request, raw_request) or own
        )

    def remember(
        self, request: "ResponsesRequest", response: "ResponsesResponse"
    ) -> None:
        """Have a response carry its request's session, for those that continue it.

        Args:
            request: The request, after `complete`.
            response: The response that is about to be stored.
        """
        response._session_id = request.session_id

    def _session_of(self, response_id: str) -> str | None:
        response = self._responses.get(response_id)
        return None if response is None else response._session_id


def conversation_of(request: "ResponsesRequest") -> str | None:
    """The id of the conversation that a request names: `"id"` or `{"id": "id"}`.

    vLLM keeps no conversations, so the field is none of the protocol's own.

    Returns:
        None where there is none; an empty id counts as absent.

    Raises:
        VLLMValidationError: It is neither, or its id could not be a label.
    """
    named: Any = getattr(request, CONVERSATION, None)
    conversation = named.get("id") if isinstance(named, Mapping) else named
    if conversation is None and named is not None:
        raise VLLMValidationError(
            f"{CONVERSATION} must be an id, or an object with the field id.",
            parameter=CONVERSATION,
        )
    conversation = first_given(conversation)
    check_label(CONVERSATION, conversation)
    return conversation
