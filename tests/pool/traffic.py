# SPDX-License-Identifier: Apache-2.0
"""Requests over a small world of continuations, and what they have in common.

A continuation is named by its turns, a letter each: "ab" continues "a". Turns are
short and some begin alike, so that sequences share whole blocks, parts of blocks,
or nothing. A request's sequence is its continuation's tokens and some generated
ones, so one continuation can name several sequences.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product

from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    BlockHashWithGroupId,
    get_block_hash,
    get_group_id,
    get_request_block_hasher,
    init_none_hash,
    make_block_hash_with_group_id,
    maybe_convert_block_hash,
)
from vllm.v1.request import Request

HASH_BLOCK = 4
"""Tokens per block hash; what the tests count positions in."""

Tokens = tuple[int, ...]

TURNS: dict[str, Tokens] = {
    "a": (1, 2, 3, 4, 5, 6, 7, 8),
    "b": (1, 2, 3, 4, 9, 9, 9, 9, 9, 9),
    "c": (3, 3, 3, 3, 3),
    "d": (1, 2, 3, 4, 5, 6, 7, 8, 7, 7, 7, 7, 7, 7, 7),
}
CONTINUATIONS = tuple("".join(t) for n in (1, 2, 3) for t in product(TURNS, repeat=n))
TAILS: tuple[Tokens, ...] = ((), (50, 51), (60, 61, 62, 63, 64), (60, 61, 62, 63, 65))

try:
    from vllm.v1.coordinates import admit_coordinates
except ImportError:  # a stock tree
    admit_coordinates = None

init_none_hash(sha256)
_hasher = get_request_block_hasher(HASH_BLOCK, sha256)


class Voice(Enum):
    """Who speaks and how: has it a continuation, has it a session, which mode."""

    STOCK = (False, False, None)
    STOCK_SESSION = (False, True, "incremental")
    STOCK_FULL = (False, True, "full")
    LABELED = (True, True, "incremental")
    LABELED_ALONE = (True, False, None)
    FULL = (True, True, "full")
    COORDINATES = (True, True, "coordinates")

    @property
    def labeled(self) -> bool:
        return self.value[0]

    @property
    def session(self) -> bool:
        return self.value[1]

    @property
    def mode(self) -> str | None:
        return self.value[2]


@dataclass(frozen=True)
class Ask:
    """A request to make: the continuation, what is generated after it, the voice."""

    continuation: str
    tail: Tokens = ()
    voice: Voice = Voice.COORDINATES
    session: str = "s"

    @property
    def prompt(self) -> Tokens:
        return tuple(t for turn in self.continuation for t in TURNS[turn])

    @property
    def tokens(self) -> Tokens:
        return self.prompt + self.tail


def request_of(
    ask: Ask, request_id: str, *, stripped: bool = False, max_tokens: int | None = None
) -> Request:
    """The request as it enters the engine core.

    Args:
        ask: What to make. Without `max_tokens` the tail is part of the prompt.
        request_id: Its id.
        stripped: Without labels and mode, all else alike.
        max_tokens: How many tokens the engine is to generate.
    """
    voice = Voice.STOCK if stripped else ask.voice
    extra_args = {"kv_cache_report_mode": voice.mode} if voice.mode else None
    labels = {"continuation_id": ask.continuation} if voice.labeled else {}
    request = Request(
        request_id=request_id,
        prompt_token_ids=list(ask.tokens if max_tokens is None else ask.prompt),
        sampling_params=SamplingParams(
            max_tokens=max_tokens or 1, ignore_eos=True, extra_args=extra_args
        ),
        pooling_params=None,
        block_hasher=_hasher,
        session_id=ask.session if voice.session else None,
        **labels,
    )
    if admit_coordinates is not None:
        admit_coordinates(request, None)
    return request


def key_of(request: Request, num_tokens: int, group: int) -> BlockHashWithGroupId:
    """The key of the prefix cache for the request's first `num_tokens` tokens."""
    return _key(request.block_hashes, num_tokens, group)


def _key(
    hashes: Sequence[BlockHash], num_tokens: int, group: int
) -> BlockHashWithGroupId:
    return make_block_hash_with_group_id(hashes[num_tokens // HASH_BLOCK - 1], group)


def named(key: BlockHashWithGroupId) -> tuple[int, object]:
    """The group and the hash of a key, as events name them."""
    return get_group_id(key), maybe_convert_block_hash(get_block_hash(key))


class Lineage:
    """What a control plane knows: which sequences each continuation has named.

    It minted the ids, so it knows how much any two of them have in common.
    """

    def __init__(self) -> None:
        self.sequences: dict[str, dict[Tokens, Sequence[BlockHash]]] = {}
        self.holders: defaultdict[BlockHash, set[str]] = defaultdict(set)
        self._common: dict[tuple[str, str], int] = {}

    def note(self, continuation: str, request: Request) -> None:
        """The request's tokens so far are named by the continuation."""
        tokens = tuple(request.all_token_ids)
        known = self.sequences.setdefault(continuation, {})
        if any(sequence[: len(tokens)] == tokens for sequence in known):
            return
        for shorter in [s for s in known if tokens[: len(s)] == s]:
            del known[shorter]
        known[tokens] = list(request.block_hashes)
        for block_hash in request.block_hashes:
            self.holders[block_hash].add(continuation)
        self._common = {
            pair: n for pair, n in self._common.items() if continuation not in pair
        }

    def common(self, one: str, other: str) -> int:
        """The longest prefix, in tokens, of which both may hold the same blocks."""
        pair = (one, other) if one <= other else (other, one)
        if pair not in self._common:
            self._common[pair] = max(
                (
                    _common_prefix(mine, theirs)
                    for mine in self.sequences.get(one, ())
                    for theirs in self.sequences.get(other, ())
                ),
                default=0,
            )
        return self._common[pair]

    def keys(self, continuation: str, group: int) -> dict[BlockHashWithGroupId, int]:
        """Every key of the continuation's sequences in a group, with its length."""
        return {
            make_block_hash_with_group_id(block_hash, group): (i + 1) * HASH_BLOCK
            for hashes in self.sequences.get(continuation, {}).values()
            for i, block_hash in enumerate(hashes)
        }


def _common_prefix(one: Tokens, other: Tokens) -> int:
    for position, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return position
    return min(len(one), len(other))
