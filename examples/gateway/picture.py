# SPDX-License-Identifier: Apache-2.0
"""The sessions, and what each replica holds of them: JSON, and a page for a person."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from string import Template

from gateway.proxy import Gateway
from vllm_coordinates.stream.index import Holding

Span = tuple[int, int]


@dataclass(frozen=True)
class Held:
    """What one replica holds of a continuation, in tokens.

    `usable` is the prefix that can be served; `shared` is how much of it all another
    session holds, too. What is doubtful may be gone.
    """

    resident: tuple[Span, ...]
    doubtful: tuple[Span, ...]
    usable: int
    shared: int


@dataclass(frozen=True)
class Branch:
    """A continuation of a session that nothing resident continues.

    `tokens` is its length where an answer has told it.
    """

    session_id: str
    continuation_id: str
    tokens: int | None
    replicas: dict[str, Held] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplicaState:
    """A replica, as the gateway sees it."""

    url: str
    fault: str | None
    in_flight: int


@dataclass(frozen=True)
class Picture:
    """Everything that is known to be resident; the largest branches first."""

    replicas: list[ReplicaState]
    branches: list[Branch]


def take(gateway: Gateway) -> Picture:
    """The picture now."""
    lineage, fleet = gateway.lineage.ancestry, gateway.fleet
    replica_of = {e: r.url for r in fleet.living() for e in r.endpoints}
    held: dict[str, dict[str, Holding]] = defaultdict(dict)
    sessions: dict[str, set[str]] = defaultdict(set)
    # The smallest come last: of two ranks of one replica, the larger one is kept.
    for holding in gateway.index.holdings():
        if (url := replica_of.get(holding.endpoint)) is not None:
            held[holding.continuation_id].setdefault(url, holding)
            sessions[holding.continuation_id].update(holding.sessions)
    continued = {
        (session_id, ancestor)
        for name, members in sessions.items()
        for ancestor in list(lineage.chain(name))[1:]
        for session_id in members
    }
    branches = [
        Branch(session_id, name, lineage.extent(name), _held(held, lineage.chain(name)))
        for name, members in sessions.items()
        for session_id in members
        if (session_id, name) not in continued
    ]
    return Picture(
        [ReplicaState(r.url, r.fault, r.in_flight) for r in fleet.replicas],
        sorted(branches, key=lambda b: (b.session_id, -(b.tokens or 0))),
    )


def _held(
    held: Mapping[str, Mapping[str, Holding]], chain: Iterable[str]
) -> dict[str, Held]:
    """What each replica holds of the position, or of the one before of which it
    holds most."""
    best: dict[str, Holding] = {}
    for name in chain:
        for url, holding in held.get(name, {}).items():
            if url not in best or holding.usable > best[url].usable:
                best[url] = holding
    return {
        url: Held(h.certain, h.doubtful, h.usable, h.shared) for url, h in best.items()
    }


def html(picture: Picture) -> str:
    """A page that needs nothing else, and shows itself anew every two seconds."""
    lengths = (_length(branch) for branch in picture.branches)
    longest = max(lengths, default=0) or 1
    return _PAGE.substitute(
        replicas="".join(_replica_heading(r) for r in picture.replicas),
        rows="".join(_row(b, picture.replicas, longest) for b in picture.branches)
        or _NOTHING.substitute(columns=3 + len(picture.replicas)),
    )


def _length(branch: Branch) -> int:
    ends = (s[1] for h in branch.replicas.values() for s in (*h.resident, *h.doubtful))
    return max(branch.tokens or 0, *ends, 0)


def _replica_heading(replica: ReplicaState) -> str:
    state = f"<small>{replica.in_flight} in flight</small>"
    if replica.fault is not None:
        state = f"<small class=lost>{escape(replica.fault)}</small>"
    return f"<th>{escape(replica.url)}<br>{state}</th>"


def _row(branch: Branch, replicas: list[ReplicaState], longest: int) -> str:
    bars = "".join(
        f"<td>{_bar(branch.replicas.get(replica.url), _length(branch), longest)}</td>"
        for replica in replicas
    )
    tokens = "?" if branch.tokens is None else str(branch.tokens)
    return (
        f"<tr><td title={_quoted(branch.session_id)}>{_short(branch.session_id)}</td>"
        f"<td title={_quoted(branch.continuation_id)}>{_short(branch.continuation_id)}"
        f"</td><td class=number>{tokens}</td>{bars}</tr>"
    )


def _bar(held: Held | None, length: int, longest: int) -> str:
    parts = [f"<rect class=all width={length} height=10 />"]
    said = "nothing"
    if held is not None:
        said = f"{held.usable} tokens can be served, {held.shared} of them shared"
        parts += (
            f"<rect class={kind} x={start} width={end - start} height=10 />"
            for kind, spans in (("doubt", held.doubtful), ("held", held.resident))
            for start, end in spans
        )
        parts.append(f"<rect class=shared width={held.shared} height=10 />")
    return (
        f'<svg viewBox="0 0 {longest} 10" preserveAspectRatio=none>'
        f"<title>{said}</title>{''.join(parts)}</svg>"
    )


def _short(label: str) -> str:
    kind, separator, name = label.rpartition("-")
    return escape(f"{kind}{separator}{name[:8]}")


def _quoted(label: str) -> str:
    return f'"{escape(label)}"'


_PAGE = Template("""<!doctype html>
<html lang=en>
<meta charset=utf-8>
<meta http-equiv=refresh content=2>
<meta name=viewport content="width=device-width">
<title>Sessions</title>
<style>
:root { color-scheme: light dark; --held: #2f7d4f; --shared: #1f5a9e }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; font-weight: normal }
th { border-bottom: 1px solid; vertical-align: bottom }
td:nth-child(-n+3) { white-space: nowrap; font-variant-numeric: tabular-nums }
td:nth-child(n+4) { width: 30% }
.number { text-align: right }
svg { width: 100%; height: 1rem; display: block }
.all { fill: currentColor; opacity: .12 }
.held, .key .held { fill: var(--held); color: var(--held) }
.shared, .key .shared { fill: var(--shared); color: var(--shared) }
.doubt, .key .doubt { fill: var(--held); color: var(--held); opacity: .4 }
.lost { color: #c0392b }
</style>
<h1>Sessions</h1>
<p class=key>What is resident of each session, by replica:
<span class=shared>&#9632; shared with another session</span>
<span class=held>&#9632; its own</span>
<span class=doubt>&#9632; perhaps evicted</span>
&#9633; not there</p>
<table>
<tr><th>session<th>continuation<th class=number>tokens$replicas</tr>
$rows
</table>
</html>
""")

_NOTHING = Template(
    "<tr><td colspan=$columns>No session is resident anywhere.</td></tr>"
)
