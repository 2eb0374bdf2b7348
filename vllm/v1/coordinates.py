# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Session coordinates: two opaque names that a request carries to its KV events.

`session_id` names the session, `continuation_id` a position in a chain of turns.
They are identity, never semantics: nothing here or in the engine parses one, and
neither enters a block hash, a cache lookup or a scheduling decision.

A request is *labeled* when it has a continuation_id. What is not labeled publishes
the events of a server without coordinates, byte for byte.
"""

import re
from collections.abc import Mapping
from copy import copy
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.exceptions import VLLMValidationError
from vllm.logger import init_logger

if TYPE_CHECKING:
    from vllm.config.kv_events import KVEventsConfig
    from vllm.v1.request import Request

logger = init_logger(__name__)

Params = TypeVar("Params")

SESSION_ID = "session_id"
CONTINUATION_ID = "continuation_id"
KV_CACHE_REPORT_MODE = "kv_cache_report_mode"

_LABELS = (SESSION_ID, CONTINUATION_ID)

MAX_LABEL_LENGTH = 256
"""The longest label, in characters."""

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NOT_ENCODABLE = "must be encodable as UTF-8 (it has a lone surrogate)"


class ReportMode(StrEnum):
    """What a request's KV events say of its blocks: `kv_cache_report_mode`."""

    INCREMENTAL = "incremental"
    """Hashes, token ids and labels of new blocks. The default."""

    FULL = "full"
    """The same, and of blocks that the request reuses."""

    COORDINATES = "coordinates"
    """Labels and spans of new and reused blocks: no hashes, no token ids."""


def label_fault(value: Any) -> str | None:
    """What keeps `value` from being a label, as the end of a sentence.

    A label is a string of 1 to `MAX_LABEL_LENGTH` characters, not blank, encodable
    as UTF-8, without control characters.

    Returns:
        None for a label.
    """
    if not isinstance(value, str):
        return f"must be a string, not {type(value).__name__}"
    if len(value) > MAX_LABEL_LENGTH:
        return f"must have at most {MAX_LABEL_LENGTH} characters, not {len(value)}"
    if not value.strip():
        return "must not be blank"
    if _CONTROL_CHARACTER.search(value):
        return "must not contain control characters"
    if not _is_encodable(value):
        return _NOT_ENCODABLE
    return None


def first_given(*values: Any) -> Any:
    """The first value that a request carries for a label.

    An empty string stands for no label. Whatever else is not one is a mistake, not
    an absence.

    Args:
        values: What the request has in each place, None where it has nothing; in
            order of precedence.

    Returns:
        None where there is none.
    """
    return next((value for value in values if value not in (None, "")), None)


def check_label(name: str, value: Any) -> None:
    """Refuse a value that is not a label.

    Args:
        name: The field that the value came in, for the message.
        value: The value; None stands for no label and passes.

    Raises:
        VLLMValidationError: The value is not a label. The message names the field
            and does not repeat the value, which may be unprintable or huge.
    """
    if value is None:
        return
    fault = label_fault(value)
    if fault is not None:
        raise VLLMValidationError(f"{name} {fault}.", parameter=name)


def check_extra_args(extra_args: Mapping[str, Any]) -> None:
    """Refuse labels in `extra_args` that cannot be sent to the engine.

    `extra_args` go there whole, so that holds for a label too that another one of
    the request has precedence over.

    Raises:
        VLLMValidationError: A label there is not encodable as UTF-8.
    """
    for name in _LABELS:
        value = extra_args.get(name)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, str) and not _is_encodable(part):
                raise VLLMValidationError(f"{name} {_NOT_ENCODABLE}.", parameter=name)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def coordinates_enabled(config: "KVEventsConfig | None") -> bool:
    """Whether the server lets labels reach its events (`"coordinates"`)."""
    return config is None or config.coordinates


