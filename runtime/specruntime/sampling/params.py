"""The options of one answer and their ranges. Knows nothing of how they are applied."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from numbers import Real
from typing import Literal, Self, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from specruntime.errors import InvalidArgument
from specruntime.manifest.messages import one_of
from specruntime.sampling.reasoning import ReasoningMarks
from specruntime.sampling.structured import StructuredOutputsParams

_HIGHEST = float(np.finfo(np.float32).max)
_INTEGERS = ("top_k", "seed", "max_tokens", "min_tokens", "logprobs", "n", "thinking_token_budget")
_FLOATS = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
MAX_ANSWERS = 16
_SHOWN = 200  # characters
# Options of vLLM's SamplingParams that are not supported here.
_OF_VLLM = frozenset((
    "allowed_token_ids", "bad_words", "best_of", "detokenize", "early_stopping", "extra_args", "flat_logprobs",
    "guided_decoding", "include_stop_str_in_output", "length_penalty", "output_kind", "prompt_logprobs",
    "skip_special_tokens", "spaces_between_special_tokens", "truncate_prompt_tokens", "use_beam_search",
))  # fmt: skip

LogitsProcessor: TypeAlias = Callable[[list[int], NDArray[np.float32]], NDArray[np.float32]]
"""(tokens of the answer so far, logits [vocab] of the next one, its own to change) -> logits [vocab]. Equal arguments
must give equal logits: it is asked about drafted tokens as well, in any order."""


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen and when the answer ends. The defaults are greedy decoding.

    Order of application: logits_processors, logit_bias, min_tokens, repetition, presence and frequency penalty,
    structured_outputs, temperature, top_k, top_p, min_p; a token that `thinking_token_budget` forces comes regardless
    of these. The repetition penalty counts prompt and output, presence and frequency the output only.
    Raises `InvalidArgument` naming the field, the value and the allowed range, and for an option that is not listed.
    """

    temperature: float = 0.0  # 0 is argmax
    top_k: int = 0  # 0 is off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(
        default_factory=dict
    )  # token id -> added to its logit; -inf bans it
    seed: int | None = None  # equal seeds give equal answers; None: each sampled answer draws its own
    stop: tuple[str, ...] = ()  # ends the answer; not part of its text; a string or a list is taken too
    stop_token_ids: tuple[int, ...] = ()  # ends the answer; the id is its last token, without text; or a list
    max_tokens: int | None = None
    min_tokens: int = 0  # none of the first min_tokens tokens ends the answer
    logprobs: int | None = None  # None: none; n: of each token and of the n most likely
    ignore_eos: bool = False
    accept: Literal["match", "rejection"] = "match"
    n: int = 1  # answers to a prompt, each with a seed that is one more than that before; `LLM` gives several
    structured_outputs: StructuredOutputsParams | None = None  # the form of the answer; None: free
    logits_processors: tuple[
        LogitsProcessor, ...
    ] = ()  # change the raw logits, one after the other; or a list
    thinking_token_budget: int | None = None  # the most tokens of reasoning; then its end mark is forced
    reasoning: ReasoningMarks | None = None  # what marks it; chats of `LLM` and the server fill it in

    def __new__(cls, *_: object, **options: object) -> Self:
        """Refuse unknown options by name; the fields are set by `__init__`."""
        known = [each.name for each in fields(cls)]
        for name in options:
            if name not in known:
                if name in _OF_VLLM:
                    raise InvalidArgument(
                        f"the sampling option {name} is an option of vLLM that is not supported here: leave it out"
                    )
                raise InvalidArgument(f"the sampling option {name} is unknown; {one_of(name, known)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self._take_lists()
        for name in _FLOATS:
            object.__setattr__(self, name, _widened(getattr(self, name)))
        self._check_sampling()
        self._check_processors()
        self._check_ends()
        self._normalise()

    @property
    def draws_drafts(self) -> bool:
        """Whether drafts are drawn from their distribution under the rejection rule: the tokens of a seed follow them
        then.
        """
        return self.accept == "rejection" and self.temperature > 0

    def seeded(self) -> "SamplingParams":
        """Return these options with a seed: the one they have, or a drawn one. Greedy ones need none."""
        return self if self.seed is not None or self.temperature == 0 else replace(self, seed=draw_seed())

    def of_answer(self, index: int) -> "SamplingParams":
        """Return the options of one of `n` answers to a prompt: the seed of answer i is `seed + i`."""
        if self.seed is None:
            return replace(self, n=1)
        return replace(self, n=1, seed=(self.seed + index) % 2**64)

    def _take_lists(self) -> None:
        """One stop string, and lists, are what other libraries take."""
        for name in ("stop", "stop_token_ids", "logits_processors"):
            given: object = getattr(self, name)
            if isinstance(given, str) and name == "stop":
                object.__setattr__(self, name, (given,))
            elif isinstance(given, list):
                object.__setattr__(self, name, tuple(given))

    def _normalise(self) -> None:
        """Make every number Python's own: NumPy's integers wrap or overflow in the hash of the noise, for one."""
        for name in _INTEGERS:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, int(getattr(self, name)))
        for name in _FLOATS:
            object.__setattr__(self, name, float(getattr(self, name)))
        object.__setattr__(self, "stop_token_ids", tuple(map(int, self.stop_token_ids)))
        biases = {int(token): float(bias) for token, bias in self.logit_bias.items()}
        object.__setattr__(self, "logit_bias", biases)

    def _check_sampling(self) -> None:
        hot = _is_number(self.temperature) and 1e-6 <= self.temperature <= 1e6
        self._require(
            "temperature", hot or _is_zero(self.temperature), "0 (greedy) or a number from 1e-6 to 1e6"
        )
        self._require("top_k", _is_id(self.top_k), "0 (off) or a positive integer")
        probable = _is_number(self.top_p) and 0 < self.top_p <= 1
        self._require("top_p", probable, "a number above 0 and at most 1")
        self._require_number("min_p", self.min_p, 0, 1)
        drawn = self.seed is None or (_is_id(self.seed) and self.seed < 2**64)
        self._require("seed", drawn, "None (each answer draws one) or an integer from 0 to 2**64 - 1")
        self._require("accept", self.accept in ("match", "rejection"), "'match' or 'rejection'")

    def _check_processors(self) -> None:
        self._require_number("repetition_penalty", self.repetition_penalty, 0.01, 100)
        self._require_number("presence_penalty", self.presence_penalty, -2, 2)
        self._require_number("frequency_penalty", self.frequency_penalty, -2, 2)
        mapping = isinstance(self.logit_bias, Mapping)
        biases = mapping and all(_is_id(i) and _is_bias(bias) for i, bias in self.logit_bias.items())
        self._require(
            "logit_bias", biases, "a mapping of token ids to numbers that fp32 holds, or -inf (a ban)"
        )

        processors = isinstance(self.logits_processors, tuple) and all(map(callable, self.logits_processors))
        self._require("logits_processors", processors, "a list of callables of token ids and a row of logits")
        form = self.structured_outputs is None or isinstance(self.structured_outputs, StructuredOutputsParams)
        self._require("structured_outputs", form, "StructuredOutputsParams or None")

    def _check_ends(self) -> None:
        stops = isinstance(self.stop, tuple) and all(isinstance(stop, str) and stop for stop in self.stop)
        self._require("stop", stops, "a tuple of non-empty strings")
        ids = isinstance(self.stop_token_ids, tuple) and all(map(_is_id, self.stop_token_ids))
        self._require("stop_token_ids", ids, "a tuple of token ids, each 0 or more")
        limited = self.max_tokens is None or (_is_id(self.max_tokens) and self.max_tokens > 0)
        self._require("max_tokens", limited, "None or a positive integer")
        reachable = _is_id(self.min_tokens) and self.min_tokens <= (self.max_tokens or inf)
        self._require("min_tokens", reachable, f"an integer from 0 to max_tokens ({self.max_tokens})")
        self._require(
            "logprobs", self.logprobs is None or _is_id(self.logprobs), "None or an integer, 0 or more"
        )
        budget = self.thinking_token_budget
        self._require(
            "thinking_token_budget", budget is None or _is_id(budget), "None or an integer, 0 or more"
        )
        marks: object = self.reasoning
        self._require(
            "reasoning", marks is None or isinstance(marks, ReasoningMarks), "ReasoningMarks or None"
        )
        self._require("ignore_eos", isinstance(self.ignore_eos, bool), "True or False")
        several = _is_id(self.n) and 1 <= self.n <= MAX_ANSWERS
        self._require("n", several, f"an integer from 1 to {MAX_ANSWERS}")

    def _require_number(self, name: str, value: object, lowest: float, highest: float) -> None:
        within = _is_number(value) and lowest <= value <= highest
        self._require(name, within, f"a number from {lowest} to {highest}")

    def _require(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise InvalidArgument(f"{name} is {shown(getattr(self, name))}, expected {allowed}")


def draw_seed() -> int:
    """Return a fresh seed from the operating system; below 2**53, so that every JSON reader keeps all of its digits."""
    return int.from_bytes(os.urandom(8)) >> 11


def shown(value: object) -> str:
    """Return the value for a message: of what was given by mistake the beginning says enough."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write integers of thousands of digits
        return f"a {type(value).__name__} too long to show"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_zero(value: object) -> bool:
    return _is_number(value) and value == 0


def _is_bias(value: object) -> bool:
    value = _widened(value)
    return _is_number(value) and (abs(value) <= _HIGHEST or value == -inf)


def _widened(value: object) -> object:
    """NumPy compares a bound in the width of the value, and a bound that overflows there warns."""
    return float(value) if isinstance(value, np.floating) else value


def _is_id(value: object) -> TypeGuard[int]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 0)
