"""A tree of drafts changes only the speed: tokens, cache rows, logprobs and what drafts observe stay the same."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from specruntime.drafts import Proposal, Verdict
from specruntime.drafts.wrappers import FullWidthDraft
from specruntime.engines.windows import Feeder
from specruntime.errors import EngineFailed, InvalidArgument
from specruntime.generation import complete
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import token_logprobs
from specruntime.verify import trials
from tests.runtime.drafts.tree_drafts import (
    BUSHY,
    DEPTH_FIRST,
    TREES,
    SampledTreeDraft,
    Tree,
    TreeTableDraft,
    depths_of,
    random_tree,
)
from tests.runtime.scripted_engine import (
    VOCAB,
    Bench,
    Language,
    ScriptedContext,
    clean_logits,
    clean_rows,
    features_of,
    reference_decode,
    target_spec,
)

PROMPT = [5, 80, 3, 5, 41]
GREEDY = SamplingParams()
LAWS = {
    "greedy": GREEDY,
    "sampled": SamplingParams(temperature=0.9, top_k=20, seed=3),
    "penalties": SamplingParams(
        temperature=0.7, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.2, logit_bias={4: 2.0}, seed=8
    ),
}
WIDE = target_spec(verify=(5, 10), prefill=8, capacity=120, features=True)


def tree_bench(
    trees: Callable[[int], Tree | None],
    params: SamplingParams = GREEDY,
    *,
    right: Callable[[int], int] = lambda index: index % 3,
    count: int = 80,
    capacity: int = 120,
    prompt: list[int] = PROMPT,
) -> tuple[Bench, TreeTableDraft, list[int]]:
    answer = reference_decode(Language(), prompt, count, params)
    draft = TreeTableDraft(len(prompt), answer, trees, right)
    spec = target_spec(verify=(5, 10), prefill=8, capacity=capacity, features=True)
    return Bench(target=spec, proposer=draft), draft, answer


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", TREES)
def test_tokens_equal_plain_decoding(name: str, law: str) -> None:
    bench, _, answer = tree_bench(lambda _: TREES[name], LAWS[law])
    assert bench.decode(PROMPT, 80, LAWS[law]) == answer
    assert bench.session.stats.accepted > 8, "the tree is right sometimes"


def test_random_trees_and_chains_in_turn_equal_plain_decoding() -> None:
    generator = np.random.default_rng(1)
    trees = [random_tree(generator, int(generator.integers(1, 10))) for _ in range(40)]
    for law in LAWS.values():
        bench, draft, answer = tree_bench(lambda i: None if i % 4 == 0 else trees[i % 40], law)
        assert bench.decode(PROMPT, 80, law) == answer
        shapes = {None if v.proposal is None else v.proposal.parents is None for v, _ in draft.observed}
        assert shapes == {None, True, False} and bench.target.kept


def test_the_cache_is_that_of_a_clean_prefill_after_each_round() -> None:
    bench, _, _ = tree_bench(lambda _: DEPTH_FIRST, right=lambda index: index % 2)
    session = bench.session
    session.append(PROMPT)
    session.begin(GREEDY)
    while session.length < 100:
        session.round()
        rows = clean_rows(session.tokens[: session.cache_length].tolist())
        assert np.array_equal(bench.target.rows(session.cache_length), rows)
    assert len(bench.target.kept) > 3, "paths that were not contiguous were moved together"


@pytest.mark.parametrize("broken", ["rows stay", "depths", "mask"])
def test_each_mistake_with_a_tree_changes_the_tokens(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: what the tests above would not notice, they would not prove."""
    bench, _, answer = tree_bench(lambda _: DEPTH_FIRST, right=lambda index: index % 2)
    feeder = bench.session._feeder
    if broken == "rows stay":
        monkeypatch.setattr(ScriptedContext, "keep", lambda *_: None)
    if broken == "depths":
        monkeypatch.setattr(feeder, "_depths", lambda w, p: (Feeder._depths(feeder, w, p), None)[1])
    if broken == "mask":
        monkeypatch.setattr("specruntime.engines.windows._stage_tree", lambda mask, *_: _Depths(len(mask)))
    assert bench.decode(PROMPT, 80) != answer


