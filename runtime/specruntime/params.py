"""The options of one answer and their ranges. Knows nothing of how they are applied."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite, isinf
from numbers import Integral, Real
from typing import Literal

from specruntime.errors import InvalidArgument

MAX_SEED = 2**64 - 1


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen and when the answer ends. The defaults are greedy decoding.

    Order of application: logit_bias, min_tokens, repetition, presence and frequency penalty, temperature, top_k, top_p,
    min_p. The repetition penalty counts prompt and output, presence and frequency the output only.
    Raises `InvalidArgument` naming the field, the value and the allowed range.
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
    seed: int = 0
    stop: tuple[str, ...] = ()  # ends the answer; not part of its text
    stop_token_ids: tuple[int, ...] = ()  # ends the answer; the id is its last token, without text
    max_tokens: int | None = None
    min_tokens: int = 0  # none of the first min_tokens tokens ends the answer
    logprobs: int | None = None  # None: none; n: of each token and of the n most likely
    ignore_eos: bool = False
    accept: Literal["match", "rejection"] = "match"

    def __post_init__(self) -> None:
        self._check_law()
        self._check_processors()
        self._check_ends()

    def _check_law(self) -> None:
        temperature = _real("temperature", self.temperature, "0 (greedy) or 1e-6 to 1e6")
        _require(
            temperature == 0 or 1e-6 <= temperature <= 1e6,
            "temperature",
            temperature,
            "0 (greedy) or 1e-6 to 1e6",
        )
        _integer("top_k", self.top_k, 0, None, "0 (off) or a positive integer")
        _require(0 < _real("top_p", self.top_p, "(0, 1]") <= 1, "top_p", self.top_p, "(0, 1]")
        _require(0 <= _real("min_p", self.min_p, "[0, 1]") <= 1, "min_p", self.min_p, "[0, 1]")
        _integer("seed", self.seed, 0, MAX_SEED, "an integer from 0 to 2**64 - 1")
        _require(self.accept in ("match", "rejection"), "accept", self.accept, "'match' or 'rejection'")

    def _check_processors(self) -> None:
        penalty = _real("repetition_penalty", self.repetition_penalty, "[0.01, 100]")
        _require(0.01 <= penalty <= 100, "repetition_penalty", penalty, "[0.01, 100]; 1 is off")
        for name, value in (
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ):
            _require(-2 <= _real(name, value, "[-2, 2]") <= 2, name, value, "[-2, 2]; 0 is off")
        _require(
            isinstance(self.logit_bias, Mapping),
            "logit_bias",
            self.logit_bias,
            "a mapping of token id to bias",
        )
        for token, bias in self.logit_bias.items():
            _integer("logit_bias", token, 0, None, "token ids of 0 or more as keys")
            allowed = "-inf (ban) or a finite number for each token"
            number = _is_number(bias)
            _require(
                number and (isfinite(bias) or (isinf(bias) and bias < 0)),
                f"logit_bias[{token}]",
                bias,
                allowed,
            )

    def _check_ends(self) -> None:
        stops = self.stop if isinstance(self.stop, tuple) else None
        allowed = "a tuple of non-empty strings"
        _require(
            stops is not None and all(isinstance(s, str) and s for s in stops), "stop", self.stop, allowed
        )
        _require(
            isinstance(self.stop_token_ids, tuple),
            "stop_token_ids",
            self.stop_token_ids,
            "a tuple of token ids",
        )
        for token in self.stop_token_ids:
            _integer("stop_token_ids", token, 0, None, "token ids of 0 or more")
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, None, "None or a positive integer")
        _integer("min_tokens", self.min_tokens, 0, self.max_tokens, f"0 to max_tokens ({self.max_tokens})")
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0, None, "None or an integer of 0 or more")
        _require(isinstance(self.ignore_eos, bool), "ignore_eos", self.ignore_eos, "True or False")


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise InvalidArgument(f"{name} is {value!r}, expected {allowed}")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _real(name: str, value: object, allowed: str) -> float:
    _require(_is_number(value), name, value, allowed)
    return float(value)  # type: ignore[arg-type]


def _integer(name: str, value: object, lowest: int, highest: int | None, allowed: str) -> None:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    _require(whole and lowest <= value and (highest is None or value <= highest), name, value, allowed)  # type: ignore[operator]
