"""Options of an answer: every value outside its range is refused with its field, the value and the range."""

import copy
import dataclasses
import json
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from specruntime.errors import InvalidArgument
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.reasoning import ReasoningMarks
from specruntime.sampling.structured import StructuredOutputsParams

NAN, INF = float("nan"), float("inf")
REFUSED: dict[str, list[object]] = {
    "temperature": [-0.1, 1e-9, 1e7, NAN, INF, "1", None, True],
    "top_k": [-1, 1.5, "2", None, True],
    "top_p": [0, -0.1, 1.1, NAN, "1", None],
    "min_p": [-0.1, 1.1, NAN, None],
    "repetition_penalty": [0, -1, 101, NAN, INF, None],
    "presence_penalty": [-2.1, 2.1, NAN, None],
    "frequency_penalty": [-2.1, 2.1, NAN, None],
    "logit_bias": [
        [(1, 2.0)],
        {-1: 0.0},
        {"1": 0.0},
        {1: NAN},
        {1: INF},
        {1: "2"},
        {1.5: 0.0},
        {1: 1e39},
        {1: -1e39},
        {1: 3.4028235677973366e38},
        {1: 10**400},
        {1: -(10**400)},
    ],
    "seed": [-1, 2**64, 0.5, "1", True],
    "stop": ["", [""], ("",), (3,), None],
    "stop_token_ids": [[-1], (-1,), (0.5,), 3, None],
    "max_tokens": [0, -1, 1.5, "3"],
    "min_tokens": [-1, 0.5, None],
    "logprobs": [-1, 1.5, "3", True],
    "ignore_eos": [0, None, "yes"],
    "accept": ["typical", None, ""],
    "n": [0, 17, None, True, "1"],
    "structured_outputs": [{"regex": "a"}, "json", True],
    "logits_processors": [None, (3,), print, "abc"],
    "thinking_token_budget": [-1, 0.5, "3", True],
    "reasoning": [True, "<think>", ("<think>", "</think>")],
}
ALLOWED: dict[str, list[object]] = {
    "temperature": [0, 0.0, 1e-6, 1, 1.5, np.float32(0.7)],
    "top_k": [0, 1, 10**9, np.int64(5)],
    "top_p": [1e-9, 1, 1.0],
    "min_p": [0, 1],
    "repetition_penalty": [0.01, 1, 100],
    "presence_penalty": [-2, 2],
    "frequency_penalty": [-2, 2],
    "logit_bias": [{}, {0: -INF, 5: 100}, {0: 3.4e38, 1: -3.4e38, 10**30: 1}],
    "seed": [None, 0, 2**64 - 1, np.int64(5), np.uint64(2**64 - 1)],
    "stop": [(), ("a", "bc")],
    "stop_token_ids": [(), (0, 5)],
    "max_tokens": [None, 1],
    "min_tokens": [0, 7],
    "logprobs": [None, 0, 5],
    "ignore_eos": [True, False],
    "accept": ["match", "rejection"],
    "n": [1, 16, np.int64(1)],
    "structured_outputs": [None, StructuredOutputsParams(regex="a+")],
    "logits_processors": [(), (max,)],
    "thinking_token_budget": [None, 0, 5, np.int64(5)],
    "reasoning": [None, ReasoningMarks("<think>", "</think>", (3,))],
}


def params_with(name: str, value: Any) -> SamplingParams:
    return dataclasses.replace(SamplingParams(), **{name: value})


def test_every_field_has_its_cases() -> None:
    names = [field.name for field in dataclasses.fields(SamplingParams)]
    assert names == list(SamplingParams.__dataclass_fields__)
    assert set(names) == set(REFUSED) == set(ALLOWED)


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in REFUSED.items() for v in values])
def test_a_value_outside_the_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        params_with(name, value)
    message = str(caught.value)
    assert message.startswith(name)
    assert ", expected " in message
    assert "\n" not in message


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in ALLOWED.items() for v in values])
def test_the_edges_of_a_range_are_allowed(name: str, value: object) -> None:
    assert getattr(params_with(name, value), name) == value


