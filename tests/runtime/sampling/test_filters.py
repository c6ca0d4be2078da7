"""Temperature, top-k, top-p and min-p: bit for bit the rule over the whole sorted row, and the textbook rule itself."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specruntime.errors import EngineFailed, InvalidArgument
from specruntime.sampling.filters import Warper, best, probabilities, top_places
from specruntime.sampling.params import SamplingParams

VOCAB = 49_152
Row = NDArray[np.float32]


def sorted_reference(row: Row, params: SamplingParams) -> tuple[NDArray[np.int64], Row]:
    """Ids and logits kept, from a stable sort of the whole row by descending logit: ties go to the lowest id."""
    logits = (row - row.max()) / np.float32(params.temperature)
    order = np.argsort(-logits, stable=True)
    if params.top_k:
        order = order[: params.top_k]
    if params.top_p < 1:
        exact = np.round(np.exp(logits[order]).astype(np.float64) * 2**34) / 2**34
        before = np.concatenate([[0.0], np.cumsum(exact)[:-1]])
        order = order[before < params.top_p * exact.sum()]
    if params.min_p:
        order = order[logits[order] >= np.float32(np.log(params.min_p))]
    ids = np.sort(order[np.isfinite(logits[order])])
    return ids, logits[ids]


def assert_equal_to_sorting(row: Row, params: SamplingParams) -> None:
    kept = Warper(params, row.size).candidates(row)
    ids, logits = sorted_reference(row, params)
    assert np.array_equal(kept.ids, ids)
    assert kept.logits.tobytes() == logits.tobytes()


OPTIONS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([1e-6, 0.3, 0.7, 1.0, 2.0, 100.0]),
    top_k=st.sampled_from([0, 1, 2, 7, 50, 10**9]),
    top_p=st.one_of(st.just(1.0), st.floats(1e-6, 1.0, exclude_min=True), st.just(1 - 1e-12)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
)
SPREADS = st.sampled_from([0.0, 0.01, 1.0, 4.0, 30.0])


@given(OPTIONS, SPREADS, st.integers(1, 300), st.integers(0, 2**32), st.booleans(), st.floats(0, 0.9))
def test_equal_to_sorting_for_any_row(
    params: SamplingParams, spread: float, size: int, seed: int, coarse: bool, banned: float
) -> None:
    rng = np.random.default_rng(seed)
    row = (rng.standard_normal(size) * spread).astype(np.float32)
    row = np.round(row) if coarse else row  # ties
    row[rng.random(size) < banned] = -np.inf
    row[rng.integers(size)] = 1
    assert_equal_to_sorting(row, params)


@pytest.mark.parametrize("spread", [0.1, 1, 2, 4, 8])
@pytest.mark.parametrize(
    "options", [{"top_p": 0.9}, {"top_p": 0.9, "top_k": 50}, {"top_k": 20_000}, {"min_p": 0.05}]
)
def test_equal_to_sorting_at_the_size_of_a_vocabulary(spread: float, options: dict[str, float]) -> None:
    rng = np.random.default_rng(3)
    params = replace(SamplingParams(temperature=0.7), **options)  # type: ignore[arg-type]
    for _ in range(5):
        row = (rng.standard_normal(VOCAB) * spread).astype(np.float32)
        assert_equal_to_sorting(row, params)
        assert_equal_to_sorting(np.round(row, 1), params)


@given(SPREADS, st.integers(1, 40), st.integers(0, 2**32), st.floats(0.01, 0.999))
def test_top_p_keeps_the_fewest_tokens_that_hold_it(
    spread: float, size: int, seed: int, top_p: float
) -> None:
    row = (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)
    kept = Warper(SamplingParams(temperature=1.0, top_p=top_p), size).candidates(row)
    law = np.exp(row.astype(np.float64))
    law /= law.sum()
    assert law[kept.ids].sum() >= top_p - 1e-6
    assert law[kept.ids].sum() - law[kept.ids].min() < top_p + 1e-6
    assert np.delete(row, kept.ids).max(initial=-np.inf) <= row[kept.ids].min()


@given(SPREADS, st.integers(1, 40), st.integers(0, 2**32), st.floats(0.001, 1))
def test_min_p_keeps_what_is_at_least_that_share_of_the_best(
    spread: float, size: int, seed: int, min_p: float
) -> None:
    row = (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)
    kept = set(Warper(SamplingParams(temperature=1.0, min_p=min_p), size).candidates(row).ids.tolist())
    share = np.exp(row.astype(np.float64) - row.max())
    assert set(np.flatnonzero(share >= min_p * (1 + 1e-5)).tolist()) <= kept
    assert kept <= set(np.flatnonzero(share >= min_p * (1 - 1e-5)).tolist())


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 3}, [1, 2, 3]),
        ({"top_k": 1}, [2]),
        ({"top_p": 0.5}, [1, 2]),
        ({"top_p": 0.01}, [2]),
        ({"min_p": 0.9}, [2]),
        ({"top_k": 4, "top_p": 0.99}, [1, 2, 3, 5]),
        ({"top_p": 0.999999}, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_ties_go_to_the_lowest_id(options: dict[str, float], kept: list[int]) -> None:
    row = np.array([0, 1, 2, 1, 0, 1], np.float32)
    params = replace(SamplingParams(temperature=1.0), **options)  # type: ignore[arg-type]
    assert Warper(params, row.size).candidates(row).ids.tolist() == kept


def test_top_p_counts_the_tokens_that_top_k_kept() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    params = SamplingParams(temperature=1.0, top_k=2, top_p=0.55)
    assert Warper(params, 4).candidates(row).ids.tolist() == [0]  # 0.4 / 0.7 is above 0.55


@given(OPTIONS, SPREADS, st.integers(1, 100), st.integers(0, 2**32))
def test_the_law_is_the_softmax_of_the_candidates(
    params: SamplingParams, spread: float, size: int, seed: int
) -> None:
    row = (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)
    kept = Warper(params, size).candidates(row)
    law = probabilities(kept, size)
    weights = np.exp((row[kept.ids].astype(np.float64) - row.max()) / params.temperature)
    assert law.dtype == np.float32
    assert law[kept.ids] == pytest.approx(weights / weights.sum(), abs=2e-5)
    assert not np.delete(law, kept.ids).any()


def test_the_row_is_left_as_it_is_and_the_candidates_outlive_the_next_row() -> None:
    rng = np.random.default_rng(0)
    row, other = rng.standard_normal((2, 1000)).astype(np.float32)
    for options in ({}, {"top_p": 0.9}, {"top_k": 900, "top_p": 0.9}):
        warper = Warper(replace(SamplingParams(temperature=1.0), **options), 1000)  # type: ignore[arg-type]
        before, kept = row.copy(), warper.candidates(row)
        copies = kept.ids.copy(), kept.logits.copy()
        warper.candidates(other)
        assert np.array_equal(row, before)
        assert np.array_equal(kept.ids, copies[0])
        assert np.array_equal(kept.logits, copies[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_the_engine_broke_is_reported(bad: float) -> None:
    row = np.array([0, bad, 1], np.float32)
    with pytest.raises(EngineFailed, match="expected finite"):
        Warper(SamplingParams(temperature=1.0), 3).candidates(row)
    with pytest.raises(EngineFailed, match="expected finite"):
        best(row)


def test_a_row_without_a_token_left_is_reported() -> None:
    row = np.full(3, -np.inf, np.float32)
    with pytest.raises(InvalidArgument, match="every token is banned"):
        Warper(SamplingParams(temperature=1.0), 3).candidates(row)
    with pytest.raises(InvalidArgument, match="every token is banned"):
        best(row)


@given(st.integers(1, 60), st.integers(0, 2**32), SPREADS, st.data())
def test_top_places_are_the_first_of_the_sorted_row(
    size: int, seed: int, spread: float, data: st.DataObject
) -> None:
    row = np.round(np.random.default_rng(seed).standard_normal(size) * spread, 1).astype(np.float32)
    count = data.draw(st.integers(0, size))
    assert top_places(row, count).tolist() == sorted(np.argsort(-row, stable=True)[:count].tolist())
