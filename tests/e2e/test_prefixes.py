"""Reuse of cache rows on real graphs: fp32 tokens of a fresh session with every kind of draft; int8 to the last bit."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from specexport.build import build
from specexport.recipe.schema import Weights, load_recipe
from specruntime.bundle import LoadedBundle, open_bundle
from specruntime.generation import complete
from specruntime.sampling.params import SamplingParams
from specruntime.serving import Delivery, PrefixCaching, Scheduler, Stream, Work, stepper_for
from tests.conftest import RECIPES
from tests.e2e.conftest import DRAFT_KINDS, Opened

NOISE = np.random.default_rng(11)
PROMPT = NOISE.integers(3, 250, 70)
OPTIONS = {
    "greedy": SamplingParams(ignore_eos=True, max_tokens=60),
    "sampled": SamplingParams(temperature=0.8, top_p=0.9, seed=4, ignore_eos=True, max_tokens=60),
    "penalties": SamplingParams(
        temperature=0.7, repetition_penalty=1.2, seed=9, ignore_eos=True, max_tokens=60
    ),
}


@pytest.fixture(scope="module")
def with_a_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedBundle]:
    recipe = load_recipe(RECIPES / "tiny-random.yaml")
    with open_bundle(build(recipe, tmp_path_factory.mktemp("model") / "bundle")) as bundle:
        yield bundle


@pytest.fixture(scope="module")
def with_int8(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedBundle]:
    recipe = load_recipe(RECIPES / "tiny-random.yaml")
    weights = Weights(format="int8", activations="blocks")
    recipe = recipe.model_copy(update={"weights": weights})
    with open_bundle(build(recipe, tmp_path_factory.mktemp("int8") / "bundle")) as bundle:
        yield bundle


@pytest.fixture(params=["model", *DRAFT_KINDS])
def bundle(request: pytest.FixtureRequest, opened: Opened, with_a_model: LoadedBundle) -> LoadedBundle:
    return with_a_model if request.param == "model" else opened(request.param)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_session_that_starts_from_another_answers_as_a_fresh_one(bundle: LoadedBundle, name: str) -> None:
    """From within the prompt and from within the answer, whose rows were written by windows that judged drafts."""
    params = OPTIONS[name]
    first, second, plain = bundle.new_session(), bundle.new_session(), bundle.new_session(speculate=False)
    complete(first, PROMPT, params)
    held = first.tokens.tolist()
    for length in (2, 33, 70, 95, len(held)):
        more = NOISE.integers(3, 250, 5).tolist()
        second.start_from(first, length)
        plain.reset()
        expected = complete(plain, held[:length] + more, params).token_ids
        found = complete(second, more, params)
        assert found.token_ids == expected
        assert found.stats.proposed > 0
    for session in (first, second, plain):
        session.close()


def test_a_draft_with_a_cache_of_its_own_does_not_read_the_tokens_again(with_a_model: LoadedBundle) -> None:
    first, second = with_a_model.new_session(), with_a_model.new_session()
    complete(first, PROMPT, OPTIONS["greedy"])
    second.start_from(first, 100)
    answer = complete(second, [5], replace(OPTIONS["greedy"], max_tokens=8))
    assert not any(name.startswith("prefill") for name in answer.stats.draft.calls)
    for session in (first, second):
        session.close()


def answers(bundle: LoadedBundle, prompts: list[list[int]], mode: PrefixCaching) -> list[list[Delivery]]:
    """One after the other, in one slot."""
    params = SamplingParams(ignore_eos=True, max_tokens=24, logprobs=1)
    with Scheduler(stepper_for(bundle, 1, prefix_caching=mode)) as scheduler:
        return [list(Stream(scheduler, Work(np.array(prompt), params))) for prompt in prompts]


def test_integer_weights_give_the_same_logprobs_to_the_last_bit(with_int8: LoadedBundle) -> None:
    """Pieces of 32: the prompt's whole ones are reused, and the rest goes through the windows it would go through."""
    assert with_int8.manifest.precision == "int8"
    prompt = PROMPT.tolist()
    prompts = [prompt, [*prompt, 9, 8, 7], [*prompt[:65], 1, 2, 3]]
    fresh, reused = (answers(with_int8, prompts, mode) for mode in ("off", "exact"))
    assert [answer[-1].figures.cached_tokens for answer in reused] == [0, 62, 62]
    for one, other in zip(fresh, reused, strict=True):
        assert [d.delta.tokens for d in one] == [d.delta.tokens for d in other]
        assert [d.delta.logprobs for d in one] == [d.delta.logprobs for d in other]
