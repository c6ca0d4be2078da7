"""Which tokens a draft proposes: the likeliest, given the noise the target will use, or drawn ones.

Pure functions of candidates or logits, and sampling options. Knows nothing of engines or trees.
"""

import numpy as np
from numpy.typing import NDArray

from specruntime.accept import Draws, Law
from specruntime.noise import gumbel
from specruntime.sampling import Sampler

Ids = NDArray[np.int64]
Logprobs = NDArray[np.floating]


def best_first(ids: Ids, logprobs: Logprobs, sampler: Sampler, ahead: int) -> tuple[Ids, Logprobs]:
    """Candidates [..., K] for the output position `ahead` of the next one: (ids, log-beliefs), the likeliest first.

    A belief is the chance that the target takes the token. At temperature 0 it is the draft's probability. Above, the
    target takes the token whose scaled logit plus noise is highest, and the noise of the position is known: a draft
    near the target believes in the token that leads under the same noise (Gumbel coupling). What is emitted does not
    depend on it.
    """
    temperature = sampler.params.temperature
    if temperature == 0:
        return ids, logprobs
    noisy = logprobs / temperature + gumbel(sampler.seed, sampler.position + ahead, ids)
    order = np.argsort(-noisy, axis=-1, stable=True)
    order += np.arange(0, ids.size, ids.shape[-1]).reshape(*ids.shape[:-1], 1)
    noisy = noisy.ravel()[order]
    noisy -= noisy[..., :1]
    noisy -= np.log(np.exp(noisy).sum(axis=-1, keepdims=True))
    return ids.ravel()[order], noisy


def probability_of(token: int, ids: Ids, logprobs: Logprobs) -> float:
    """The draft's probability of a token by its candidates [K], best first; of one that is none, at most the last's."""
    place = np.flatnonzero(ids == token)
    return float(np.exp(logprobs[place[0] if place.size else -1]))


def room_for_laws(count: int, vocab_size: int, sampler: Sampler) -> NDArray[np.float32] | None:
    """[count, vocab] where drafts are drawn from their law; None where they are a function of logits and seed."""
    return np.empty((count, vocab_size), np.float32) if sampler.params.draws_drafts else None


def next_draft(
    logits: NDArray[np.floating], drafted: list[int], laws: NDArray[np.float32] | None, sampler: Sampler
) -> int:
    """The token behind `drafted` of a chain, from the draft's own logits [vocab]; drawn with `laws`, which get its law.

    Otherwise it comes from the target's own noise, so the two agree as often as their logits do. Raises as
    `Sampler.sample`.
    """
    if laws is None:
        return sampler.sample(logits, drafted)
    laws[len(drafted)] = sampler.distribution(logits, drafted)
    return sampler.stream(sampler.position + len(drafted), "draft").categorical(laws[len(drafted)])


def draw_children(law: Law, count: int, draws: Draws) -> list[int]:
    """Up to `count` different tokens, each drawn from `law` [vocab] without those before it; fewer if none is left."""
    left, tokens = law.copy(), []
    for _ in range(count):
        if not left.any():
            break
        tokens.append(draws.categorical(left))
        left[tokens[-1]] = 0
    return tokens
