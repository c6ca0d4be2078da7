"""Keyed noise: a function of its key alone, with the right distribution, and quick to search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specruntime.sampling import noise
from specruntime.sampling.noise import NoiseStream, gumbel, gumbel_argmax

IDS = np.arange(50_000)
GOLDEN_GUMBEL = [-0.1643825589568504, -0.074861712884113, -0.3466409310967097]
GOLDEN_UNIFORM = 0.3983545708981806


def test_an_id_has_its_noise_whichever_ids_are_asked_for_with_it() -> None:
    whole = gumbel(7, 3, IDS)
    some = np.array([49_999, 5, 0, 12_345])
    assert np.array_equal(gumbel(7, 3, some), whole[some])


def test_noise_is_the_same_in_every_version() -> None:
    """Golden: a change here changes the answers of every seed."""
    assert gumbel(0, 0, np.array([0, 1, 2])) == pytest.approx(GOLDEN_GUMBEL, abs=1e-12)
    assert NoiseStream(0, 0, "accept").uniform() == GOLDEN_UNIFORM


@pytest.mark.parametrize("other", [(8, 3), (7, 4), (3, 7)])
def test_another_seed_or_position_has_unrelated_noise(other: tuple[int, int]) -> None:
    correlation = np.corrcoef(gumbel(7, 3, IDS), gumbel(*other, IDS))[0, 1]
    assert abs(correlation) < 5 / np.sqrt(IDS.size)


def test_neighbouring_ids_and_positions_have_unrelated_noise() -> None:
    whole = gumbel(7, 3, IDS)
    by_position = np.array([gumbel(7, position, IDS[:1])[0] for position in range(5000)])
    for series in (whole, by_position):
        assert abs(np.corrcoef(series[1:], series[:-1])[0, 1]) < 5 / np.sqrt(series.size)


def test_noise_is_standard_gumbel() -> None:
    values = gumbel(1, 2, IDS)
    assert values.mean() == pytest.approx(np.euler_gamma, abs=0.03)
    assert values.std() == pytest.approx(np.pi / np.sqrt(6), abs=0.03)
    uniform = np.sort(np.exp(-np.exp(-values)))
    kolmogorov = np.abs(uniform - (np.arange(IDS.size) + 0.5) / IDS.size).max()
    assert kolmogorov < 1.95 / np.sqrt(IDS.size)  # 99.9 %


@pytest.mark.parametrize("word", [0, 2**64 - 1])
def test_noise_is_finite_for_the_extreme_words(word: int) -> None:
    assert np.isfinite(noise._gumbel_of(np.array([word], np.uint64))).all()


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.floats(0.01, 30), st.integers(0, 5))
def test_the_quick_argmax_is_the_argmax(seed: int, position: int, spread: float, peaks: int) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(20_000) * spread).astype(np.float32)
    logits[:peaks] += np.float32(20)
    logits -= logits.max()
    ids = IDS[rng.integers(2, size=IDS.size).astype(bool)][: logits.size]
    whole = int(np.argmax(logits + gumbel(seed, position, ids)))
    assert gumbel_argmax(logits, seed, position, ids) == whole


@pytest.mark.parametrize("size", [1, 8191, 8192, 8193, 16384])
def test_the_quick_argmax_is_the_argmax_at_the_edges_of_a_chunk(size: int) -> None:
    for position in range(30):
        logits = np.linspace(0, -3, size).astype(np.float32)
        whole = int(np.argmax(logits + gumbel(0, position, IDS[:size])))
        assert gumbel_argmax(logits, 0, position, IDS[:size]) == whole


def test_argmax_with_noise_draws_from_the_law() -> None:
    law = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    ids = np.array([3, 17, 18, 200, 49_151])
    logits = np.log(law).astype(np.float32)
    draws = 20_000
    counts = np.bincount([gumbel_argmax(logits, 9, position, ids) for position in range(draws)], minlength=5)
    assert ((counts - draws * law) ** 2 / (draws * law)).sum() < 18.5  # 99.9 %, 4 degrees of freedom


def test_a_stream_repeats_itself_and_differs_by_key() -> None:
    def numbers(*key: object) -> list[float]:
        stream = NoiseStream(*key)  # type: ignore[arg-type]
        return [stream.uniform() for _ in range(20)]

    assert numbers(1, 2, "accept") == numbers(1, 2, "accept")
    keys = [(1, 2, "accept"), (2, 2, "accept"), (1, 3, "accept"), (1, 2, "draft"), (2, 1, "accept")]
    assert len({number for key in keys for number in numbers(*key)}) == 20 * len(keys)


def test_a_stream_is_uniform() -> None:
    stream = NoiseStream(4, 0, "accept")
    numbers = np.sort([stream.uniform() for _ in range(20_000)])
    assert numbers[0] >= 0
    assert numbers[-1] < 1
    assert np.abs(numbers - (np.arange(numbers.size) + 0.5) / numbers.size).max() < 1.95 / np.sqrt(
        numbers.size
    )


class Fixed(NoiseStream):
    def __init__(self, u: float) -> None:
        super().__init__(0, 0, "")
        self._u = u

    def uniform(self) -> float:
        return self._u


def test_below_is_strict() -> None:
    assert not Fixed(0.0).below(0.0)
    assert Fixed(np.nextafter(1, 0)).below(1.0)
    assert not Fixed(0.5).below(0.5)


def test_categorical_never_draws_a_weight_of_zero() -> None:
    weights = np.array([0, 0.3, 0, 0.7, 0], np.float32)
    edges = [0.0, 0.29, 0.31, np.nextafter(1, 0)]
    assert [Fixed(u).categorical(weights) for u in edges] == [1, 1, 3, 3]


def test_categorical_takes_weights_that_do_not_sum_to_one() -> None:
    assert [Fixed(u).categorical(np.array([1.0, 3.0])) for u in (0.24, 0.26)] == [0, 1]
    assert Fixed(1.0).categorical(np.array([1.0, 3.0, 0.0])) == 1  # a product rounded up to the total