def check_coordinates(
    session_id: str | None,
    continuation_id: str | None,
    extra_args: Mapping[str, Any] | None,
    config: "KVEventsConfig | None",
) -> tuple[str | None, str | None]:
    """The labels of a request that a Python frontend takes in, checked.

    Args:
        session_id: As the entrance resolved it; empty counts as absent.
        continuation_id: The same.
        extra_args: The request's `extra_args` (`vllm_xargs` over HTTP): labels that
            the entrance did not resolve, and `kv_cache_report_mode`.
        config: The server's KV-events configuration.

    Returns:
        `(session_id, continuation_id)`; the latter None where the server's
        `"coordinates"` is off.

    Raises:
        VLLMValidationError: A label has not the shape of one, or the mode is
            unknown, refused by the server, or lacks the labels it needs.
    """
    extra_args = extra_args or {}
    check_extra_args(extra_args)
    session_id = first_given(session_id)
    if coordinates_enabled(config):
        continuation_id = first_given(continuation_id, extra_args.get(CONTINUATION_ID))
    else:
        continuation_id = None
    if continuation_id is not None:
        session_id = first_given(session_id, extra_args.get(SESSION_ID))
    check_label(SESSION_ID, session_id)
    check_label(CONTINUATION_ID, continuation_id)

    mode = extra_args.get(KV_CACHE_REPORT_MODE, ReportMode.INCREMENTAL)
    accepted = accepted_modes(config)
    if mode not in accepted:
        off = mode == ReportMode.COORDINATES
        reason = " (this server has coordinates switched off)" if off else ""
        raise VLLMValidationError(
            f"{KV_CACHE_REPORT_MODE} must be one of {', '.join(accepted)}{reason}.",
            parameter=KV_CACHE_REPORT_MODE,
        )
    if mode == ReportMode.COORDINATES and not (session_id and continuation_id):
        missing = CONTINUATION_ID if session_id else SESSION_ID
        raise VLLMValidationError(
            f"{KV_CACHE_REPORT_MODE} '{mode}' needs both labels, and {missing} is "
            f"missing; send it, or use one of {', '.join(accepted[:-1])}.",
            parameter=missing,
        )
    return session_id, continuation_id


def accepted_modes(config: "KVEventsConfig | None") -> list[str]:
    """The values of `kv_cache_report_mode` that the server takes."""
    return [
        mode.value
        for mode in ReportMode
        if mode != ReportMode.COORDINATES or coordinates_enabled(config)
    ]


def admit_coordinates(request: "Request", config: "KVEventsConfig | None") -> None:
    """Settle a request's labels and mode where it enters the engine core.

    A request need not have come through a Python frontend, so nothing is taken for
    granted; and an engine must not die of a label, so what does not hold is dropped
    with a warning.

    Args:
        request: Its `session_id`, `continuation_id` and `kv_cache_report_mode` are
            set to what its events will say.
        config: The engine's KV-events configuration.
    """
    params = request.sampling_params
    extra_args = (params.extra_args if params is not None else None) or {}
    if coordinates_enabled(config):
        request.continuation_id = _kept_label(
            request, CONTINUATION_ID, request.continuation_id, extra_args
        )
    else:
        request.continuation_id = None
    labeled = request.continuation_id is not None
    request.session_id = _kept_label(
        request, SESSION_ID, request.session_id, extra_args if labeled else {}
    )
    mode = extra_args.get(KV_CACHE_REPORT_MODE, ReportMode.INCREMENTAL)
    if mode not in accepted_modes(config) or (
        mode == ReportMode.COORDINATES and not (labeled and request.session_id)
    ):
        logger.warning(
            "Request %s is reported in mode 'incremental': its kv_cache_report_mode "
            "is unknown, switched off, or lacks a label that it needs.",
            request.request_id,
        )
        mode = ReportMode.INCREMENTAL
    request.kv_cache_report_mode = str(mode)


def _kept_label(
    request: "Request", name: str, value: Any, extra_args: Mapping[str, Any]
) -> str | None:
    value = first_given(value, extra_args.get(name))
    if value is None:
        return None
    fault = label_fault(value)
    if fault is None:
        return value
    logger.warning("Request %s loses its %s: it %s.", request.request_id, name, fault)
    return None


def without_labels(params: Params) -> Params:
    """Parameters of a request as they may be logged: no label among `extra_args`.

    Args:
        params: Of sampling, pooling or beam search; None passes.

    Returns:
        `params` itself where there is none, else a shallow copy.
    """
    extra_args = getattr(params, "extra_args", None)
    if not isinstance(extra_args, dict) or extra_args.keys().isdisjoint(_LABELS):
        return params
    shown: Any = copy(params)
    shown.extra_args = other_than_labels(extra_args)
    return shown


def other_than_labels(extra_args: Mapping[str, Any]) -> dict[str, Any]:
    """What `extra_args`, or `vllm_xargs`, hold beside labels."""
    return {name: value for name, value in extra_args.items() if name not in _LABELS}
