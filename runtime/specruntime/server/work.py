"""Turns a request into work for the scheduler: its prompt's ids and its sampling parameters.

Owns the defaults of the OpenAI API where they differ from the library's: temperature 1.
"""

import asyncio
from typing import Any

import numpy as np

from specruntime.errors import CapacityExceeded, InvalidArgument
from specruntime.sampling.params import SamplingParams
from specruntime.server.problems import Problem
from specruntime.server.schema import ChatRequest, CompletionRequest, Sampling
from specruntime.serving.stepper import Work
from specruntime.text.codec import TextCodec

_LONG_TEXT = 2000  # characters whose tokens are worth a thread
# Fields that the request and the parameters call the same.
_SAME = (
    "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens",
    "ignore_eos", "accept", "stop_token_ids",
)  # fmt: skip


async def work_of(
    asked: ChatRequest | CompletionRequest, codec: TextCodec | None, max_prompt_tokens: int
) -> Work:
    """Raise `InvalidArgument` or `CapacityExceeded` for what the bundle cannot answer."""
    params = sampling_params(asked)
    prompt = await _prompt_ids(asked, codec)
    if len(prompt) > max_prompt_tokens:
        raise CapacityExceeded(
            f"the prompt has {len(prompt)} tokens, this server takes at most {max_prompt_tokens}: shorten it"
        )
    return Work(np.asarray(prompt, np.int64), params, asked.speculate is not False)


def sampling_params(asked: Sampling) -> SamplingParams:
    """Raise `InvalidArgument` for values that do not go together."""
    if asked.stream_options is not None and asked.stream_options.include_usage and not asked.stream:
        raise Problem(400, "stream_options is given without stream: true", parameter="stream_options")
    if isinstance(asked, ChatRequest) and asked.top_logprobs and not asked.logprobs:
        raise Problem(400, "top_logprobs is given without logprobs: true", parameter="top_logprobs")
    if asked.max_tokens is not None and asked.max_tokens != asked.token_limit:
        raise Problem(
            400, f"max_tokens is {asked.max_tokens} and max_completion_tokens {asked.token_limit}: give one of them",
            parameter="max_tokens",
        )  # fmt: skip
    given: dict[str, Any] = {name: value for name in _SAME if (value := getattr(asked, name)) is not None}
    biases = {int(token): bias for token, bias in (asked.logit_bias or {}).items()}
    temperature = 1.0 if asked.temperature is None else asked.temperature
    return SamplingParams(
        temperature=temperature if temperature >= 1e-6 else 0.0,
        top_k=max(asked.top_k or 0, 0),
        seed=None if asked.seed is None else asked.seed % 2**63,
        stop=asked.stop or (),  # type: ignore[arg-type]  # a string and a list are taken too
        logit_bias=biases,
        max_tokens=asked.token_limit,
        logprobs=asked.top_logprobs_wanted,
        structured_outputs=asked.form,
        **given,
    )


async def _prompt_ids(asked: ChatRequest | CompletionRequest, codec: TextCodec | None) -> list[int]:
    if isinstance(asked, CompletionRequest):
        prompt: Any = asked.prompt
        if isinstance(prompt, list) and not isinstance(prompt[0], int):
            (prompt,) = prompt  # the API's list of prompts
        if isinstance(prompt, list):
            return prompt
        text = str(prompt)
        known = _require_codec(codec)
        return await asyncio.to_thread(known.encode, text) if len(text) > _LONG_TEXT else known.encode(text)
    messages = [message.as_mapping() for message in asked.messages]
    known = _require_codec(codec)
    if sum(len(message["content"]) for message in messages) > _LONG_TEXT:
        return await asyncio.to_thread(known.chat, messages)
    return known.chat(messages)


def _require_codec(codec: TextCodec | None) -> TextCodec:
    if codec is None:
        raise InvalidArgument("this bundle has no tokenizer: give token ids as the prompt of /v1/completions")
    return codec
