"""Checks that a drawn chain reports the distribution each draft was drawn from."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts import Proposal
from specruntime.sampling.sampler import Sampler
from tests.runtime.scripted_engine import VOCAB, Language, clean_logits


def law_of_first(
    proposal: Proposal, drafts: Sequence[int], prompt: Sequence[int], language: Language, sampler: Sampler
) -> NDArray[np.float32]:
    """[VOCAB] of the first draft, all having been compared with what `language` says after the drafts before them."""
    laws = proposal.probabilities
    assert laws is not None and laws.shape == (len(drafts), VOCAB) and laws.dtype == np.float32
    for depth, law in enumerate(laws):
        logits = clean_logits(language, [*prompt, *drafts[:depth]])
        assert np.array_equal(law, sampler.distribution(logits, drafts[:depth]))
        assert law[drafts[depth]] > 0
    first: NDArray[np.float32] = laws[0]
    return first


def require_drawn_from(law: NDArray[np.float32], drawn: Sequence[int]) -> None:
    """`drawn` token ids look like draws from the distribution."""
    assert np.abs(np.bincount(drawn, minlength=VOCAB) / len(drawn) - law).max() < 0.1
