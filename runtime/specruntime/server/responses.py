"""Builds the objects of the OpenAI API from deliveries: chunks while answers grow, and whole answers.

Owns names and nesting, for both kinds of request. Knows nothing of HTTP.
"""

import secrets
import time
from collections.abc import Sequence

from specruntime.generation import TextDecoder
from specruntime.server.answer_text import AnswerText, delta_fields
from specruntime.server.logprobs import ChatLogprobs, CompletionLogprobs, Json
from specruntime.server.schema import ChatRequest, CompletionRequest
from specruntime.server.work import Prompt
from specruntime.serving.events import Delivery, Figures
from specruntime.text.codec import TextCodec

_REASONS = {"stop": "stop", "length": "length", "capacity": "length"}


class AnswerShape:
    """The objects of the answers to one request. `chunks` is for streams, `whole` for the rest; use one of them."""

    def __init__(
        self, asked: ChatRequest | CompletionRequest, prompts: Sequence[Prompt], codec: TextCodec | None
    ) -> None:
        """`prompts` are what the answers follow: of each, the candidates follow each other. Without `codec` an answer
        holds token ids instead of text.
        """
        self.chat = isinstance(asked, ChatRequest)
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._model = asked.model
        self._created = int(time.time())
        self._asked, self._candidates = asked, asked.candidates
        self._choices = [_Choice(asked, prompt, codec) for prompt in prompts for _ in range(asked.candidates)]

    def chunks(self, index: int, delivery: Delivery) -> list[Json]:
        """Return the server-sent events of a delivery, of the answer of this number.

        They are two where a call is in the last one: clients look for the end of a call in the event after it.
        """
        choice, added = self._choices[index].grown(delivery)
        reason = choice["finish_reason"]
        if reason is None or "tool_calls" not in choice.get("delta", {}):
            return [self._chunk(index, choice, added)]
        end = {"delta": {}, "logprobs": None, "finish_reason": reason}
        return [self._chunk(index, {**choice, "finish_reason": None}, added), self._chunk(index, end, {})]

    def _chunk(self, index: int, choice: Json, added: Json) -> Json:
        return {**self._head(chunk=True), "choices": [{"index": index, **choice}], **added}

    def usage_chunk(self, figures: Sequence[Figures]) -> Json:
        """Return the event that ends a stream which asked for its usage."""
        return {**self._head(chunk=True), "choices": [], "usage": self.usage(figures)}

    def whole(self, answers: Sequence[Sequence[Delivery]]) -> Json:
        """Return the body of answers that were not streamed."""
        made = [choice.whole(deliveries) for choice, deliveries in zip(self._choices, answers, strict=True)]
        kept = [number for prompt in range(self._prompts) for number in self._best(prompt, answers)]
        choices = [{"index": index, **made[number][0]} for index, number in enumerate(kept)]
        document = {**self._head(chunk=False), "choices": choices}
        document["usage"] = self.usage([deliveries[-1].figures for deliveries in answers])
        if len(kept) == 1:
            return document | made[kept[0]][1]
        for choice, number in zip(choices, kept, strict=True):
            choice |= made[number][1]
        return document

    def usage(self, figures: Sequence[Figures]) -> Json:
        """Return the tokens of all answers; a prompt counts once, and as its first answer found it."""
        firsts = figures[:: self._candidates]
        prompt, made = sum(each.prompt_tokens for each in firsts), sum(each.tokens for each in figures)
        counted = {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": sum(each.cached_tokens for each in firsts)},
        }
        reasoning = [choice.text.reasoning_tokens for choice in self._choices]
        if any(count is not None for count in reasoning):
            counted["completion_tokens_details"] = {
                "reasoning_tokens": sum(count or 0 for count in reasoning)
            }
        return counted

    @property
    def _prompts(self) -> int:
        return len(self._choices) // self._candidates

    def _best(self, prompt: int, answers: Sequence[Sequence[Delivery]]) -> Sequence[int]:
        """Return the candidates of a prompt that are returned: all, or the best in order."""
        numbers = range(prompt * self._candidates, (prompt + 1) * self._candidates)
        wanted = self._asked.n or 1
        if wanted == self._candidates:
            return numbers
        return sorted(numbers, key=lambda number: -_mean_logprob(answers[number]))[:wanted]

    def _head(self, *, chunk: bool) -> Json:
        kind = "text_completion" if not self.chat else "chat.completion.chunk" if chunk else "chat.completion"
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model}


