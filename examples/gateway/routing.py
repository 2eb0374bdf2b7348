# SPDX-License-Identifier: Apache-2.0
"""Where a request goes: to the longest resident prefix, with load as the tie-break."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.labels import Labeled
from gateway.replicas import Replica
from vllm_coordinates.stream.index import Index


@dataclass(frozen=True, slots=True)
class Choice:
    """A replica, and how many tokens of the prefix are expected there."""

    replica: Replica
    tokens: int = 0


class Router(Protocol):
    """What decides; the benchmark has others."""

    def choose(self, replicas: Sequence[Replica], request: Labeled) -> Choice:
        """One of `replicas`, of which there is at least one."""

    def learn(self, choice: Choice, request: Labeled, prompt_tokens: int) -> None:
        """The request was answered there, and had that many tokens."""


class ByCoordinates:
    """Asks the index what each replica holds of the request's lineage.

    A position counts as far as it is certain: what may have been evicted is no reason
    to wait behind others.
    """

    def __init__(self, index: Index) -> None:
        self._index = index

    def choose(self, replicas: Sequence[Replica], request: Labeled) -> Choice:
        """The longest prefix; of equal ones the least loaded, then the longest idle."""
        resident = {
            prefix.endpoint: prefix.tokens
            for prefix in self._index.longest(request.continuation_id)
        }
        choices = (
            Choice(r, max((resident.get(e, 0) for e in r.endpoints), default=0))
            for r in replicas
        )
        return min(choices, key=lambda c: (-c.tokens, *load(c.replica)))

    def learn(self, choice: Choice, request: Labeled, prompt_tokens: int) -> None:
        """The lineage has learned it already."""


def load(replica: Replica) -> tuple[int, int]:
    """What to be the least of: requests in flight, then when the last one came."""
    return replica.in_flight, replica.last_request
