# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Where an HTTP request carries its labels: body field, header, then vllm_xargs."""

from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from pydantic import BaseModel

from vllm.exceptions import VLLMValidationError
from vllm.v1.coordinates import (
    CONTINUATION_ID,
    SESSION_ID,
    check_coordinates,
    check_extra_args,
    check_label,
    coordinates_enabled,
    first_given,
    other_than_labels,
    without_labels,
)

if TYPE_CHECKING:
    from vllm.config.kv_events import KVEventsConfig

Body = TypeVar("Body", bound=BaseModel)

HEADERS = {SESSION_ID: "X-Session-ID", CONTINUATION_ID: "X-Continuation-ID"}


def label_from_headers(name: str, raw_request: Request | None) -> str | None:
    """The label that a request's header carries.

    A header's bytes are read as ISO-8859-1, as HTTP has it and as the server reads
    every other; a label in another alphabet goes in the body.

    Args:
        name: `"session_id"` or `"continuation_id"`.
        raw_request: The HTTP request; None for one that has no headers.

    Returns:
        None where the header is absent or empty.

    Raises:
        VLLMValidationError: The value is not a label, or the header comes several
            times with different values: the one who set the first need not be the
            one who is trusted.
    """
    header = HEADERS[name]
    if raw_request is None or header not in raw_request.headers:
        return None
    values = {value for value in raw_request.headers.getlist(header) if value}
    if len(values) > 1:
        raise VLLMValidationError(
            f"{name} must be given once, but the header {header} came with "
            f"{len(values)} different values.",
            parameter=name,
        )
    label = next(iter(values), None)
    check_label(name, label)
    return label


def resolve_label(name: str, request: Any, raw_request: Request | None) -> str | None:
    """A request's label: of its body field, else its header, else its vllm_xargs.

    An empty value counts as absent.

    Args:
        name: `"session_id"` or `"continuation_id"`.
        request: The parsed body, with a field of that name and `vllm_xargs`.
        raw_request: The HTTP request; None for one that has no headers.

    Raises:
        VLLMValidationError: The value found first is not a label.
    """
    label = first_given(
        getattr(request, name, None) or label_from_headers(name, raw_request),
        (request.vllm_xargs or {}).get(name),
    )
    check_label(name, label)
    return label


def asks_for_coordinates(request: Any, raw_request: Request | None) -> bool:
    """Whether a request may carry a label or a report mode, good or bad.

    Of one that does not, nothing else is looked at.

    Args:
        request: The parsed body.
        raw_request: The HTTP request; None for one that has no headers.
    """
    if request.vllm_xargs or any(getattr(request, name, None) for name in HEADERS):
        return True
    headers = () if raw_request is None else raw_request.headers
    return any(header in headers for header in HEADERS.values())


def resolve_continuation_id(
    request: Any, raw_request: Request | None, config: "KVEventsConfig | None"
) -> str | None:
    """A request's continuation_id, and whether its report mode can be met.

    The mode is checked here too, since a streaming response has begun by the time
    the engine's frontend sees the request.

    Args:
        request: The parsed body.
        raw_request: The HTTP request; None for one that has no headers.
        config: The server's KV-events configuration.

    Returns:
        None where there is none, or the server's `"coordinates"` is off.

    Raises:
        VLLMValidationError: The value found first is not a label, or the report
            mode is unknown, switched off, or lacks a label.
    """
    continuation_id = None
    if coordinates_enabled(config):
        continuation_id = resolve_label(CONTINUATION_ID, request, raw_request)
    session_id = resolve_label(SESSION_ID, request, raw_request)
    return check_coordinates(session_id, continuation_id, request.vllm_xargs, config)[1]


def check_label_types(data: Any) -> None:
    """Refuse a body with a label of a type that its protocol refuses.

    The protocol's own refusal may quote the value, and one that is tried after
    another (`/invocations`, a batch of chats) need not name the field.

    Args:
        data: The body before it is validated: any JSON.

    Raises:
        VLLMValidationError: A label in a field is no string, or one in `vllm_xargs`
            is nothing that these may hold.
    """
    if not isinstance(data, dict):
        return
    xargs = data.get("vllm_xargs")
    for name in HEADERS:
        field = data.get(name)
        if not isinstance(field, str):
            check_label(name, field)
        if isinstance(xargs, dict) and not _fits_xargs(xargs.get(name)):
            check_label(name, xargs.get(name))


def _fits_xargs(value: Any) -> bool:
    parts = value if isinstance(value, list) else [value]
    return all(isinstance(part, str | int | float) for part in parts)


def check_token_request(data: Any) -> None:
    """Refuse a body of /inference/v1/generate whose labels cannot be encoded.

    They are in its sampling parameters, which are encoded while they are parsed, so
    nothing later could name the field.

    Args:
        data: The body before it is validated: any JSON.

    Raises:
        VLLMValidationError: A label is not encodable as UTF-8.
    """
    for key in ("sampling_params", "extra_args"):
        data = data.get(key) if isinstance(data, dict) else None
    if isinstance(data, dict):
        check_extra_args(data)


def body_without_labels(request: Body) -> Body:
    """A body as it may be logged: null for each label, and none in `vllm_xargs`.

    Args:
        request: The parsed body of any endpoint.

    Returns:
        A shallow copy.
    """
    names = (*HEADERS, "conversation")
    update: dict[str, Any] = {
        name: None for name in names if getattr(request, name, None)
    }
    if xargs := getattr(request, "vllm_xargs", None):
        update["vllm_xargs"] = other_than_labels(xargs)
    if params := getattr(request, "sampling_params", None):
        update["sampling_params"] = without_labels(params)
    return request.model_copy(update=update)
