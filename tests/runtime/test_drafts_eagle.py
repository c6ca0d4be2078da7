"""An EAGLE draft feeds each pair once, with the target's features, and looks ahead without leaving a trace."""

from dataclasses import replace

import numpy as np
import pytest

from specruntime.drafts import Proposal, Verdict
from specruntime.drafts.eagle import EagleProposer
from specruntime.errors import EngineFailed, InvalidArgument
from specruntime.manifest import DynamicTree, TreeSpec
from specruntime.sampling import Sampler, SamplingParams
from tests.runtime.scripted_draft import (
    CANDIDATES,
    PairContext,
    Story,
    best_of,
    clean_pairs,
    eagle_spec,
    level_sizes,
    pair_spec,
)
from tests.runtime.scripted_engine import CACHE, VOCAB, Language, clean_logits

GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.9, seed=5)
REJECTION = SamplingParams(temperature=0.8, frequency_penalty=2.0, accept="rejection")
PROMPT = [5, 9, 2, 40, 7, 11]
TREES = {
    "fan": TreeSpec(parents=(0, 0, 0), ranks=(0, 1, 2)),
    "comb": TreeSpec(parents=(0, 0, 1, 1, 3, 3), ranks=(0, 1, 0, 2, 0, 1)),
    "bush": TreeSpec(parents=(0, 0, 0, 1, 1, 2, 4, 4, 6, 7), ranks=(0, 1, 3, 0, 1, 0, 0, 1, 0, 0)),
    "line": TreeSpec(parents=(0, 1, 2), ranks=(0, 0, 0)),
    "depth first": TreeSpec(parents=(0, 1, 2, 0, 4), ranks=(0, 0, 0, 1, 0)),
}
DYNAMIC = DynamicTree(nodes=7, branch=3)


class Drafting(Story):
    """A proposer over a scripted draft graph, and the story it drafts for."""

    def __init__(
        self,
        params: SamplingParams = GREEDY,
        *,
        k: int = 4,
        tree: TreeSpec | None = None,
        dynamic: DynamicTree | None = None,
        capacity: int = 64,
        laws: bool = False,
        stop_below: float | None = None,
        prompt: list[int] = PROMPT,
        language: Language | None = None,
        forget: int = 0,
    ) -> None:
        super().__init__(language or Language(), prompt, params)
        levels = [] if tree is None else level_sizes(tree.parents)
        if dynamic is not None:
            levels = [(dynamic.branch * depth, dynamic.branch) for depth in range(1, k)]
        graph = pair_spec(levels, capacity=capacity, laws=laws)
        spec = eagle_spec(k if tree is None else tree.depth, graph, tree=tree, dynamic=dynamic)
        spec = spec.model_copy(update={"stop_below": stop_below})
        self.context = PairContext(graph, self.language, forget=forget)
        self.draft = EagleProposer(self.context, spec, vocab_size=VOCAB)
        self.show(self.draft)

    def drafted(self, depth: int = 99, nodes: int = 99) -> list[int]:
        self.context.runs.clear()
        self.context.valid.clear()
        self.last = self.propose(self.draft, depth, nodes)
        if self.last.ids.size:
            self.check_cache()
        return [int(token) for token in self.last.ids]

    def accept(self, *tokens: int) -> None:
        self.commit(self.draft, *tokens)

    def check_cache(self) -> None:
        """The pairs that count are those of a clean pass: the target's features, ids shifted by one."""
        count = len(self.tokens) - 1
        assert self.draft.cache_length == count
        rows = self.context.cache()[CACHE][0, 0, :count]
        assert np.array_equal(rows, clean_pairs(self.tokens))

    def expected(self, count: int) -> list[int]:
        """What plain decoding of the answer goes on with."""
        tokens: list[int] = []
        while len(tokens) < count:
            logits = clean_logits(self.language, [*self.tokens, *tokens])
            tokens.append(self.sampler.sample(logits, tokens))
        return tokens


