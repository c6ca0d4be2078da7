"""Deliveries as the objects of the OpenAI API: chunks while an answer grows, and whole answers.

Owns names and nesting, for both kinds of request. Knows nothing of HTTP.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from specruntime.generation import TextDecoder
from specruntime.sampling import TokenLogprobs
from specruntime.server.schema import ChatRequest, CompletionRequest
from specruntime.serving.events import Delivery, Figures
from specruntime.text import INCOMPLETE, TextCodec

_REASONS = {"stop": "stop", "length": "length", "capacity": "length"}
_LEAST = -9999.0  # stands for the logarithm of 0, which JSON cannot say
Json = dict[str, Any]


class AnswerShape:
    """The objects of one answer. `chunk` is for streams, `whole` for the rest; use one of them."""

    def __init__(self, asked: ChatRequest | CompletionRequest, codec: TextCodec | None) -> None:
        self.chat = isinstance(asked, ChatRequest)
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._model = asked.model
        self._created = int(time.time())
        self._codec = codec
        self._wants_logprobs = asked.top_logprobs_wanted is not None
        self._pieces: TextDecoder | None = codec.stream() if asked.include_authors and codec else None
        self._authors = asked.include_authors is True
        self._offset = 0  # characters of the answer so far
        self._first = True

    def chunk(self, delivery: Delivery) -> Json:
        """One server-sent event."""
        delta = delivery.delta
        if self.chat:
            role = {"role": "assistant"} if self._first else {}
            choice: Json = {"index": 0, "delta": {**role, "content": delta.text}}
        else:
            choice = {"index": 0, "text": delta.text}
        self._first = False
        choice["logprobs"] = self._logprobs([delivery])
        choice["finish_reason"] = None if delta.finish_reason is None else _REASONS[delta.finish_reason]
        extra = {"specruntime": self._account(delivery)} if self._authors else {}
        return {**self._head(chunk=True), "choices": [choice], **extra}

    def usage_chunk(self, figures: Figures) -> Json:
        """The event that ends a stream which asked for its usage."""
        return {**self._head(chunk=True), "choices": [], "usage": usage(figures)}

    def whole(self, deliveries: Sequence[Delivery]) -> Json:
        """The body of an answer that was not streamed."""
        text = "".join(delivery.delta.text for delivery in deliveries)
        reason = deliveries[-1].delta.finish_reason
        choice: Json = {"index": 0, "logprobs": self._logprobs(deliveries)}
        choice |= (
            {"message": {"role": "assistant", "content": text, "refusal": None}}
            if self.chat
            else {"text": text}
        )
        choice["finish_reason"] = _REASONS[reason or "stop"]
        figures = deliveries[-1].figures
        extra: Json = {}
        if self._authors:
            tokens = [token for delivery in deliveries for token in self._account(delivery)["tokens"]]
            extra["specruntime"] = {"tokens": tokens, "figures": figures.as_dict()}
        return {**self._head(chunk=False), "choices": [choice], "usage": usage(figures), **extra}

    def _head(self, *, chunk: bool) -> Json:
        kind = "text_completion" if not self.chat else "chat.completion.chunk" if chunk else "chat.completion"
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model}

    def _account(self, delivery: Delivery) -> Json:
        """Who wrote each token, with the text that it completed."""
        tokens: list[Json] = [
            {
                "id": token,
                "author": author,
                "text": "" if self._pieces is None else self._pieces.push((token,)),
            }
            for token, author in zip(delivery.delta.tokens, delivery.authors, strict=True)
        ]
        if delivery.last and tokens and self._pieces is not None:
            tokens[-1]["text"] += self._pieces.flush()
        return {"tokens": tokens, "figures": delivery.figures.as_dict()}

    def _logprobs(self, deliveries: Sequence[Delivery]) -> Json | None:
        if not self._wants_logprobs:
            return None
        entries = [entry for delivery in deliveries for entry in delivery.delta.logprobs or ()]
        return (
            {"content": [self._chat_entry(entry) for entry in entries]} if self.chat else self._table(entries)
        )

    def _chat_entry(self, entry: TokenLogprobs) -> Json:
        top = [self._named(token, logprob) for token, logprob in entry.top]
        return {**self._named(entry.token, entry.logprob), "top_logprobs": top}

    def _named(self, token: int, logprob: float) -> Json:
        text = self._text(token)
        return {
            "token": text,
            "logprob": max(logprob, _LEAST),
            # A token of some bytes of a character is shown as U+FFFD; which bytes it has, a decoder does not tell.
            "bytes": None if INCOMPLETE in text else list(text.encode("utf-8", "replace")),
        }

    def _table(self, entries: Sequence[TokenLogprobs]) -> Json:
        texts = [self._text(entry.token) for entry in entries]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [max(entry.logprob, _LEAST) for entry in entries],
            "top_logprobs": [
                {self._text(token): max(logprob, _LEAST) for token, logprob in entry.top} for entry in entries
            ],
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return f"token_id:{token}" if self._codec is None else self._codec.decode([token])


def usage(figures: Figures) -> Json:
    return {
        "prompt_tokens": figures.prompt_tokens,
        "completion_tokens": figures.tokens,
        "total_tokens": figures.prompt_tokens + figures.tokens,
        "prompt_tokens_details": {"cached_tokens": figures.cached_tokens},
    }
