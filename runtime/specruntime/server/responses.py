"""Builds the objects of the OpenAI API from deliveries: chunks while an answer grows, and whole answers.

Owns names and nesting, for both kinds of request. Knows nothing of HTTP.
"""

import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from specruntime.generation import TextDecoder
from specruntime.sampling.sampler import TokenLogprobs
from specruntime.server.schema import ChatRequest, CompletionRequest
from specruntime.serving.events import Delivery, Figures
from specruntime.text.codec import TextCodec

_LEAST = -9999.0  # stands for the logarithm of 0, which JSON cannot say
Json = dict[str, Any]


class ChatLogprobs:
    """`choices[0].logprobs` of a chat: joined, the `bytes` of the tokens are those of the text."""

    def __init__(self, codec: TextCodec | None) -> None:
        self._codec = codec

    def entries(self, found: Sequence[TokenLogprobs]) -> Json:
        return {"content": [self._entry(each) for each in found], "refusal": None}

    def _entry(self, found: TokenLogprobs) -> Json:
        top = [self._named(token, logprob) for token, logprob in found.top]
        return {**self._named(found.token, found.logprob), "top_logprobs": top}

    def _named(self, token: int, logprob: float) -> Json:
        data = None if self._codec is None else self._codec.token_bytes(token)
        name = _by_id(token) if self._codec is None else self._codec.token_text(token)
        return {
            "token": name,
            "logprob": max(logprob, _LEAST),
            "bytes": None if data is None else list(data),
        }


class CompletionLogprobs:
    """`choices[0].logprobs` of a completion, where `text_offset` points into the text.

    Text may be held back, as the beginning of a stop string, and dropped later: a token is given once the text up to it
    was sent.
    """

    def __init__(self, codec: TextCodec | None) -> None:
        self._codec = codec
        self._waiting: deque[tuple[int, TokenLogprobs]] = deque()
        self._begun = 0  # characters that the tokens so far complete
        self._sent = 0  # characters of the text so far

    def entries(
        self, found: Sequence[TokenLogprobs], pieces: Sequence[str], text: str, *, last: bool
    ) -> Json:
        """Those that `text`, sent now, makes ready. `pieces` are what each token completes; `last` ends the answer."""
        for each, piece in zip(found, pieces, strict=True):
            self._waiting.append((self._begun, each))
            self._begun += len(piece)
        self._sent += len(text)
        ready = []
        while self._waiting and (last or self._waiting[0][0] <= self._sent):
            ready.append(self._waiting.popleft())
        tables = [self._table(each) for _, each in ready]
        return {
            "tokens": [name for name, _ in tables],
            "token_logprobs": [max(each.logprob, _LEAST) for _, each in ready],
            "top_logprobs": [table for _, table in tables],
            "text_offset": [min(offset, self._sent) for offset, _ in ready],
        }

    def _table(self, found: TokenLogprobs) -> tuple[str, dict[str, float]]:
        """Return the token's name, and the most likely tokens by name with the token itself; no two names are
        the same.
        """
        logprobs = dict(found.top) | {found.token: found.logprob}
        names: dict[int, str] = {}
        for token in (found.token, *(token for token, _ in found.top)):
            if token not in names:
                names[token] = next(name for name in self._names(token) if name not in names.values())
        return names[found.token], {names[token]: max(value, _LEAST) for token, value in logprobs.items()}

    def _names(self, token: int) -> Iterator[str]:
        """From the plainest on; the last one is the token's alone."""
        if self._codec is not None:
            text, data = self._codec.token_text(token), self._codec.token_bytes(token)
            if data is None or text.encode("utf-8", "replace") == data:
                yield text
            if data is not None:
                yield "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
        yield _by_id(token)


def _by_id(token: int) -> str:
    return f"token_id:{token}"


_REASONS = {"stop": "stop", "length": "length", "capacity": "length"}