@pytest.mark.parametrize("number", [np.int8, np.int64, np.uint64])
def test_integers_of_numpy_become_pythons(number: type[np.integer[Any]]) -> None:
    five: Any = number(5)
    params = SamplingParams(
        top_k=five, seed=five, max_tokens=five, min_tokens=five, logprobs=five, stop_token_ids=(five,)
    )
    values = (params.top_k, params.seed, params.max_tokens, params.min_tokens, params.logprobs)
    assert values == (5,) * 5 and params.stop_token_ids == (5,)
    assert {type(value) for value in (*values, *params.stop_token_ids)} == {int}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("half", [Fraction(1, 2), np.float16(0.5), np.float32(0.5), np.float64(0.5)])
def test_any_real_number_becomes_pythons(half: Any) -> None:
    names = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    params = SamplingParams(**dict.fromkeys(names, half), logit_bias={np.int64(3): half})  # type: ignore[dict-item]
    assert [getattr(params, name) for name in names] == [0.5] * len(names)
    assert {type(getattr(params, name)) for name in names} == {float}
    ((token, bias),) = params.logit_bias.items()
    assert (type(token), type(bias)) == (int, float)


def test_biases_are_those_of_the_construction() -> None:
    given = {3: 1.0}
    params = SamplingParams(logit_bias=given)
    given[3] = float("nan")
    assert params.logit_bias == {3: 1.0}


def test_the_message_shows_the_value_and_the_range() -> None:
    with pytest.raises(InvalidArgument, match=r"^top_p is 1\.5, expected a number above 0 and at most 1$"):
        SamplingParams(top_p=1.5)


@pytest.mark.parametrize("value", [{1: 10**5000}, dict.fromkeys(range(10**4), "x"), {1: 10**400}])
def test_a_message_is_short_whatever_was_given(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^logit_bias is .*, expected a mapping") as caught:
        params_with("logit_bias", value)
    assert len(str(caught.value)) < 400


def test_min_tokens_cannot_exceed_max_tokens() -> None:
    SamplingParams(min_tokens=4, max_tokens=4)
    with pytest.raises(InvalidArgument, match=r"^min_tokens is 5, expected an integer from 0 to max_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4)


def test_the_options_cannot_be_changed_afterwards() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().seed = 1  # type: ignore[misc]


def test_the_default_is_greedy() -> None:
    assert SamplingParams().temperature == 0


def test_a_stop_string_and_lists_are_taken_as_tuples() -> None:
    params = SamplingParams(stop="end", stop_token_ids=[1, 2])  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids) == (("end",), (1, 2))
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


def test_each_answer_without_a_seed_draws_one_that_json_keeps() -> None:
    seeds = [SamplingParams(temperature=1).seeded().seed for _ in range(50)]
    assert len(set(seeds)) == 50
    assert all(seed is not None and json.loads(json.dumps(float(seed))) == seed for seed in seeds)
    for params in (SamplingParams(temperature=1, seed=7), SamplingParams()):
        assert params.seeded() == params


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n": 17}, "^n is 17, expected an integer from 1 to 16"),
        ({"best_of": 2}, "best_of is an option of vLLM that is not supported here: leave it out$"),
        ({"use_beam_search": True}, "use_beam_search is an option of vLLM"),
        ({"guided_decoding": None}, "guided_decoding is an option of vLLM"),
        ({"temprature": 1}, "temprature is unknown; allowed: .*did you mean 'temperature'"),
    ],
)
def test_options_of_others_are_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        SamplingParams(**options)


def test_params_can_be_copied_and_pickled() -> None:
    params = SamplingParams(temperature=0.5, stop=("x",))
    assert copy.deepcopy(params) == pickle.loads(pickle.dumps(params)) == params
