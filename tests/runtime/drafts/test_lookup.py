"""Prompt lookup equals its definition, and is cheap enough to be asked every round."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from specruntime.drafts import NgramDraft, Room, new_draft
from specruntime.drafts.lookup import NgramProposer, find_continuation
from specruntime.errors import BundleInvalid
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler
from tests.runtime.scripted_engine import Bench, reference_decode, target_spec
from tests.runtime.test_host_cost import counted

SAMPLER = Sampler(SamplingParams(), 97, (), [])


def ids(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def by_definition(tokens: list[int], max_n: int, min_n: int) -> int | None:
    for n in range(max_n, min_n - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):  # the token at `end` followed the occurrence
            if tokens[end - n : end] == tokens[len(tokens) - n :] and n <= len(tokens):
                return end
    return None


@given(
    tokens=st.lists(st.integers(0, 3), max_size=40),
    max_n=st.integers(1, 5),
    min_n=st.integers(1, 5),
)
def test_the_search_equals_its_definition(tokens: list[int], max_n: int, min_n: int) -> None:
    low, high = sorted((max_n, min_n))
    assert find_continuation(ids(tokens), high, low) == by_definition(tokens, high, low)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 9, 1, 2, 3], [9, 1, 2, 3]),  # the longest n-gram
        ([1, 2, 3, 9, 7, 2, 3, 8, 1, 2, 3], [9, 7, 2, 3]),  # length before recency
        ([2, 3, 9, 2, 3, 8, 4, 2, 3], [8, 4, 2, 3]),  # recency among equals
        ([4, 4, 4], [4]),  # an occurrence that overlaps the suffix
        ([5, 3, 7, 6, 3], []),  # one token is less than min_n
        ([1, 2], []),
        ([1], []),
    ],
)
def test_what_followed_is_proposed(tokens: list[int], expected: list[int]) -> None:
    proposal = NgramProposer(k=4, max_n=3, min_n=2).propose(ids(tokens), Room(9, 9), SAMPLER)
    assert proposal.ids.tolist() == expected and proposal.probabilities is None


def test_neither_limit_nor_k_is_passed() -> None:
    proposer = NgramProposer(k=3, max_n=2, min_n=1)
    tokens = ids([1, 2, 3, 4, 5, 6, 1, 2])
    assert [len(proposer.propose(tokens, Room(limit, limit), SAMPLER).ids) for limit in (0, 1, 2, 3, 4)] == [
        0,
        1,
        2,
        3,
        3,
    ]


def test_no_window_is_spent_when_nothing_matches() -> None:
    bench = Bench(NgramDraft(k=4, max_n=8, min_n=8), target=target_spec(capacity=200))
    prompt = list(range(20))
    assert bench.decode(prompt, 60) == reference_decode(bench.language, prompt, 60, SamplingParams())
    assert bench.session.stats.proposed == 0
    assert bench.target.runs[-59:] == ["step"] * 59


@pytest.mark.parametrize("options", [(0, 3, 1), (4, 1, 2), (4, 3, 0)])
def test_impossible_options_are_refused(options: tuple[int, int, int]) -> None:
    k, max_n, min_n = options
    with pytest.raises(
        (ValidationError, BundleInvalid), match=r"greater than or equal to 1|min_n is 2, above"
    ):
        NgramDraft(k=k, max_n=max_n, min_n=min_n).check(target_spec())


@pytest.mark.parametrize("vocab", [1, 60, 20_000])
def test_a_search_has_no_loop_over_the_text(vocab: int) -> None:
    """Its time is measured in tests/latency."""
    tokens = np.random.default_rng(0).integers(0, vocab, 4096)
    with counted() as found:
        find_continuation(tokens, 3, 2)
    assert 10 < found.count < 400, f"a search takes {found.count} instructions"


def test_the_manifest_names_it() -> None:
    draft = new_draft(NgramDraft(k=4, max_n=3, min_n=2), None, 97)
    assert isinstance(draft, NgramProposer) and draft.k == 4
