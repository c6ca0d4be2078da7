"""Constrained answers have the distribution of plain constrained decoding, summed over every draft and every branch.

The shipped `Sampler`, `Constraint`, draft helpers, accept rules and `judge` run over a vocabulary of five tokens; whole
answers are compared with a masked softmax written out here. Each mistake that is easy to make is a control: the same
harness must see it.
"""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from specruntime.drafts import NOTHING, Proposal
from specruntime.drafts.constrained import permitted
from specruntime.drafts.trees import draw_children, next_draft, room_for_probabilities, without_nodes
from specruntime.sampling.constraint import Constraint, Mask
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler
from specruntime.verify import Outcome, verify
from tests.runtime.constraints.toy_grammar import Toy
from tests.runtime.scripted_draws import ScriptedDraws, Tokens, outcomes

VOCAB, END, LENGTH = 5, 4, 4
EXACT, VISIBLE = 1e-5, 1e-3  # the sampler works in fp32
MATCH = SamplingParams(temperature=0.8, seed=1)
REJECTION = SamplingParams(temperature=0.8, seed=1, accept="rejection")
GRAMMARS = [Toy(seed, VOCAB, (END,)) for seed in (2, 3, 5)]
TREES = [(0, 0), (0, 0, 1, 1), (0, 1, 0, 3), (0, 0, 2)]
Offer = Callable[["EnumeratedSampler", Tokens], Proposal]


class EnumeratedSampler(Sampler):
    """A sampler whose every draw is one of a script."""

    def __init__(self, params: SamplingParams, constraint: Constraint | None, draws: ScriptedDraws) -> None:
        super().__init__(params, VOCAB, (END,), (), constraint)
        self.draws = draws

    def sample(self, logits_row: NDArray[np.float32], pending: Sequence[int] = ()) -> int:
        return self.draws.categorical(self.distribution(logits_row, pending))

    def stream(self, position: int, purpose: str) -> ScriptedDraws:  # type: ignore[override]
        return self.draws


def logits_of(prefix: Sequence[int], seed: int = 1) -> NDArray[np.float32]:
    return _logits_of(tuple(prefix), seed)


