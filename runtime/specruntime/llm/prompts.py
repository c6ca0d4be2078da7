"""What callers of `LLM` give: prompts, options, and arguments of vLLM that ask for nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specruntime.errors import InvalidArgument
from specruntime.manifest.messages import one_of
from specruntime.sampling.params import SamplingParams, shown
from specruntime.text.codec import TextCodec

Prompt = str | Sequence[int] | Mapping[str, Any]
# Arguments of vLLM's `generate` and `chat` that are not supported, at the values that change nothing.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "chat_template": (None,),
    "chat_template_content_format": ("auto", "string"),
    "chat_template_kwargs": (None, {}),
    "continue_final_message": (False,),
    "data_parallel_rank": (None,),
    "lora_request": (None,),
    "mm_processor_kwargs": (None, {}),
    "priority": (None, 0),
    "prompt_adapter_request": (None,),
    "tokenization_kwargs": (None, {}),
    "trace_headers": (None, {}),
}
_PROMPT_KEYS = ("prompt", "prompt_token_ids")


def listed(prompts: Any) -> list[Prompt]:
    """One prompt or a list of them, as a list; a list that begins with an integer is one prompt of token ids."""
    kind = type(prompts)
    if not issubclass(kind, str | Mapping | Sequence | np.ndarray):
        raise TypeError(
            f"the prompts are a {kind.__name__}, expected a text, a list of token ids, or a list of prompts"
        )
    one = isinstance(prompts, str | Mapping) or (len(prompts) and isinstance(prompts[0], int | np.integer))
    return [prompts] if one else list(prompts)


def prompt_ids(prompt: Prompt, codec: TextCodec | None) -> tuple[str | None, Sequence[int]]:
    """Return the prompt's text, where it is one, and its ids."""
    if isinstance(prompt, Mapping):
        for name in prompt:
            if name not in _PROMPT_KEYS:
                raise InvalidArgument(f"a prompt has the key {name!r}, {one_of(str(name), _PROMPT_KEYS)}")
        if len(prompt) != 1:
            raise InvalidArgument(
                f"a prompt has the keys {sorted(prompt)}, expected one of {', '.join(_PROMPT_KEYS)}"
            )
        (prompt,) = prompt.values()
        return prompt_ids(prompt, codec)
    if isinstance(prompt, str):
        return prompt, require_codec(codec).encode(prompt)
    return None, prompt


def require_codec(codec: TextCodec | None) -> TextCodec:
    if codec is None:
        raise InvalidArgument("this bundle has no tokenizer, so it takes no text: give lists of token ids")
    return codec


def require_neutral(others: Mapping[str, object]) -> None:
    """Raise `InvalidArgument` for an argument that is unknown, or that asks for something."""
    for name, value in others.items():
        if name not in _NEUTRAL:
            raise InvalidArgument(f"{name} is not an argument, {one_of(name, ('use_tqdm', *_NEUTRAL))}")
        if not any(type(value) is type(neutral) and value == neutral for neutral in _NEUTRAL[name]):
            allowed = " or ".join(map(repr, _NEUTRAL[name]))
            raise InvalidArgument(
                f"{name} is {shown(value)}, expected {allowed}: this argument of vLLM is not supported here"
            )


def no_params(found: object) -> InvalidArgument:
    return InvalidArgument(f"the sampling parameters are {shown(found)}, expected SamplingParams")


def one_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence):
        raise no_params(params)
    if len(params) != count:
        raise InvalidArgument(
            f"found {len(params)} sampling parameters for {count} prompts, expected one or one each"
        )
    return params
