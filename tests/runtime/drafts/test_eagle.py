"""An EAGLE draft feeds each pair once, with the target's features, and looks ahead without leaving a trace."""

import numpy as np
import pytest

from specruntime.drafts import Verdict
from specruntime.sampling.params import SamplingParams
from tests.runtime.drafts.eagle_drafting import DYNAMIC, GREEDY, PROMPT, SAMPLED, TREES, Drafting, walk
from tests.runtime.scripted_draft import best_of
from tests.runtime.scripted_engine import CACHE, VOCAB, clean_logits


def test_a_chain_feeds_each_pair_once_and_steps_on_its_own_hidden_rows() -> None:
    drafting = Drafting()
    drafts = drafting.drafted()
    assert drafts == drafting.expected(4)
    assert drafting.context.runs == ["extend_5", "step", "step", "step"] and drafting.context.valid[0] == 5
    assert drafting.last.parents is None and drafting.last.probabilities is None

    drafting.accept(*drafts, 3)  # all accepted: five pairs with features are new
    drafts = drafting.drafted()
    assert drafts == drafting.expected(4)
    assert drafting.context.runs == ["extend_5", "step", "step", "step"]

    drafting.accept(drafts[0], 3)  # some accepted
    drafts = drafting.drafted()
    assert drafts == drafting.expected(4)
    assert drafting.context.runs == ["extend_2", "step", "step", "step"]

    drafting.accept((drafts[0] + 1) % VOCAB)  # none accepted
    drafts = drafting.drafted()
    assert drafts == drafting.expected(4)
    assert drafting.context.runs == ["step"] * 4

    drafting.accept(*range(20))  # a prompt appended behind its back
    assert drafting.drafted() == drafting.expected(4)
    assert drafting.context.runs == ["prefill_8", "prefill_8", "extend_5", "step", "step", "step"]


def test_lookahead_rows_follow_the_committed_ones() -> None:
    drafting = Drafting()
    drafts = drafting.drafted()
    story = [*drafting.tokens, *drafts]
    rows = drafting.context.cache()[CACHE][0, 0, 5:8]
    for offset, row in enumerate(rows, start=5):
        assert row.tolist() == [offset + 1, -1, story[offset], story[offset + 1], offset]


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_draft_that_knows_the_target_is_always_right(k: int, params: SamplingParams) -> None:
    drafting = Drafting(params, k=k, capacity=512, laws=True)
    for _ in range(50):
        drafts = drafting.drafted()
        assert len(drafts) == k and drafts == drafting.expected(k)
        path, emitted = walk(drafting, drafting.last)
        assert path == list(range(1, k + 1))
        drafting.accept(*emitted)


def test_a_chain_ends_with_the_first_token_the_draft_doubts() -> None:
    plain = Drafting(k=7, capacity=512)
    expected = plain.expected(7)
    story = [[*PROMPT, *expected[:depth]] for depth in range(7)]
    sure = [float(np.exp(best_of(clean_logits(plain.language, tokens))[1][0])) for tokens in story]
    counts = []
    for bound in (0.0, *(probability * 1.0001 for probability in sure)):
        drafting = Drafting(k=7, capacity=512, stop_below=bound)
        doubted = [depth for depth in range(7) if sure[depth] < bound]
        counts.append(doubted[0] + 1 if doubted else 7)
        assert drafting.drafted() == expected[: counts[-1]]
        assert len(drafting.context.runs) == counts[-1]
    assert counts[0] == 7 and min(counts) == 1 and len(set(counts)) > 2


def test_a_prompt_goes_through_the_plain_windows_and_its_last_pair_through_one_with_a_law() -> None:
    drafting = Drafting(SAMPLED, laws=True, prompt=list(range(20)), capacity=64)
    assert drafting.drafted() == drafting.expected(4)
    runs = drafting.context.runs
    assert runs == ["prefill_8", "prefill_8", "extend_2", "step_law", "step_law", "step_law", "step_law"]


def test_the_same_tokens_twice_propose_the_same() -> None:
    for drafting in (Drafting(), Drafting(tree=TREES["bush"]), Drafting(dynamic=DYNAMIC)):
        assert drafting.drafted() == drafting.drafted()


def test_one_token_has_no_pair_and_gets_no_draft() -> None:
    drafting = Drafting(prompt=[5])
    assert drafting.drafted() == [] and drafting.context.runs == []
    drafting.accept(6)
    assert drafting.drafted() == drafting.expected(4)


def test_a_draft_that_is_always_wrong_keeps_its_cache_clean() -> None:
    for shape in ({}, {"tree": TREES["bush"]}, {"dynamic": DYNAMIC}):
        drafting = Drafting(capacity=512, forget=17, **shape)
        for _ in range(50):
            assert drafting.drafted()
            path, emitted = walk(drafting, drafting.last)
            assert len(path) <= 1
            drafting.accept(*emitted)


def test_what_is_told_last_counts() -> None:
    drafting = Drafting()
    drafting.drafted()
    wrong = np.full((2, 3), 7, np.float32)
    drafting.draft.observe(Verdict(5, wrong, 2, None, (), 5, 0.0, 0.0))
    drafting.accept(3, 4)  # the same positions again
    assert drafting.drafted() == drafting.expected(4)
