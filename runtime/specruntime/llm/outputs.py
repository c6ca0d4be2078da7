"""Answers in the shape that users of vLLM know. Owns that shape and how deliveries become it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specruntime.chat.reply import ReplyStyle, message_of
from specruntime.sampling.sampler import TokenLogprobs
from specruntime.serving.events import Delivery, Figures
from specruntime.stopping import FinishReason
from specruntime.text.codec import TextCodec


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token under the raw logits: natural logarithm of its probability, and its rank, 1 the most likely.

    `rank` is None for a token outside the most likely that were asked for; `decoded_token` without a tokenizer.
    """

    logprob: float
    rank: int | None
    decoded_token: str | None


@dataclass(slots=True)
class CompletionOutput:
    """One answer. An end token is the last of `token_ids` and not in `text`."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None  # one mapping per token; None unless asked for
    finish_reason: FinishReason | None = None  # None while the answer goes on
    stop_reason: None = None
    # Seed of the noise: given again, it gives this answer again. None before the first token and for a greedy answer.
    seed: int | None = None
    # Of a chat's answer, when it has ended: the assistant's message in the form of the OpenAI API, with content,
    # `reasoning_content` and `tool_calls` apart. It can be sent back among the next messages.
    message: dict[str, Any] | None = field(default=None, compare=False)


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its answers, `n` of them."""

    request_id: str
    prompt: str | None  # None where token ids were given
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0  # of the prompt, whose cache rows were there already
    metrics: Figures | None = None  # of the answer that was last added to
    # How the answers of a chat are written; None: the prompt is not a chat.
    style: ReplyStyle | None = field(default=None, compare=False, repr=False)

    def add(self, delivery: Delivery, codec: TextCodec | None, index: int = 0) -> None:
        """Append what one round delivered to the answer of this number."""
        answer, delta = self.outputs[index], delivery.delta
        answer.text += delta.text
        answer.token_ids += delta.tokens
        answer.finish_reason = delta.finish_reason
        answer.seed = delivery.figures.seed
        if delta.logprobs is not None:
            answer.logprobs = (answer.logprobs or []) + [as_mapping(entry, codec) for entry in delta.logprobs]
            answer.cumulative_logprob = (answer.cumulative_logprob or 0.0) + sum(
                entry.logprob for entry in delta.logprobs
            )
        if delivery.last and self.style is not None:
            answer.message = message_of(self.style, answer.text).as_dict()
        self.finished = all(each.finish_reason is not None for each in self.outputs)
        self.metrics = delivery.figures
        if index == 0:
            self.num_cached_tokens = delivery.figures.cached_tokens


def new_output(
    request_id: str, prompt: str | None, ids: Sequence[int], count: int = 1, style: ReplyStyle | None = None
) -> RequestOutput:
    """Return a request for `count` answers that nothing has been delivered for."""
    answers = [CompletionOutput(index) for index in range(count)]
    return RequestOutput(request_id, prompt, list(ids), answers, style=style)


def as_mapping(entry: TokenLogprobs, codec: TextCodec | None) -> dict[int, Logprob]:
    """Return the most likely tokens, best first, and the token itself."""

    def decoded(token: int) -> str | None:
        return None if codec is None else codec.token_text(token)

    mapping = {
        token: Logprob(logprob, rank, decoded(token))
        for rank, (token, logprob) in enumerate(entry.top, start=1)
    }
    if entry.token not in mapping:
        mapping[entry.token] = Logprob(entry.logprob, None, decoded(entry.token))
    return mapping