class AnswerShape:
    """The objects of one answer. `chunk` is for streams, `whole` for the rest; use one of them."""

    def __init__(
        self, asked: ChatRequest | CompletionRequest, prompt: Sequence[int], codec: TextCodec | None
    ) -> None:
        """`prompt` is what the answer follows. Without `codec` the answer holds token ids instead of text."""
        self.chat = isinstance(asked, ChatRequest)
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._model = asked.model
        self._created = int(time.time())
        self._prompt = prompt
        self._with_ids = asked.return_token_ids is True or codec is None
        self._authors = asked.include_authors is True
        self._logprobs: ChatLogprobs | CompletionLogprobs | None = None
        if asked.top_logprobs_wanted is not None:
            self._logprobs = ChatLogprobs(codec) if self.chat else CompletionLogprobs(codec)
        apart = self._authors or isinstance(self._logprobs, CompletionLogprobs)
        self._pieces: TextDecoder | None = codec.stream(prompt) if apart and codec is not None else None
        self._first = True

    def chunk(self, delivery: Delivery) -> Json:
        """One server-sent event."""
        delta, pieces = delivery.delta, self._completed(delivery)
        if self.chat:
            role = {"role": "assistant"} if self._first else {}
            choice: Json = {"index": 0, "delta": {**role, "content": delta.text}}
        else:
            choice = {"index": 0, "text": delta.text}
        choice["logprobs"] = self._named_logprobs([delivery], pieces)
        choice["finish_reason"] = None if delta.finish_reason is None else _REASONS[delta.finish_reason]
        document = {**self._head(chunk=True), "choices": [choice]}
        if self._with_ids:
            choice["token_ids"] = list(delta.tokens)
        if self._first:
            self._add_beginning(document, choice, delivery)
        if self._authors:
            document["specruntime"] = self._account(delivery, pieces)
        self._first = False
        return document

    def usage_chunk(self, figures: Figures) -> Json:
        """Return the event that ends a stream which asked for its usage."""
        return {**self._head(chunk=True), "choices": [], "usage": usage(figures)}

    def whole(self, deliveries: Sequence[Delivery]) -> Json:
        """Return the body of an answer that was not streamed."""
        text = "".join(delivery.delta.text for delivery in deliveries)
        reason, figures = deliveries[-1].delta.finish_reason, deliveries[-1].figures
        pieces = [piece for delivery in deliveries for piece in self._completed(delivery)]
        choice: Json = {"index": 0, "logprobs": self._named_logprobs(deliveries, pieces)}
        choice |= (
            {"message": {"role": "assistant", "content": text, "refusal": None}}
            if self.chat
            else {"text": text}
        )
        choice["finish_reason"] = _REASONS[reason or "stop"]
        document = {**self._head(chunk=False), "choices": [choice], "usage": usage(figures)}
        if self._with_ids:
            choice["token_ids"] = [token for delivery in deliveries for token in delivery.delta.tokens]
        self._add_beginning(document, choice, deliveries[-1])
        if self._authors:
            written = [delivery.authors for delivery in deliveries]
            authors = [author for each in written for author in each]
            tokens = [token for delivery in deliveries for token in delivery.delta.tokens]
            document["specruntime"] = {
                "tokens": _written(tokens, authors, pieces),
                "figures": figures.as_dict(),
            }
        return document

    def _head(self, *, chunk: bool) -> Json:
        kind = "text_completion" if not self.chat else "chat.completion.chunk" if chunk else "chat.completion"
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model}

    def _add_beginning(self, document: Json, choice: Json, delivery: Delivery) -> None:
        """Add what a stream says once: the seed, and the prompt's ids where vLLM has them."""
        choice["seed"] = delivery.figures.seed
        if self._with_ids:
            (document if self.chat else choice)["prompt_token_ids"] = list(self._prompt)

    def _completed(self, delivery: Delivery) -> list[str]:
        """Return the text that each token of a delivery completes; called once for each, in order."""
        tokens = delivery.delta.tokens
        if self._pieces is None:
            return [""] * len(tokens)
        pieces = [self._pieces.push((token,)) for token in tokens]
        if delivery.last and pieces:
            pieces[-1] += self._pieces.flush()
        return pieces

    def _account(self, delivery: Delivery, pieces: Sequence[str]) -> Json:
        """Who wrote each token, with the text that it completed."""
        tokens = _written(delivery.delta.tokens, delivery.authors, pieces)
        return {"tokens": tokens, "figures": delivery.figures.as_dict()}

    def _named_logprobs(self, deliveries: Sequence[Delivery], pieces: Sequence[str]) -> Json | None:
        entries = [entry for delivery in deliveries for entry in delivery.delta.logprobs or ()]
        if isinstance(self._logprobs, CompletionLogprobs):
            text = "".join(delivery.delta.text for delivery in deliveries)
            return self._logprobs.entries(entries, pieces, text, last=deliveries[-1].last)
        return None if self._logprobs is None else self._logprobs.entries(entries)


def _written(tokens: Sequence[int], authors: Sequence[str], pieces: Sequence[str]) -> list[Json]:
    return [
        {"id": token, "author": author, "text": piece}
        for token, author, piece in zip(tokens, authors, pieces, strict=True)
    ]


def usage(figures: Figures) -> Json:
    return {
        "prompt_tokens": figures.prompt_tokens,
        "completion_tokens": figures.tokens,
        "total_tokens": figures.prompt_tokens + figures.tokens,
        "prompt_tokens_details": {"cached_tokens": figures.cached_tokens},
    }