class _Depths:
    key = b"never"

    def __init__(self, width: int) -> None:
        self.depths = np.array((depths_of(DEPTH_FIRST[0]) + [0] * width)[:width])


@pytest.mark.parametrize("seed", range(12))
def test_each_judged_row_is_that_of_a_pass_over_its_ancestors(seed: int) -> None:
    """Mask, depths and padding of random trees, chains between them, on the same buffers."""
    generator = np.random.default_rng(seed)
    context = ScriptedContext(WIDE, Language())
    feeder = Feeder(context)
    feeder.feed(np.array(PROMPT), 0)
    for _ in range(8):
        parents = random_tree(generator, int(generator.integers(1, 10)))[0]
        ids = generator.integers(0, VOCAB, len(parents) + 1)
        hung = None if generator.random() < 0.3 else np.array(parents)
        above = list(range(len(parents))) if hung is None else parents
        rows = feeder.judge(ids, len(PROMPT), hung)
        depths = depths_of(above)
        mask = rows.window.window_mask
        assert mask is not None
        assert mask[0, : len(ids)].sum(axis=1).tolist() == [depth + 1 for depth in depths]
        assert rows.window.position_ids[0, : len(ids)].tolist() == [len(PROMPT) + d for d in depths]
        for row in range(len(ids)):
            path = [row]
            while path[0]:
                path.insert(0, above[path[0] - 1])
            expected = clean_logits(context.language, [*PROMPT, *(int(ids[node]) for node in path)])
            assert np.array_equal(feeder.logits(rows)[row], expected)


def test_a_prompt_goes_through_a_window_that_a_tree_was_judged_in() -> None:
    """The mask of the last tree is stale then; without the restoration the prompt's rows see ancestors only."""

    def id_after_tree(forget: bool) -> int:
        context = ScriptedContext(WIDE, Language())
        feeder = Feeder(context)
        feeder.feed(np.array(PROMPT), 0)
        feeder.judge(np.arange(5), len(PROMPT), np.array([0, 0, 0, 0]))
        if forget:
            feeder._trees.clear()
        feeder.feed(np.arange(10, 15), len(PROMPT))
        assert context.runs[-1] == "verify_5"
        return int(context.window("verify_5").top_ids[0, 4])

    expected = int(np.argmax(clean_logits(Language(), [*PROMPT, 10, 11, 12, 13, 14])))
    assert id_after_tree(forget=False) == expected != id_after_tree(forget=True)


def test_a_graph_without_a_mask_refuses_trees() -> None:
    context = ScriptedContext(WIDE, Language())
    context._windows = {n: replace(w, window_mask=None) for n, w in context._windows.items()}
    with pytest.raises(InvalidArgument, match="no window_mask, so it judges chains and no trees"):
        Feeder(context).judge(np.arange(5), 0, np.array([0, 0, 1, 1]))


@pytest.mark.parametrize("length", range(1, 31))
def test_every_prompt_length_decodes_to_the_last_row(length: int) -> None:
    prompt = [(7 * i) % VOCAB for i in range(length)]
    bench, draft, answer = tree_bench(lambda _: BUSHY, count=31 - length, capacity=30, prompt=prompt)
    assert bench.decode(prompt, 31 - length) == answer
    assert bench.session.cache_length == 30
    assert all(room.depth <= room.nodes <= 9 for room in draft.rooms)