def expected_nodes(drafting: Drafting, tree: TreeSpec) -> dict[tuple[int, ...], int]:
    """The token of every node of a static tree by its path of ranks, from the language itself."""
    tokens: dict[tuple[int, ...], int] = {}
    paths: list[tuple[int, ...]] = [()]
    for parent, rank in zip(tree.parents, tree.ranks, strict=True):
        path = (*paths[parent], rank)
        before = [tokens[path[:end]] for end in range(1, len(path))]
        tokens[path] = best_of(clean_logits(drafting.language, [*drafting.tokens, *before]))[0][rank]
        paths.append(path)
    return tokens


def found_nodes(proposal: Proposal) -> dict[tuple[int, ...], int]:
    assert proposal.parents is not None and proposal.ranks is not None
    paths: list[tuple[int, ...]] = [()]
    tokens: dict[tuple[int, ...], int] = {}
    for token, parent, rank in zip(proposal.ids, proposal.parents, proposal.ranks, strict=True):
        assert 0 <= parent < len(paths), "parents come first"
        paths.append((*paths[parent], int(rank)))
        tokens[paths[-1]] = int(token)
    return tokens


def walk(drafting: Drafting, proposal: Proposal) -> tuple[list[int], list[int]]:
    """(accepted window rows, emitted tokens) of a target that samples each node and follows the equal child."""
    count = len(proposal.ids)
    parents = np.arange(count) if proposal.parents is None else proposal.parents
    path: list[int] = []
    emitted: list[int] = []
    row = 0
    while True:
        logits = clean_logits(drafting.language, [*drafting.tokens, *emitted])
        emitted.append(drafting.sampler.sample(logits, emitted))
        followed = [
            child + 1
            for child in range(count)
            if parents[child] == row and proposal.ids[child] == emitted[-1]
        ]
        if not followed:
            return path, emitted
        row = followed[0]
        path.append(row)


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


@pytest.mark.parametrize("name", TREES)
def test_every_node_of_a_static_tree_is_its_parents_candidate(name: str) -> None:
    tree = TREES[name]
    drafting = Drafting(tree=tree, capacity=512)
    rounds = np.random.default_rng(3)
    for _ in range(25):
        drafting.drafted()
        assert found_nodes(drafting.last) == expected_nodes(drafting, tree)
        assert drafting.context.runs[1:] == [f"level_{depth}" for depth in range(1, tree.depth)]
        path, emitted = walk(drafting, drafting.last)
        assert len(path) == tree.depth or name not in ("fan", "line", "comb")
        drafting.accept(*emitted[: rounds.integers(1, len(emitted) + 1)], 3)


@pytest.mark.parametrize("name", TREES)
def test_a_perfect_tree_accepts_its_whole_depth_for_fifty_rounds(name: str) -> None:
    tree = TREES[name]
    drafting = Drafting(tree=tree, capacity=512)
    for _ in range(50):
        drafting.drafted()
        path, emitted = walk(drafting, drafting.last)
        assert len(path) == tree.depth and (np.diff([0, *path]) > 0).all()
        drafting.accept(*emitted)


@pytest.mark.parametrize("nodes", [1, 4, 16, 64])
@pytest.mark.parametrize("branch", [1, 3])
def test_a_dynamic_tree_is_the_best_of_the_candidates_it_asked_for(nodes: int, branch: int) -> None:
    depth = 4
    drafting = Drafting(dynamic=DynamicTree(nodes=nodes, branch=branch), k=depth, capacity=512)
    for _ in range(12):
        drafting.drafted()
        found = found_nodes(drafting.last)
        assert found == published_tree(drafting, nodes, branch, depth)
        path, emitted = walk(drafting, drafting.last)
        assert path or nodes == 0
        drafting.accept(*emitted)


