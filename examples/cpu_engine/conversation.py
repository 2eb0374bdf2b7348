# SPDX-License-Identifier: Apache-2.0
"""Labeled conversations with a server, as a gateway would hold them."""

from dataclasses import dataclass

import httpx

from cpu_engine.server import MODEL_NAME
from vllm_coordinates.stream.mint import chat

TURN_TOKENS = 16
_REQUEST_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Sent:
    """One turn: what was sent, and what the HTTP response said about it.

    Attributes:
        session_id: The label in `X-Session-ID`.
        continuation_id: The label in `X-Continuation-ID`.
        tokens: The ids of the prompt's tokens and of the answer's, in order.
        cached: How many of them were in the cache before.
    """

    session_id: str
    continuation_id: str
    tokens: tuple[int, ...]
    cached: int

    def admitted(self, block_size: int) -> tuple[int, ...]:
        """The tokens that the turn brought into the cache: whole blocks only.

        The last token of an answer is sampled, but never computed.
        """
        computed = len(self.tokens) - 1
        return self.tokens[self.cached : computed - computed % block_size]


class Conversation:
    """A session: every turn sends the whole history, under a new continuation."""

    def __init__(self, url: str, session_id: str, system: str) -> None:
        self._url = url
        self._session_id = session_id
        self._messages = [{"role": "system", "content": system}]

    def ask(self, question: str) -> Sent:
        """Plays one turn.

        Raises:
            httpx.HTTPError: The server did not take it.
        """
        self._messages.append({"role": "user", "content": question})
        body = {
            "model": MODEL_NAME,
            "messages": self._messages,
            "max_tokens": TURN_TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            "return_token_ids": True,
        }
        continuation_id = chat(body).continuation_id
        response = httpx.post(
            f"{self._url}/v1/chat/completions",
            headers={
                "X-Session-ID": self._session_id,
                "X-Continuation-ID": continuation_id,
            },
            json=body,
            timeout=_REQUEST_TIMEOUT_S,
            trust_env=False,
        ).raise_for_status()
        answer = response.json()
        choice = answer["choices"][0]
        self._messages.append(
            {"role": "assistant", "content": choice["message"]["content"]}
        )
        return Sent(
            session_id=self._session_id,
            continuation_id=continuation_id,
            tokens=(*answer["prompt_token_ids"], *choice["token_ids"]),
            cached=answer["usage"]["prompt_tokens_details"]["cached_tokens"],
        )
