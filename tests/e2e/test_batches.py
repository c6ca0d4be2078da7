"""A batch on real graphs: each row decodes the tokens that it decodes alone, whatever its neighbours are asked."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specexport.build import build
from specexport.recipe.schema import load_recipe
from specruntime.bundle import LoadedBundle, open_bundle
from specruntime.generation import complete
from specruntime.sampling.params import SamplingParams
from specruntime.serving import BatchStepper, Work, stepper_for
from tests.conftest import RECIPES
from tests.e2e.conftest import BATCH, DRAFT_KINDS, Opened

LANES = BATCH[-1]
NOISE = np.random.default_rng(7)
LENGTHS = (9, 41, 2, 70, 17, 5)
OPTIONS = (
    SamplingParams(ignore_eos=True, max_tokens=60),
    SamplingParams(temperature=0.8, top_p=0.9, seed=4, ignore_eos=True, max_tokens=31),
    SamplingParams(temperature=1.0, top_k=30, seed=5, accept="rejection", ignore_eos=True, max_tokens=44),
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.4, logprobs=2, ignore_eos=True, max_tokens=25),
    SamplingParams(temperature=0.6, min_p=0.02, seed=6, ignore_eos=True, max_tokens=38),
    SamplingParams(
        max_tokens=300, ignore_eos=True
    ),  # up to the capacity, over which neighbours must not write
)
WORK = [
    Work(NOISE.integers(3, 250, length), params, speculate=number != 3)
    for number, (length, params) in enumerate(zip(LENGTHS, OPTIONS, strict=True))
]


@pytest.fixture(scope="module")
def with_a_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedBundle]:
    recipe = load_recipe(RECIPES / "tiny-random.yaml").model_copy(update={"batch": BATCH})
    with open_bundle(build(recipe, tmp_path_factory.mktemp("model") / "bundle")) as bundle:
        yield bundle


@pytest.fixture(params=["model", *DRAFT_KINDS])
def bundle(request: pytest.FixtureRequest, opened: Opened, with_a_model: LoadedBundle) -> LoadedBundle:
    return with_a_model if request.param == "model" else opened(request.param)


def alone(bundle: LoadedBundle, work: Work) -> tuple[list[int], int]:
    """The tokens, and how many engine calls they took."""
    session = bundle.new_session(speculate=work.speculate)
    answer = complete(session, work.prompt, work.params)
    session.close()
    calls = (*session.stats.target.calls.values(), *session.stats.draft.calls.values())
    return list(answer.token_ids), sum(calls)


def together(bundle: LoadedBundle) -> tuple[list[list[int]], BatchStepper]:
    """Two rows begin, others join at every other step; each that ends makes room for the next."""
    stepper = stepper_for(bundle, LANES)
    assert isinstance(stepper, BatchStepper)
    tokens: list[list[int]] = [[] for _ in WORK]
    waiting, free, active, step = list(range(len(WORK))), list(range(LANES)), dict[int, int](), 0
    while waiting or active:
        while waiting and free and (step % 2 == 0 or len(active) < 2):
            active[slot := free.pop(0)] = request = waiting.pop(0)
            stepper.admit(slot, stepper.check(WORK[request]))
            if len(active) >= 2:
                break
        for turn in list(stepper.step()):
            assert turn.error is None, turn.error
            if turn.delta is not None:
                tokens[active[turn.slot]] += turn.delta.tokens
                if turn.delta.finish_reason:
                    stepper.evict(turn.slot)
                    del active[turn.slot]
                    free = sorted([*free, turn.slot])
        step += 1
    return tokens, stepper


def test_each_row_decodes_what_it_decodes_alone(bundle: LoadedBundle) -> None:
    tokens, stepper = together(bundle)
    single = [alone(bundle, work) for work in WORK]
    assert tokens == [answer for answer, _ in single]
    (batch,) = stepper.batches
    assert batch.launches < 0.8 * sum(calls for _, calls in single), "launches are shared"
    stepper.close()


def test_a_batch_survives_what_lies_in_the_caches_of_others(bundle: LoadedBundle) -> None:
    with bundle.new_batch(LANES) as batch:
        session, work = batch.sessions[2], WORK[1]
        session.append(work.prompt)
        session.begin(work.params)
        while session.length < len(work.prompt) + 31:
            for group in (batch.target, batch.draft):
                for lane in group.lanes if group is not None else ():
                    if lane.row != 2:
                        for rows in lane.cache().values():
                            rows.fill(np.nan)
            dict(batch.turns({2: session.round}))
        assert session.tokens[len(work.prompt) :].tolist() == alone(bundle, work)[0]


def test_the_bundle_says_what_it_holds(with_a_model: LoadedBundle, tmp_path: Path) -> None:
    manifest = with_a_model.manifest
    assert manifest.target.batch_sizes == BATCH and manifest.target.batch == LANES
