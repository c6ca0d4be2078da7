"""A Sampler chooses by its options, the noise of its seed and the tokens before the row, and by nothing else."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specruntime.errors import EngineFailed, InvalidArgument
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler, token_logprobs

VOCAB, EOS = 12, (11,)
PROMPT = (1, 2, 2, 3)
ALONE: dict[str, dict[str, Any]] = {
    "bias": {"logit_bias": {0: 1.5, 7: -1.0, 4: -np.inf}},
    "min_tokens": {"min_tokens": 6, "stop_token_ids": (5,)},
    "repetition": {"repetition_penalty": 1.7},
    "presence": {"presence_penalty": 1.1},
    "frequency": {"frequency_penalty": 0.6},
    "top_k": {"temperature": 1.0, "top_k": 3},
    "top_p": {"temperature": 1.0, "top_p": 0.7},
    "min_p": {"temperature": 1.0, "min_p": 0.2},
}
COMBINED: dict[str, Any] = {key: value for options in ALONE.values() for key, value in options.items()}
CASES = {
    **ALONE,
    "combined": COMBINED,
    "combined greedy": {**COMBINED, "temperature": 0.0},
    "hot": {"temperature": 1.3},
}


def row_of(*key: int) -> NDArray[np.float32]:
    return (np.random.default_rng(key).standard_normal(VOCAB) * 2).astype(np.float32)


def make(**options: Any) -> Sampler:
    return Sampler(SamplingParams(**{"seed": 0, **options}), VOCAB, EOS, PROMPT)


def test_no_number_is_too_long_for_its_refusal() -> None:
    options: list[dict[str, Any]] = [
        {"logit_bias": {10**5000: 1.0}}, {"stop_token_ids": (10**5000,)}, {"logprobs": 10**5000},
    ]  # fmt: skip
    for option in options:
        with pytest.raises(
            InvalidArgument, match=r"too long to show( is outside the bundle's vocabulary)?, expected"
        ):
            make(**option)


@pytest.mark.parametrize("options", [{"logit_bias": {10**30: 1.0}}, {"stop_token_ids": (10**30,)}])
def test_a_token_id_of_any_size_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidArgument,
        match=rf"token id {10**30} is outside the bundle's vocabulary, expected 0 to {VOCAB - 1}",
    ):
        make(**options)


@pytest.mark.parametrize("number", [np.int64, np.uint64])
def test_a_seed_of_numpy_draws_as_pythons_does(number: type[Any]) -> None:
    for accept in ("match", "rejection"):
        theirs, ours = (make(temperature=1.0, seed=seed, accept=accept) for seed in (number(5), 5))
        rows = [row_of(i) for i in range(20)]
        assert [theirs.sample(row) for row in rows] == [ours.sample(row) for row in rows]
        assert theirs.stream(3, "draft").uniform() == ours.stream(3, "draft").uniform()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bias", [3.4e38, -3.4e38])
@pytest.mark.parametrize("penalty", [0.01, 0.5, 100])
@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1.0])
def test_the_largest_bias_stays_finite_under_a_penalty(
    bias: float, penalty: float, temperature: float
) -> None:
    biased = make(logit_bias={1: bias}, repetition_penalty=penalty, temperature=temperature)
    law = biased.distribution(row_of(0))
    assert np.isfinite(law).all() and law[1] == (1 if bias > 0 else 0)
    assert (biased.sample(row_of(0)) == 1) == (bias > 0)


def test_a_token_that_alone_is_left_is_chosen_however_low_it_is() -> None:
    alone = dict.fromkeys(range(VOCAB), -np.inf) | {1: -3.4e38}
    assert make(logit_bias=alone, repetition_penalty=100).sample(row_of(0)) == 1


def test_infinite_logits_are_not_hidden_by_a_penalty() -> None:
    row = row_of(0)
    row[1] = np.inf
    with pytest.raises(EngineFailed):
        make(repetition_penalty=1.5).sample(row)


def naive_law(row: NDArray[np.float32], params: SamplingParams, output: tuple[int, ...]) -> list[float]:
    """The distribution after prompt + output, token by token in plain Python."""
    logits = [float(x) for x in row[:VOCAB]]
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    if len(output) < params.min_tokens:
        for token in (*params.stop_token_ids, *(() if params.ignore_eos else EOS)):
            logits[token] = -np.inf
    for token in {*PROMPT, *output}:
        scale = params.repetition_penalty
        logits[token] = logits[token] / scale if logits[token] > 0 else logits[token] * scale
    for token in set(output):
        logits[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
    ranked = sorted(range(VOCAB), key=lambda token: (-logits[token], token))
    if params.temperature == 0:
        return [float(token == ranked[0]) for token in range(VOCAB)]
    weight = [np.exp((logit - max(logits)) / params.temperature) for logit in logits]
    ranked = ranked[: params.top_k or VOCAB]
    total, held, nucleus = sum(weight[token] for token in ranked), 0.0, []
    for token in ranked:
        if held < params.top_p * total:
            nucleus.append(token)
        held += weight[token]
    kept = [token for token in nucleus if weight[token] >= params.min_p * weight[ranked[0]]]
    total = sum(weight[token] for token in kept)
    return [float(weight[token] / total) if token in kept else 0.0 for token in range(VOCAB)]


@pytest.mark.parametrize("case", CASES)
def test_the_law_is_that_of_the_naive_reference(case: str) -> None:
    sampler = make(**CASES[case])
    output: tuple[int, ...] = ()
    for position in range(8):
        row = row_of(position)
        assert sampler.distribution(row) == pytest.approx(naive_law(row, sampler.params, output), abs=1e-5)
        output = (*output, sampler.sample(row))
        sampler.commit(output[-1:])
        assert sampler.position == position + 1


@pytest.mark.parametrize("case", CASES)
def test_pending_tokens_count_exactly_as_committed_ones(case: str) -> None:
    output = (4, 4, 1, 9, 0, 4, 5, 11)
    for committed in range(len(output) + 1):
        sampler = make(**CASES[case])
        sampler.commit(output[:committed])
        for pending in range(len(output) - committed + 1):
            plain = make(**CASES[case])
            plain.commit(output[: committed + pending])
            row = row_of(committed, pending)
            before = output[committed : committed + pending]
            assert sampler.sample(row, before) == plain.sample(row)
            assert np.array_equal(sampler.distribution(row, before), plain.distribution(row))


@pytest.mark.parametrize("case", CASES)
def test_judging_a_row_changes_neither_the_sampler_nor_the_row(case: str) -> None:
    sampler = make(**CASES[case])
    sampler.commit((4, 1))
    row = row_of(0)
    before, first = row.copy(), (sampler.sample(row, (3,)), sampler.distribution(row, (3,)))
    sampler.sample(row_of(1), (7, 7, 7))
    sampler.distribution(row_of(2), (7, 8))
    assert sampler.position == 2
    assert sampler.sample(row, (3,)) == first[0]
    assert np.array_equal(sampler.distribution(row, (3,)), first[1])
    assert np.array_equal(row, before)


@pytest.mark.parametrize("case", CASES)
def test_padding_beyond_the_vocabulary_is_never_chosen(case: str) -> None:
    sampler = make(**CASES[case])
    for position in range(20):
        row = row_of(position)
        padded = np.concatenate([row, np.full(5, 1e4, np.float32)])
        assert sampler.sample(padded) == sampler.sample(row)
        assert np.array_equal(sampler.distribution(padded), sampler.distribution(row))


@pytest.mark.parametrize("case", CASES)
def test_samples_come_from_the_law(case: str) -> None:
    sampler = make(**CASES[case])
    row = row_of(5)
    law = np.array(naive_law(row, sampler.params, ()))
    free = replace(
        sampler.params, min_tokens=0, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0
    )
    sampler = Sampler(free, VOCAB, EOS, PROMPT)
    law = np.array(naive_law(row, free, ()))
    draws = 5000
    counts = np.zeros(VOCAB)
    for _ in range(draws):
        token = sampler.sample(row)
        counts[token] += 1
        sampler.commit((token,))
    assert not counts[law == 0].any()
    expected = draws * law[law > 0]
    assert ((counts[law > 0] - expected) ** 2 / expected).sum() < 31.3  # 99.9 %, 11 degrees of freedom


def test_temperature_zero_takes_the_lowest_id_of_a_tie() -> None:
    row = np.array([1, 3, 3, 0, 3, 0, 0, 0, 0, 0, 0, 0], np.float32)
    assert make().sample(row) == 1
    assert make(logit_bias={1: -0.5}).sample(row) == 2
    assert make().distribution(row).tolist() == [0, 1] + [0] * 10


def test_equal_seeds_give_equal_tokens_and_others_differ() -> None:
    def answer(seed: int) -> list[int]:
        sampler = make(temperature=1.5, seed=seed)
        tokens: list[int] = []
        for position in range(40):
            tokens.append(sampler.sample(row_of(position)))
            sampler.commit(tokens[-1:])
        return tokens

    assert answer(3) == answer(3)
    assert answer(3) != answer(4)


def test_close_laws_agree_often_at_the_same_position() -> None:
    """Gumbel coupling: the chance to agree is well above that of two independent draws."""
    sampler = make(temperature=1.0)
    rng = np.random.default_rng(0)
    agreed, independent = 0, 0.0
    for position in range(2000):
        row = row_of(position)
        close = row + rng.standard_normal(VOCAB).astype(np.float32) * np.float32(0.3)
        agreed += sampler.sample(row) == sampler.sample(close)
        independent += float(sampler.distribution(row) @ sampler.distribution(close))
        sampler.commit((0,))
    assert agreed / 2000 > 0.8
    assert independent / 2000 < 0.6


@pytest.mark.parametrize(
    ("options", "suffices"),
    [
        ({}, True),
        ({"top_k": 5, "top_p": 0.5, "min_p": 0.1, "seed": 4}, True),  # the best token is always kept
        ({"stop": ("a",), "stop_token_ids": (3,), "max_tokens": 5, "ignore_eos": True}, True),
        ({"temperature": 0.5}, False),
        ({"logprobs": 0}, False),
        ({"logit_bias": {1: 1.0}}, False),
        ({"min_tokens": 1}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"presence_penalty": 0.1}, False),
        ({"frequency_penalty": 0.1}, False),
    ],
)
def test_greedy_ids_suffice_when_nothing_changes_the_argmax(options: dict[str, Any], suffices: bool) -> None:
    sampler = make(**options)
    assert sampler.greedy_ids_suffice is suffices
    if suffices:
        assert all(sampler.sample(row_of(i)) == int(np.argmax(row_of(i))) for i in range(20))


def test_min_tokens_leaves_eos_alone_where_eos_does_not_end_the_answer() -> None:
    row = np.zeros(VOCAB, np.float32)
    row[11] = 5
    assert make(min_tokens=2).sample(row) != 11
    assert make(min_tokens=2, ignore_eos=True).sample(row) == 11
    assert make(min_tokens=2).sample(row, (1, 1)) == 11


@pytest.mark.parametrize(
    ("options", "prompt", "named"),
    [
        ({"logit_bias": {12: 1.0}}, (), "logit_bias: token id 12 is outside"),
        ({"stop_token_ids": (99,)}, (), "stop_token_ids and eos_token_ids: token id 99 is outside"),
        ({}, (3, 12), "prompt: token id 12 is outside"),
        ({}, (-1,), "prompt: token id -1 is outside"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(
    options: dict[str, Any], prompt: tuple[int, ...], named: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"{named} the bundle's vocabulary, expected 0 to 11"):
        Sampler(SamplingParams(**options), VOCAB, EOS, prompt)


def test_more_logprobs_than_tokens_are_refused() -> None:
    make(logprobs=VOCAB)
    with pytest.raises(InvalidArgument, match="logprobs is 13, expected at most the vocabulary, 12"):
        make(logprobs=VOCAB + 1)


@pytest.mark.parametrize("shape", [(VOCAB - 1,), (1, VOCAB)])
def test_a_row_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match="the logits row has shape"):
        make().sample(np.zeros(shape, np.float32))


def test_streams_are_keyed_by_seed_position_and_purpose() -> None:
    first = make(seed=1).stream(4, "accept").uniform()
    assert make(seed=1, temperature=1.0).stream(4, "accept").uniform() == first
    others = [
        make(seed=2).stream(4, "accept"),
        make(seed=1).stream(5, "accept"),
        make(seed=1).stream(4, "draft"),
    ]
    assert first not in [stream.uniform() for stream in others]


@given(st.integers(0, 2**32), st.integers(1, 60), st.floats(0, 20), st.data())
def test_logprobs_are_the_log_softmax_of_the_real_row(
    seed: int, size: int, spread: float, data: st.DataObject
) -> None:
    row = np.round(np.random.default_rng(seed).standard_normal(size) * spread, 1).astype(np.float32)
    token, top = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size))
    found = token_logprobs(np.concatenate([row, np.full(3, 1e4, np.float32)]), token, top, size)
    exact = row.astype(np.float64)
    exact -= exact.max()
    exact -= np.log(np.exp(exact).sum())
    ranked = sorted(range(size), key=lambda i: (-row[i], i))[:top]
    assert found.token == token
    assert found.logprob == pytest.approx(exact[token], abs=1e-5)
    assert [i for i, _ in found.top] == ranked
    assert [logprob for _, logprob in found.top] == pytest.approx(exact[ranked], abs=1e-5)