@pytest.mark.parametrize("cap", range(1, 14))
def test_no_round_passes_max_tokens(cap: int) -> None:
    bench, draft, answer = tree_bench(lambda _: DEPTH_FIRST, right=lambda index: 0)
    done = complete(bench.session, PROMPT, SamplingParams(max_tokens=cap))
    assert list(done.token_ids) == answer[:cap] and done.finish_reason == "length"
    assert bench.session.length == len(PROMPT) + cap, "nothing was decoded that the cap then cut"
    assert all(verdict.path == () or len(verdict.path) < cap for verdict, _ in draft.observed)


@pytest.mark.parametrize("law", ["greedy", "sampled"])
def test_stop_at_every_token_under_every_cap_equals_plain_decoding(law: str) -> None:
    count = 14
    base = replace(LAWS[law], logprobs=2)
    answer = reference_decode(Language(), PROMPT, count, base)
    for stop in sorted(set(answer)):
        for cap in range(1, count + 1):
            params = replace(base, stop_token_ids=(stop,), max_tokens=cap)
            bench, _, _ = tree_bench(lambda _: BUSHY, base, count=40)
            done = complete(bench.session, PROMPT, params)
            plain = complete(Bench(target=WIDE).session, PROMPT, params)
            assert (done.token_ids, done.finish_reason, done.logprobs) == (
                plain.token_ids,
                plain.finish_reason,
                plain.logprobs,
            )


@pytest.mark.parametrize("law", LAWS)
def test_logprobs_are_those_of_the_accepted_path(law: str) -> None:
    params = replace(LAWS[law], logprobs=3)
    bench, _, _ = tree_bench(lambda _: DEPTH_FIRST, LAWS[law], right=lambda index: index % 2)
    session = bench.session
    session.append(PROMPT)
    session.begin(params)
    while session.length < 70:
        start, round = session.length, session.round()
        assert round.logprobs is not None and len(round.logprobs) == len(round.tokens)
        for offset, entry in enumerate(round.logprobs):
            logits = clean_logits(bench.language, session.tokens[: start + offset].tolist())
            assert entry == token_logprobs(logits, round.tokens[offset], 3, VOCAB)


def test_the_draft_is_told_every_position_once_with_its_features() -> None:
    prompt = [(3 * i) % VOCAB for i in range(21)]
    bench, draft, _ = tree_bench(
        lambda i: None if i % 3 == 0 else DEPTH_FIRST, prompt=prompt, right=lambda i: i % 2
    )
    bench.decode(prompt, 60)
    tokens, told = bench.session.tokens.tolist(), 0
    for verdict, features in draft.observed:
        assert verdict.start == told and features is not None and len(features) == verdict.kept
        for row in range(verdict.kept):
            told += 1
            assert np.array_equal(features[row], features_of(clean_rows(tokens[:told])))
        assert verdict.verify_seconds > 0 and verdict.draft_seconds >= 0
    assert told == bench.session.cache_length
    chunks = [verdict for verdict, _ in draft.observed if verdict.proposal is None]
    assert [verdict.kept for verdict in chunks] == [8, 8, 5], "one verdict for each window of the prompt"
    judged = [verdict for verdict, _ in draft.observed if verdict.proposal is not None]
    assert all(verdict.kept == len(verdict.path) + 1 for verdict in judged)


def test_what_was_judged_is_counted_by_depth_and_rank() -> None:
    tree = Proposal(np.arange(9), None, *(np.array(part) for part in DEPTH_FIRST))
    assert list(trials(tree, (1, 5))) == [(0, 0, True), (1, 0, False), (1, 1, True), (0, 1, False)]
    assert list(trials(tree, ())) == [(0, 0, False), (0, 1, False)]
    assert list(trials(Proposal(np.arange(3)), (1,))) == [(0, 0, True), (1, 0, False)]
    assert list(trials(Proposal(np.arange(2)), (1, 2))) == [(0, 0, True), (1, 0, True)]