def published_tree(drafting: Drafting, nodes: int, branch: int, depth: int) -> dict[tuple[int, ...], int]:
    """EAGLE-2 by the book: expand the best `branch` of each level, rank every candidate, keep the best."""
    level: list[tuple[tuple[int, ...], list[int], float]] = [((), [], 0.0)]
    everything: list[tuple[tuple[int, ...], list[int], float]] = []
    for _ in range(depth):
        found = []
        for path, tokens, worth in level:
            ids, logprobs = best_of(clean_logits(drafting.language, [*drafting.tokens, *tokens]))
            for rank, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
                found.append(((*path, rank), [*tokens, token], worth + float(np.float32(logprob))))
        everything += found
        level = sorted(found, key=lambda node: -node[2])[:branch]
    return {path: tokens[-1] for path, tokens, _ in sorted(everything, key=lambda node: -node[2])[:nodes]}


def test_a_level_that_cannot_lead_to_a_node_is_not_asked_for() -> None:
    drafting = Drafting(dynamic=DynamicTree(nodes=2, branch=3), k=4)
    drafting.drafted()
    assert len(drafting.context.runs) < 5, "the best two nodes are found before the last level"
    wide = Drafting(dynamic=DynamicTree(nodes=64, branch=3), k=4)
    wide.drafted()
    assert wide.context.runs == ["extend_5", "level_1", "level_2", "level_3"]


@pytest.mark.parametrize("shape", [*TREES, "dynamic", "chain"])
@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("nodes", [0, 1, 2, 5])
def test_a_proposal_keeps_within_its_room_and_spends_no_level_too_many(
    shape: str, depth: int, nodes: int
) -> None:
    drafting = (
        Drafting()
        if shape == "chain"
        else Drafting(dynamic=DYNAMIC)
        if shape == "dynamic"
        else Drafting(tree=TREES[shape])
    )
    drafts = drafting.drafted(depth, nodes)
    if depth == 0 or nodes == 0:
        assert not drafts and not drafting.context.runs
        return
    assert 1 <= len(drafts) <= nodes
    levels = len(drafts)
    if shape != "chain":
        levels = max(len(path) for path in found_nodes(drafting.last))
    assert levels <= len(drafting.context.runs) <= depth
    assert levels == len(drafting.context.runs) or shape == "dynamic"


@pytest.mark.parametrize("params", [SAMPLED, replace(SAMPLED, top_p=0.9, repetition_penalty=1.3)])
def test_match_drafts_with_the_noise_of_the_answer(params: SamplingParams) -> None:
    drafting = Drafting(params, laws=True)
    drafts = drafting.drafted()
    assert drafts == drafting.expected(4) and drafting.last.probabilities is None
    assert drafting.context.runs == ["extend_5_law", "step_law", "step_law", "step_law"]


@pytest.mark.parametrize("shape", ["chain", "tree", "dynamic"])
def test_without_laws_the_candidates_are_ranked_under_the_noise(shape: str) -> None:
    """Better than the draft's own ranking: the target takes what leads under the noise, and that is known."""
    wide = TreeSpec(parents=(0, 0, 1, 1), ranks=(0, 1, 0, 1))
    rates = []
    for coupled in (True, False):
        accepted = 0
        for seed in range(40):
            params = SamplingParams(temperature=1.0, seed=seed)
            drafting = Drafting(
                params,
                k=2,
                tree=wide if shape == "tree" else None,
                dynamic=DynamicTree(nodes=4, branch=2) if shape == "dynamic" else None,
            )
            sampler = drafting.sampler
            if not coupled:
                drafting.sampler = Sampler(GREEDY, VOCAB, (), PROMPT)
            drafting.drafted()
            drafting.sampler = sampler
            accepted += len(walk(drafting, drafting.last)[0])
        rates.append(accepted / 80)
    assert rates[0] > rates[1] + 0.15 and rates[0] > 0.5


