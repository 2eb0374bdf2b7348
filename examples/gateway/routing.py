# SPDX-License-Identifier: Apache-2.0
"""Where a request goes: to the longest resident prefix, with load as the tie-break."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.labels import Labeled
from gateway.lineage import Lineage
from gateway.replicas import Replica
from gateway.usage import Usage
from vllm_coordinates.stream.index import Index


@dataclass(frozen=True, slots=True)
class Choice:
    """A replica, and the tokens for which it was chosen: those expected there."""

    replica: Replica
    tokens: int = 0


class Router(Protocol):
    """What decides; the benchmark has others."""

    def choose(self, replicas: Sequence[Replica], request: Labeled) -> Choice:
        """One of `replicas`, of which there is at least one."""

    def learn(self, choice: Choice, request: Labeled, usage: Usage) -> None:
        """The request was answered there, with that usage."""


class ByCoordinates:
    """Asks the index what each replica holds of the request's lineage.

    A position counts as far as it is certain: what may have been evicted is no reason
    to wait behind others. Nor is what every session begins with: a replica has it, or
    has it from the first request on, and whoever holds no more of a session than that
    is as good as any other.
    """

    def __init__(self, lineage: Lineage, index: Index) -> None:
        self._lineage = lineage
        self._index = index

    def choose(self, replicas: Sequence[Replica], request: Labeled) -> Choice:
        """The longest prefix; of equal ones the least loaded, then the longest idle."""
        resident = {
            prefix.endpoint: prefix.tokens
            for prefix in self._index.longest(request.continuation_id)
        }
        common = self._lineage.common(request)
        choices = []
        for replica in replicas:
            tokens = max((resident.get(e, 0) for e in replica.endpoints), default=0)
            choices.append(Choice(replica, tokens if tokens > common else 0))
        return min(choices, key=lambda c: (-c.tokens, *load(c.replica)))

    def learn(self, choice: Choice, request: Labeled, usage: Usage) -> None:
        """The lineage has learned it already."""


def load(replica: Replica) -> tuple[int, int]:
    """What to be the least of: requests in flight, then when the last one came."""
    return replica.in_flight, replica.last_request