@cache
def _logits_of(prefix: Tokens, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng([seed, len(prefix), *prefix]).normal(0, 1.5, VOCAB).astype(np.float32)


def answers_of(
    toy: Toy,
    offer: Offer,
    params: SamplingParams,
    *,
    sampler_of: Callable[..., EnumeratedSampler] = EnumeratedSampler,
    constraint_of: Callable[[Toy], Constraint] = Toy.constraint,
    forced: bool = True,
) -> dict[Tokens, float]:
    """The distribution of whole answers of at most LENGTH tokens, round by round."""

    def answer(draws: ScriptedDraws) -> Tokens:
        sampler = sampler_of(params, constraint_of(toy), draws)
        tokens: Tokens = ()
        while len(tokens) < LENGTH and not sampler.ended(()):
            outcome = round_of(sampler, offer(sampler, tokens), tokens)
            emitted = [*outcome.tokens]
            if forced:
                emitted += sampler.certain(emitted, LENGTH - len(tokens) - len(emitted))
            sampler.commit(emitted)
            tokens = (*tokens, *emitted)
        return tokens[:LENGTH]

    return summed(answer)


def round_of(sampler: Sampler, proposal: Proposal, tokens: Tokens) -> Outcome:
    ids = proposal.ids.tolist()
    parents = list(range(len(ids))) if proposal.parents is None else proposal.parents.tolist()
    paths: list[Tokens] = [()]
    for token, parent in zip(ids, parents, strict=True):
        paths.append((*paths[parent], token))
    logits = np.stack([logits_of((*tokens, *path)) for path in paths])
    return verify(proposal, logits.argmax(axis=1), lambda: logits, sampler)


def plain_answers(toy: Toy) -> dict[Tokens, float]:
    """Plain constrained decoding, without any of the code under test."""

    def answer(draws: ScriptedDraws) -> Tokens:
        tokens: Tokens = ()
        while len(tokens) < LENGTH and END not in tokens:
            scaled = logits_of(tokens).astype(np.float64) / MATCH.temperature
            weights = np.where(toy.mask(tokens), np.exp(scaled), 0)
            tokens = (*tokens, draws.categorical(weights / weights.sum()))
        return tokens

    return summed(answer)


def summed(answer: Callable[[ScriptedDraws], Tokens]) -> dict[Tokens, float]:
    distribution: dict[Tokens, float] = {}
    for tokens, probability in outcomes(answer):
        distribution[tokens] = distribution.get(tokens, 0.0) + probability
    return distribution


def error(found: dict[Tokens, float], toy: Toy) -> float:
    plain = plain_answers(toy)
    assert sum(plain.values()) == pytest.approx(1)
    return max(abs(found.get(tokens, 0.0) - plain.get(tokens, 0.0)) for tokens in found.keys() | plain.keys())


def drawn_chain(k: int, declare: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None) -> Offer:
    """A chain drawn token by token from another model's masked distribution, as the shipped drafts draw."""

    def offer(sampler: EnumeratedSampler, tokens: Tokens) -> Proposal:
        probabilities = room_for_probabilities(k, VOCAB, sampler)
        ids: list[int] = []
        while len(ids) < k and not sampler.ended(ids):
            token = next_draft(logits_of((*tokens, *ids), seed=2), ids, probabilities, sampler)
            if token is None:
                break
            ids.append(token)
        declared = None if probabilities is None else probabilities[: len(ids)]
        if declared is not None and declare is not None:
            declared = np.stack([declare(logits_of((*tokens, *ids[:n]), seed=2)) for n in range(len(ids))])
        return Proposal(np.array(ids, np.int64), declared)

    return offer


def fixed_chain(ids: Sequence[int]) -> Offer:
    return lambda sampler, tokens: permitted(Proposal(np.array(ids, np.int64)), sampler)


def drawn_tree(parents: Sequence[int]) -> Offer:
    """Siblings drawn without replacement from the masked distribution of their row."""

    def offer(sampler: EnumeratedSampler, tokens: Tokens) -> Proposal:
        ids, alive = np.zeros(len(parents), np.int64), np.zeros(len(parents), np.bool_)
        paths: list[list[int]] = [[] for _ in range(len(parents) + 1)]
        probabilities = np.zeros((len(parents) + 1, VOCAB), np.float32)
        for row in range(len(parents) + 1):
            children = [node for node, parent in enumerate(parents) if parent == row]
            if not children or (row and not alive[row - 1]) or sampler.ended(paths[row]):
                continue
            assert sampler.constraint is not None
            if not sampler.constraint.mask(paths[row]).count:
                continue
            probabilities[row] = sampler.distribution(logits_of((*tokens, *paths[row]), seed=2), paths[row])
            found = draw_children(probabilities[row], len(children), sampler.draws)
            for child, token in zip(children, found, strict=False):
                ids[child], alive[child] = token, True
                paths[child + 1] = [*paths[row], token]
        kept, hung = without_nodes(np.array(parents), alive)
        rows = [0, *(kept + 1).tolist()]
        return Proposal(ids[kept], probabilities[rows], hung) if kept.size else NOTHING

    return offer


def fixed_tree(parents: Sequence[int]) -> Offer:
    ids = np.array([(3 * node + 1) % VOCAB for node in range(len(parents))])
    return lambda sampler, tokens: permitted(Proposal(ids, None, np.array(parents)), sampler)


@pytest.mark.parametrize("toy", GRAMMARS, ids=lambda toy: f"grammar {toy.seed}")
@pytest.mark.parametrize(("params", "k"), [(MATCH, 0), (MATCH, 2), (REJECTION, 1), (REJECTION, 2)])
def test_a_drawn_chain_gives_plain_constrained_answers(toy: Toy, params: SamplingParams, k: int) -> None:
    assert error(answers_of(toy, drawn_chain(k), params), toy) < EXACT


@pytest.mark.parametrize("toy", GRAMMARS, ids=lambda toy: f"grammar {toy.seed}")
@pytest.mark.parametrize("ids", [(0, 1, 2), (3, 4, 1), (4, 4), (2, 2, 2)])
@pytest.mark.parametrize("params", [MATCH, REJECTION], ids=["match", "rejection"])
def test_a_fixed_chain_gives_plain_constrained_answers(toy: Toy, ids: Tokens, params: SamplingParams) -> None:
    assert error(answers_of(toy, fixed_chain(ids), params), toy) < EXACT


@pytest.mark.parametrize("toy", GRAMMARS, ids=lambda toy: f"grammar {toy.seed}")
@pytest.mark.parametrize("parents", TREES)
def test_a_drawn_tree_gives_plain_constrained_answers(toy: Toy, parents: Tokens) -> None:
    assert error(answers_of(toy, drawn_tree(parents), REJECTION), toy) < EXACT


@pytest.mark.parametrize("toy", GRAMMARS, ids=lambda toy: f"grammar {toy.seed}")
@pytest.mark.parametrize("parents", TREES)
@pytest.mark.parametrize("params", [MATCH, REJECTION], ids=["match", "rejection"])
def test_a_fixed_tree_gives_plain_constrained_answers(
    toy: Toy, parents: Tokens, params: SamplingParams
) -> None:
    assert error(answers_of(toy, fixed_tree(parents), params), toy) < EXACT


@pytest.mark.parametrize("toy", GRAMMARS, ids=lambda toy: f"grammar {toy.seed}")
def test_what_must_follow_changes_nothing(toy: Toy) -> None:
    """The same answers whether forced tokens are committed without the target, proposed, or left to it."""

    def forced_first(sampler: EnumeratedSampler, tokens: Tokens) -> Proposal:
        return Proposal(np.array(sampler.certain((), 3), np.int64))

    for offer in (forced_first, lambda sampler, tokens: NOTHING):
        for forced in (True, False):
            assert error(answers_of(toy, offer, MATCH, forced=forced), toy) < EXACT
    taken = [
        path for path in plain_answers(toy) if any(toy.mask(path[:n]).sum() == 1 for n in range(len(path)))
    ]
    assert taken, "something is forced in this grammar"


@pytest.mark.parametrize("toy", GRAMMARS, ids=lambda toy: f"grammar {toy.seed}")
def test_unfiltered_drafts_cost_rows_and_change_nothing(toy: Toy) -> None:
    def unfiltered(sampler: EnumeratedSampler, tokens: Tokens) -> Proposal:
        return Proposal(np.array([4, 0, 1]))

    assert error(answers_of(toy, unfiltered, MATCH), toy) < EXACT


def unmasked(row: NDArray[np.float32]) -> NDArray[np.float32]:
    weights = np.exp(row / np.float32(MATCH.temperature))
    return np.asarray(weights / weights.sum(), np.float32)


def test_control_a_draft_that_declares_the_distribution_without_the_mask() -> None:
    """Masked p, unmasked q: the draft drew from what may follow and says it drew from everything."""
    wrong = [error(answers_of(toy, drawn_chain(2, unmasked), REJECTION), toy) for toy in GRAMMARS]
    assert max(wrong) > VISIBLE


def test_control_a_mask_that_is_applied_after_the_softmax() -> None:
    class Unnormalised(EnumeratedSampler):
        def distribution(
            self, logits_row: NDArray[np.float32], pending: Sequence[int] = ()
        ) -> NDArray[np.float32]:
            right = super().distribution(logits_row, pending)
            return np.where(right > 0, unmasked(logits_row), 0)

    wrong = [
        error(answers_of(toy, fixed_tree((0, 0)), REJECTION, sampler_of=Unnormalised), toy)
        for toy in GRAMMARS
    ]
    chains = [
        error(answers_of(toy, drawn_chain(2), REJECTION, sampler_of=Unnormalised), toy) for toy in GRAMMARS
    ]
    assert max(*wrong, *chains) > VISIBLE


def test_control_a_mask_that_does_not_follow_the_path() -> None:
    class Standing(Constraint):
        def mask(self, path: Sequence[int] = ()) -> Mask:
            return super().mask(()) if not self.ended(path) else super().mask(path)

    def standing(toy: Toy) -> Constraint:
        return Standing(toy.constraint()._matcher, VOCAB, toy.ends)

    wrong = [
        error(answers_of(toy, drawn_chain(2), MATCH, constraint_of=standing, forced=False), toy)
        for toy in GRAMMARS
    ]
    assert max(wrong) > VISIBLE


def test_control_an_end_token_that_is_accepted_inside_a_run() -> None:
    class Endless(Constraint):
        def ended(self, path: Sequence[int] = ()) -> bool:
            return self._ended

        def mask(self, path: Sequence[int] = ()) -> Mask:
            texts = [token for token in path if token not in self._ends]
            return super().mask(texts)

    def endless(toy: Toy) -> Constraint:
        return Endless(toy.constraint()._matcher, VOCAB, toy.ends)

    def chain(sampler: EnumeratedSampler, tokens: Tokens) -> Proposal:
        return Proposal(np.array([4, 0, 1]))

    wrong = [
        error(answers_of(toy, chain, MATCH, constraint_of=endless, forced=False), toy) for toy in GRAMMARS
    ]
    assert max(wrong) > VISIBLE