def test_rejection_reports_the_law_each_draft_of_a_chain_was_drawn_from() -> None:
    counts = np.zeros(VOCAB)
    for seed in range(150):
        drafting = Drafting(replace(REJECTION, seed=seed), k=2, laws=True)
        drafts = drafting.drafted()
        laws = drafting.last.probabilities
        assert laws is not None and laws.shape == (2, VOCAB) and laws.dtype == np.float32
        for depth, law in enumerate(laws):
            logits = clean_logits(drafting.language, [*PROMPT, *drafts[:depth]])
            assert np.array_equal(law, drafting.sampler.distribution(logits, drafts[:depth]))
            assert law[drafts[depth]] > 0
        counts[drafts[0]] += 1
        law = laws[0]
    assert np.abs(counts / 150 - law).max() < 0.1


def test_rejection_draws_siblings_without_replacement_from_their_parents_law() -> None:
    tree = TREES["bush"]
    seconds = np.zeros(VOCAB)
    for seed in range(120):
        drafting = Drafting(replace(REJECTION, seed=seed), tree=tree, laws=True)
        drafting.drafted()
        proposal = drafting.last
        assert proposal.parents is not None and proposal.probabilities is not None
        assert proposal.probabilities.shape == (len(proposal.ids) + 1, VOCAB)
        paths: list[list[int]] = [[]]
        for token, parent in zip(proposal.ids.tolist(), proposal.parents.tolist(), strict=True):
            paths.append([*paths[parent], token])
        assert len({tuple(path) for path in paths}) == len(paths), "siblings differ"
        for row in set(proposal.parents.tolist()):
            logits = clean_logits(drafting.language, [*PROMPT, *paths[row]])
            law = drafting.sampler.distribution(logits, paths[row])
            assert np.array_equal(proposal.probabilities[row], law)
        firsts, other = (paths[row + 1][0] for row in np.flatnonzero(proposal.parents == 0)[:2])
        assert firsts != other
        seconds[other] += 1
        root = proposal.probabilities[0].astype(np.float64)
    second = np.array(
        [sum(root[i] * root[j] / (1 - root[i]) for i in range(VOCAB) if i != j) for j in range(VOCAB)]
    )
    assert np.abs(seconds / 120 - second).max() < 0.12
    assert drafting.context.runs == ["extend_5_law", "level_1_law", "level_2_law", "level_3_law"]


def test_nodes_of_one_level_do_not_share_their_random_numbers() -> None:
    tree = TreeSpec(parents=(0, 0, 1, 2), ranks=(0, 1, 0, 0))
    flat = Language(habit=0.0)
    flat.logits = lambda rows: np.zeros(VOCAB, np.float32)  # type: ignore[method-assign]
    equal = 0
    for seed in range(60):
        drafting = Drafting(
            SamplingParams(temperature=1.0, seed=seed, accept="rejection"),
            tree=tree,
            laws=True,
            language=flat,
        )
        drafts = drafting.drafted()
        equal += drafts[2] == drafts[3]
    assert equal < 10


def test_a_law_with_fewer_tokens_than_the_tree_has_children_makes_a_smaller_tree() -> None:
    params = replace(REJECTION, top_k=2, frequency_penalty=0.0)
    for seed in range(20):
        drafting = Drafting(replace(params, seed=seed), tree=TREES["bush"], laws=True)
        drafting.drafted()
        proposal = drafting.last
        assert proposal.parents is not None and proposal.probabilities is not None
        assert np.bincount(proposal.parents).max() == 2 and len(proposal.ids) == 9
        for row, parent in enumerate(proposal.parents.tolist(), start=1):
            assert 0 <= parent < row
            assert proposal.probabilities[parent][proposal.ids[row - 1]] > 0


@pytest.mark.parametrize("shape", ["chain", "tree", "dynamic"])
def test_rejection_without_laws_or_at_temperature_zero_is_deterministic(shape: str) -> None:
    tree = TREES["bush"] if shape == "tree" else None
    dynamic = DYNAMIC if shape == "dynamic" else None
    for params, laws in ((REJECTION, shape == "dynamic"), (SamplingParams(accept="rejection"), True)):
        drafting = Drafting(params, tree=tree, dynamic=dynamic, laws=laws)
        first = drafting.drafted()
        assert first and drafting.last.probabilities is None
        assert drafting.drafted() == first


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_neither_greedy_nor_coupled_trees_read_logits(params: SamplingParams) -> None:
    for shape in ({"tree": TREES["bush"]}, {"dynamic": DYNAMIC}, {}):
        drafting = Drafting(params, **shape)
        drafting.context.logits = None  # type: ignore[assignment,method-assign]
        assert drafting.drafted()