class _Choice:
    """One answer. What it builds is the choice, and what belongs next to it in the document."""

    def __init__(
        self, asked: ChatRequest | CompletionRequest, prompt: Prompt, codec: TextCodec | None
    ) -> None:
        self.text = AnswerText(prompt)
        self._chat = isinstance(asked, ChatRequest)
        self._prompt = prompt
        self._with_ids = asked.return_token_ids is True or codec is None
        self._authors = asked.include_authors is True
        self._logprobs: ChatLogprobs | CompletionLogprobs | None = None
        if asked.top_logprobs_wanted is not None:
            self._logprobs = ChatLogprobs(codec) if self._chat else CompletionLogprobs(codec)
        apart = self._authors or isinstance(self._logprobs, CompletionLogprobs)
        self._pieces: TextDecoder | None = None
        if apart and codec is not None:
            self._pieces = codec.stream(prompt.ids, prompt.shown)
        self._first = True

    def grown(self, delivery: Delivery) -> tuple[Json, Json]:
        """Return what a delivery adds."""
        delta, pieces = delivery.delta, self._completed(delivery)
        if self._chat:
            role = {"role": "assistant"} if self._first else {}
            fields = delta_fields(self.text.grown(delivery))
            if self._prompt.style.plain:
                fields.setdefault("content", "")
            choice: Json = {"delta": {**role, **fields}}
        else:
            choice = {"text": (self._prompt.echo if self._first else "") + delta.text}
        choice["logprobs"] = self._named_logprobs([delivery], pieces)
        choice["finish_reason"] = None if delta.finish_reason is None else self._reason(delta.finish_reason)
        added: Json = {}
        if self._with_ids:
            choice["token_ids"] = list(delta.tokens)
        if self._first:
            self._add_beginning(added, choice, delivery)
        if self._authors:
            written = _written(delta.tokens, delivery.authors, pieces)
            added["specruntime"] = {"tokens": written, "figures": delivery.figures.as_dict()}
        self._first = False
        return choice, added

    def whole(self, deliveries: Sequence[Delivery]) -> tuple[Json, Json]:
        """Return all of an answer that was not streamed."""
        last = deliveries[-1]
        pieces = [piece for delivery in deliveries for piece in self._completed(delivery)]
        choice: Json = {"logprobs": self._named_logprobs(deliveries, pieces)}
        if self._chat:
            choice["message"] = self.text.message(deliveries)
        else:
            choice["text"] = self._prompt.echo + "".join(delivery.delta.text for delivery in deliveries)
        choice["finish_reason"] = self._reason(last.delta.finish_reason or "stop")
        tokens = [token for delivery in deliveries for token in delivery.delta.tokens]
        added: Json = {}
        if self._with_ids:
            choice["token_ids"] = tokens
        self._add_beginning(added, choice, last)
        if self._authors:
            authors = [author for delivery in deliveries for author in delivery.authors]
            added["specruntime"] = {
                "tokens": _written(tokens, authors, pieces),
                "figures": last.figures.as_dict(),
            }
        return choice, added

    def _reason(self, reason: str) -> str:
        found = _REASONS[reason]
        return "tool_calls" if found == "stop" and self.text.calls else found

    def _add_beginning(self, added: Json, choice: Json, delivery: Delivery) -> None:
        """Add what a stream says once: the seed, and the prompt's ids where vLLM has them."""
        choice["seed"] = delivery.figures.seed
        if self._with_ids:
            (added if self._chat else choice)["prompt_token_ids"] = list(self._prompt.ids)

    def _completed(self, delivery: Delivery) -> list[str]:
        """Return the text that each token of a delivery completes; called once for each, in order."""
        tokens = delivery.delta.tokens
        if self._pieces is None:
            return [""] * len(tokens)
        pieces = [self._pieces.push((token,)) for token in tokens]
        if delivery.last and pieces:
            pieces[-1] += self._pieces.flush()
        return pieces

    def _named_logprobs(self, deliveries: Sequence[Delivery], pieces: Sequence[str]) -> Json | None:
        entries = [entry for delivery in deliveries for entry in delivery.delta.logprobs or ()]
        if isinstance(self._logprobs, CompletionLogprobs):
            text = "".join(delivery.delta.text for delivery in deliveries)
            return self._logprobs.entries(entries, pieces, text, last=deliveries[-1].last)
        return None if self._logprobs is None else self._logprobs.entries(entries)


def _mean_logprob(deliveries: Sequence[Delivery]) -> float:
    found = [entry.logprob for delivery in deliveries for entry in delivery.delta.logprobs or ()]
    return sum(found) / len(found) if found else 0.0


def _written(tokens: Sequence[int], authors: Sequence[str], pieces: Sequence[str]) -> list[Json]:
    return [
        {"id": token, "author": author, "text": piece}
        for token, author, piece in zip(tokens, authors, pieces, strict=True)
    ]
