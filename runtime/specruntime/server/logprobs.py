"""Builds `logprobs` of the OpenAI API, in its two shapes: of chats and of completions."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from specruntime.sampling.sampler import TokenLogprobs
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