@pytest.mark.parametrize("params", [SAMPLED, REJECTION])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_banning_all_that_a_reduced_draft_knows_ends_the_draft_and_not_the_answer(
    params: SamplingParams, shape: str
) -> None:
    """The target may know further tokens, so plain decoding would go on."""
    language = Language()
    known = language.logits
    language.logits = lambda rows: np.where(np.arange(VOCAB) < 10, known(rows), -np.inf)  # type: ignore[method-assign]
    banned = replace(params, logit_bias={token: float("-inf") for token in range(10)})
    drafting = Drafting(banned, language=language, laws=True, tree=TREES["bush"] if shape == "tree" else None)
    if shape == "chain" or params.accept == "rejection":
        assert drafting.drafted() == []
    drafting.params = replace(params, logit_bias={})
    drafting.sampler = Sampler(drafting.params, VOCAB, (), PROMPT)
    assert drafting.drafted()


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


def test_the_same_tokens_twice_propose_the_same() -> None:
    for drafting in (Drafting(), Drafting(tree=TREES["bush"]), Drafting(dynamic=DYNAMIC)):
        assert drafting.drafted() == drafting.drafted()


def test_one_token_has_no_pair_and_gets_no_draft() -> None:
    drafting = Drafting(prompt=[5])
    assert drafting.drafted() == [] and drafting.context.runs == []
    drafting.accept(6)
    assert drafting.drafted() == drafting.expected(4)


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


def test_a_graph_that_cannot_grow_the_tree_is_refused() -> None:
    tree = TREES["comb"]
    for levels, message in (
        ([], "level 1 of the draft's tree needs a window 1 wide with 1 rows, found none"),
        ([(1, 1)], "level 2 .* needs a window 2 wide with 1 rows, found none"),
        ([(1, 1), (1, 1)], "level 2 .* needs a window 2 wide with 1 rows, found one 1 wide with 1 rows"),
    ):
        graph = pair_spec(levels)
        context = PairContext(graph, Language())
        with pytest.raises(InvalidArgument, match=message):
            EagleProposer(context, eagle_spec(3, graph, tree=tree), vocab_size=VOCAB)
    graph = pair_spec([(3, 3), (5, 3)])
    with pytest.raises(InvalidArgument, match=r"level 2 .* needs a window 6 wide with 3 rows"):
        EagleProposer(PairContext(graph, Language()), eagle_spec(3, graph, dynamic=DYNAMIC), vocab_size=VOCAB)


def test_a_graph_of_another_kind_is_refused() -> None:
    graph = pair_spec()
    context = PairContext(graph, Language())
    bare = replace(context.window("step"), hidden=None)
    context._windows["step"] = bare
    with pytest.raises(InvalidArgument, match="profile 'step' has no hidden"):
        EagleProposer(context, eagle_spec(4, graph), vocab_size=VOCAB)
    graph = graph.model_copy(update={"profiles": graph.profiles[1:]})
    with pytest.raises(
        InvalidArgument, match="has the profiles extend_2, extend_5, prefill_8, expected 'step'"
    ):
        EagleProposer(PairContext(graph, Language()), eagle_spec(4, graph), vocab_size=VOCAB)
    wide = TreeSpec(parents=(0,), ranks=(CANDIDATES,))
    with pytest.raises(InvalidArgument, match=f"needs {CANDIDATES + 1}"):
        EagleProposer(
            PairContext(pair_spec(), Language()), eagle_spec(1, pair_spec(), tree=wide), vocab_size=VOCAB
        )
