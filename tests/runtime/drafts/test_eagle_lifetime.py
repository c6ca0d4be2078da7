"""An EAGLE draft through rewinds, failures, resets and the end of its capacity, and the graphs it refuses."""

import numpy as np
import pytest

from specruntime.drafts.eagle import DynamicTree
from specruntime.errors import BundleInvalid, EngineFailed
from specruntime.manifest.schema import TreeSpec
from tests.runtime.drafts.eagle_drafting import DYNAMIC, PROMPT, TREES, Drafting
from tests.runtime.scripted_draft import CANDIDATES, eagle_spec, pair_spec
from tests.runtime.scripted_engine import CACHE, VOCAB, target_spec


@pytest.mark.parametrize("shape", ["chain", "tree", "dynamic"])
@pytest.mark.parametrize("length", range(1, len(PROMPT) + 6))
def test_after_a_rewind_anywhere_it_drafts_as_a_fresh_one(shape: str, length: int) -> None:
    def fresh(prompt: list[int]) -> Drafting:
        tree = TREES["bush"] if shape == "tree" else None
        return Drafting(tree=tree, dynamic=DYNAMIC if shape == "dynamic" else None, prompt=prompt)

    drafting = fresh(PROMPT)
    drafting.accept(*drafting.drafted()[:1], 3)
    drafting.drafted()
    drafting.accept(8, 9, 3)
    drafting.rewind(drafting.draft, length)
    drafting.show(drafting.draft)
    assert drafting.drafted() == fresh(drafting.tokens).drafted()
    drafting.rewind(drafting.draft, length)
    drafting.accept(61, 62)
    assert drafting.drafted() == fresh(drafting.tokens).drafted()


def test_features_of_positions_it_was_not_shown_again_are_not_used() -> None:
    drafting = Drafting()
    drafting.draft.rewind(3)
    with pytest.raises(AssertionError, match="every target window"):
        drafting.propose(drafting.draft)


@pytest.mark.parametrize("shape", ["chain", "tree", "dynamic"])
def test_it_drafts_up_to_its_capacity_and_is_silent_past_it(shape: str) -> None:
    for prompt in range(2, 16):
        story = [int(token) for token in np.random.default_rng(prompt).integers(0, VOCAB, prompt)]
        drafting = Drafting(
            prompt=story,
            capacity=12,
            tree=TREES["comb"] if shape == "tree" else None,
            dynamic=DynamicTree(nodes=5, branch=2) if shape == "dynamic" else None,
        )
        drafts = drafting.drafted()
        if shape == "chain":  # pair n - 2 is the last committed; each draft but the last writes one more
            assert drafts == drafting.expected(max(0, min(4, 12 - prompt + 2)))
        else:
            assert bool(drafts) == (prompt <= 13)
        drafting.accept(3)
        assert bool(drafting.drafted()) == (prompt <= 12)


@pytest.mark.parametrize("call", range(4))
@pytest.mark.parametrize("shape", ["chain", "tree", "dynamic"])
def test_reset_heals_a_failed_cache(call: int, shape: str) -> None:
    tree = TREES["bush"] if shape == "tree" else None
    dynamic = DynamicTree(nodes=64, branch=3) if shape == "dynamic" else None
    drafting = Drafting(tree=tree, dynamic=dynamic)
    drafting.drafted()
    drafting.accept(3)
    calls = iter(range(100))
    drafting.context.failing = lambda: next(calls) == call
    with pytest.raises(EngineFailed):
        drafting.drafted()
    drafting.context.failing = lambda: False
    drafting.draft.reset()
    assert not drafting.context.cache()[CACHE].any()
    drafting.seen = 0
    drafting.show(drafting.draft)
    assert drafting.drafted() == Drafting(tree=tree, dynamic=dynamic, prompt=drafting.tokens).drafted()


def test_reset_of_a_sound_draft_zeroes_nothing() -> None:
    drafting = Drafting()
    drafting.drafted()
    drafting.draft.reset()
    assert drafting.context.cache()[CACHE].any()
    drafting.draft.close()
    drafting.draft.close()
    assert drafting.context.closed


def test_a_graph_of_another_kind_is_refused() -> None:
    graph = pair_spec()
    step, *others = graph.profiles
    assert step.outputs is not None
    blind = step.model_copy(update={"outputs": tuple(name for name in step.outputs if name != "next_hidden")})
    changed = graph.model_copy(update={"profiles": (blind, *others)})
    with pytest.raises(BundleInvalid, match="profile 'step' does not compute 'next_hidden'"):
        eagle_spec(4, changed).check(target_spec())
    without = graph.model_copy(update={"profiles": tuple(others)})
    with pytest.raises(BundleInvalid, match=r"draft\.graph has no profile 'step', which this draft runs"):
        eagle_spec(4, without).check(target_spec())
    wide = TreeSpec(parents=(0,), ranks=(CANDIDATES,))
    with pytest.raises(BundleInvalid, match=f"rank {CANDIDATES}, but .* names {CANDIDATES} candidates"):
        eagle_spec(1, graph, tree=wide).check(target_spec())
