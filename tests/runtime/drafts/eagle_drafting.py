"""An EAGLE proposer over a scripted draft graph, the trees it grows, and a target that walks them."""

import numpy as np

from specruntime.drafts import Proposal
from specruntime.drafts.eagle import DynamicTree, EagleProposer
from specruntime.manifest.schema import TreeSpec
from specruntime.sampling.params import SamplingParams
from tests.runtime.scripted_draft import PairContext, Story, clean_pairs, eagle_spec, level_sizes, pair_spec
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