def test_statistics_of_trees_add_up() -> None:
    bench, _, _ = tree_bench(lambda _: BUSHY)
    bench.decode(PROMPT, 60)
    stats = bench.session.stats
    assert stats.tokens == stats.prefills + stats.rounds + stats.accepted
    assert 0 < stats.accepted < stats.evaluated < stats.proposed
    assert 1 + sum(stats.acceptance_by_position) == pytest.approx(stats.acceptance_length)
    assert sum(map(sum, stats.rank_trials)) == stats.evaluated
    assert sum(map(sum, stats.rank_hits)) == stats.accepted
    assert [sum(hits) for hits in stats.rank_hits if sum(hits)] == stats.accepted_at
    assert stats.rank_trials[0] == [stats.rounds] * 3 and len(stats.rank_hits[0]) == 3
    assert stats.as_dict()["rank_hits"] == stats.rank_hits


@pytest.mark.parametrize("lawful", [True, False])
def test_sampled_children_keep_the_law_of_the_target(lawful: bool) -> None:
    """Tokens 2 and 3 after one prompt over many seeds, against plain decoding of other seeds (chi-square)."""
    language = Language(seed=4)
    bench = Bench(
        proposer=SampledTreeDraft(([0, 0, 1, 1], [0, 1, 0, 1]), 9, lawful=lawful), language=language
    )
    counts: Counter[tuple[bool, tuple[int, ...]]] = Counter()
    accepted = 0
    for seed in range(800):
        params = SamplingParams(temperature=2, top_k=5, seed=seed, accept="rejection")
        bench.session.reset()
        counts[True, tuple(bench.decode(PROMPT, 3, params)[1:])] += 1
        accepted += bench.session.stats.accepted
        plain = replace(params, seed=seed + 10_000)
        counts[False, tuple(reference_decode(language, PROMPT, 3, plain)[1:])] += 1
    seen = {tokens for _, tokens in counts}
    pairs = np.array([(counts[True, tokens], counts[False, tokens]) for tokens in seen], dtype=float)
    pairs = pairs[pairs.sum(axis=1) >= 10]
    chi = ((pairs[:, 0] - pairs[:, 1]) ** 2 / pairs.sum(axis=1)).sum()
    assert len(pairs) >= 8 and accepted > 50
    assert (chi < len(pairs) + 4 * np.sqrt(2 * len(pairs))) is np.bool_(lawful)


def test_fillers_widen_a_tree_and_change_nothing() -> None:
    answer = reference_decode(Language(), PROMPT, 80, GREEDY)
    draft = TreeTableDraft(
        len(PROMPT), answer, lambda i: None if i % 3 == 0 else ([0, 0, 1], [0, 1, 0]), lambda i: i % 2
    )
    bench = Bench(target=target_spec(verify=(5, 10), capacity=120), proposer=FullWidthDraft(draft, 9))
    assert bench.decode(PROMPT, 80) == answer
    assert bench.target.runs.count("verify_10") == bench.session.stats.rounds
    assert bench.session.stats.proposed == 9 * bench.session.stats.rounds
    assert bench.target.kept


class Failing(TreeTableDraft):
    failing = False

    def observe(self, verdict: Verdict) -> None:
        if self.failing:
            raise EngineFailed("scripted failure")


@pytest.mark.parametrize("round_of_the_failure", [0, 2])
def test_a_draft_that_fails_while_it_listens_poisons_the_session(round_of_the_failure: int) -> None:
    answer = reference_decode(Language(), PROMPT, 80, GREEDY)
    draft = Failing(len(PROMPT), answer, lambda _: BUSHY, lambda i: i % 3)
    bench = Bench(target=WIDE, proposer=draft)
    bench.session.append(PROMPT)
    bench.session.begin(GREEDY)
    draft.failing = False
    for _ in range(round_of_the_failure):
        bench.session.round()
    before = bench.session.tokens.tolist()
    draft.failing = True
    with pytest.raises(EngineFailed, match="scripted failure"):
        bench.session.round()
    assert bench.session.poisoned and bench.session.tokens.tolist() == before
    draft.failing = False
    bench.session.reset()
    assert bench.decode(PROMPT, 20) == answer[:20]
