"""Turns a request into work for the scheduler: the ids of its prompts and its sampling parameters.

Owns the defaults of the OpenAI API where they differ from the library's: temperature 1.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from pydantic import BaseModel

from specruntime.chat import ReplyStyle, ToolOffer, chat_prompt, offered, require_alone
from specruntime.errors import CapacityExceeded, InvalidArgument
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.reasoning import ReasoningMarks
from specruntime.server.problems import Problem
from specruntime.server.schema import MAX_PROMPTS, ChatRequest, CompletionRequest, Sampling
from specruntime.serving.stepper import Work, works_of
from specruntime.text.codec import TextCodec

_LONG_TEXT = 2000  # characters whose tokens are worth a thread
# Fields that the request and the parameters call the same.
_SAME = (
    "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens",
    "ignore_eos", "accept", "stop_token_ids",
)  # fmt: skip


@dataclass(frozen=True)
class Prompt:
    """What answers follow, and how they are written."""

    ids: list[int]
    style: ReplyStyle = field(default_factory=ReplyStyle)
    shown: Mapping[int, str] = field(
        default_factory=dict
    )  # special tokens that are part of the answer's text
    reasoning: ReasoningMarks | None = None
    echo: str = ""  # what its answers begin with


async def prompts_of(
    asked: ChatRequest | CompletionRequest, codec: TextCodec | None, max_prompt_tokens: int
) -> list[Prompt]:
    """Raise `InvalidArgument` or `CapacityExceeded` for what the bundle cannot answer."""
    _require_together(asked)
    if isinstance(asked, ChatRequest):
        prompts = [await _chat(asked, codec)]
    else:
        prompts = await _completions(asked, codec)
    if len(prompts) * asked.candidates > MAX_PROMPTS:
        raise Problem(
            400, f"the request asks for {len(prompts) * asked.candidates} answers, expected at most {MAX_PROMPTS}: "
            "send several requests", parameter="n",
        )  # fmt: skip
    for prompt in prompts:
        if len(prompt.ids) > max_prompt_tokens:
            raise CapacityExceeded(
                f"the prompt has {len(prompt.ids)} tokens, this server takes at most {max_prompt_tokens}: shorten it"
            )
    return prompts


def works_for(asked: ChatRequest | CompletionRequest, prompts: list[Prompt]) -> list[Work]:
    """Return the work of each answer: of each prompt, its candidates follow each other."""
    params = sampling_params(asked)
    works: list[Work] = []
    for prompt in prompts:
        own = params if prompt.reasoning is None else replace(params, reasoning=prompt.reasoning)
        work = Work(np.asarray(prompt.ids, np.int64), own, asked.speculate is not False, prompt.shown)
        works += works_of(work, asked.candidates)
    return works


def sampling_params(asked: Sampling) -> SamplingParams:
    """Raise `InvalidArgument` for values that do not go together."""
    _require_together(asked)
    given: dict[str, Any] = {name: value for name in _SAME if (value := getattr(asked, name)) is not None}
    biases = {int(token): bias for token, bias in (asked.logit_bias or {}).items()}
    temperature = 1.0 if asked.temperature is None else asked.temperature
    logprobs = asked.top_logprobs_wanted
    if isinstance(asked, ChatRequest):
        given["thinking_token_budget"] = asked.thinking_token_budget
    elif asked.candidates != (asked.n or 1):
        logprobs = logprobs or 0  # the best are chosen by them
    return SamplingParams(
        temperature=temperature if temperature >= 1e-6 else 0.0,
        top_k=max(asked.top_k or 0, 0),
        seed=None if asked.seed is None else asked.seed % 2**63,
        stop=asked.stop or (),  # type: ignore[arg-type]  # a string and a list are taken too
        logit_bias=biases,
        max_tokens=asked.token_limit,
        logprobs=logprobs,
        structured_outputs=asked.form,
        **given,
    )


def _require_together(asked: Sampling) -> None:
    if asked.stream_options is not None and asked.stream_options.include_usage and not asked.stream:
        raise Problem(400, "stream_options is given without stream: true", parameter="stream_options")
    if isinstance(asked, ChatRequest) and asked.top_logprobs and not asked.logprobs:
        raise Problem(400, "top_logprobs is given without logprobs: true", parameter="top_logprobs")
    if asked.max_tokens is not None and asked.max_tokens != asked.token_limit:
        raise Problem(
            400, f"max_tokens is {asked.max_tokens} and max_completion_tokens {asked.token_limit}: give one of them",
            parameter="max_tokens",
        )  # fmt: skip
    if not isinstance(asked, CompletionRequest):
        return
    if asked.candidates < (asked.n or 1):
        raise Problem(400, f"best_of is {asked.best_of} and n {asked.n}: give n or more", parameter="best_of")
    if asked.candidates > (asked.n or 1) and asked.stream:
        raise Problem(
            400, "best_of above n is given with stream: true, and the best are known at the end only",
            parameter="best_of",
        )  # fmt: skip
    if asked.echo and asked.logprobs is not None:
        raise Problem(
            400, "echo is given with logprobs, and those of a prompt are not computed: leave one of them out",
            parameter="echo",
        )  # fmt: skip


async def _completions(asked: CompletionRequest, codec: TextCodec | None) -> list[Prompt]:
    prompts = []
    for prompt in asked.prompts:
        if isinstance(prompt, list):
            echo = _require_codec(codec).decode(prompt) if asked.echo else ""
            prompts.append(Prompt(prompt, echo=echo))
            continue
        known = _require_codec(codec)
        long = len(prompt) > _LONG_TEXT
        ids = await asyncio.to_thread(known.encode, prompt) if long else known.encode(prompt)
        prompts.append(Prompt(ids, echo=prompt if asked.echo else ""))
    return prompts


async def _chat(asked: ChatRequest, codec: TextCodec | None) -> Prompt:
    messages = [message.as_mapping() for message in asked.messages]
    known, offer = _require_codec(codec), tool_offer(asked)
    require_alone(offer, asked.form)
    long = sum(len(message["content"]) for message in messages) > _LONG_TEXT or offer.open
    found = (
        await asyncio.to_thread(chat_prompt, known, messages, offer)
        if long
        else chat_prompt(known, messages, offer)
    )
    if asked.form is not None:  # which the whole answer has: it is content
        return Prompt(found.ids)
    return Prompt(found.ids, found.style, found.shown, found.reasoning)


def tool_offer(asked: ChatRequest) -> ToolOffer:
    """Raise `InvalidArgument` for tools and a choice that do not go together."""
    choice: object = asked.tool_choice
    if isinstance(choice, BaseModel):
        choice = choice.model_dump()
    tools = [tool.model_dump(exclude_none=True) for tool in asked.tools or ()]
    return offered(tools, choice, asked.parallel_tool_calls is not False)


def _require_codec(codec: TextCodec | None) -> TextCodec:
    if codec is None:
        raise InvalidArgument("this bundle has no tokenizer: give token ids as the prompt of /v1/completions")
    return codec
