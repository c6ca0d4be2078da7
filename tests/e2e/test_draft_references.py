"""What the runtime proposes is what PyTorch's own modules of target and draft name for the same tokens.

The reference has no cache, no window and no profile: it recomputes every pair for every node.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from specexport.checkpoints.loading import load_checkpoint
from specexport.checkpoints.named import RecipeCheckpoints
from specexport.draft_models import Eagle1Draft, Eagle3Draft, MedusaHeads
from specruntime.drafts import EagleDraft as EagleSpec
from specruntime.drafts import LayerSkipDraft, MedusaDraft, Proposal
from specruntime.manifest.schema import TreeSpec
from specruntime.sampling.params import SamplingParams
from specruntime.session import Session
from tests.e2e.conftest import DRAFT_KINDS, Opened, draft_recipe

VOCAB = 259
CANDIDATES = 8
Ranked = tuple[list[int], list[float]]  # ids, log-probabilities, best first
Rank = Callable[[list[int], list[int]], Ranked]  # (committed, drafted) -> the candidates behind them
Nodes = dict[tuple[int, ...], int]  # path of ranks -> token


class Reference:
    """The models of a recipe in PyTorch."""

    def __init__(self, kind: str) -> None:
        recipe = draft_recipe(kind)
        self.model: Any = load_checkpoint(recipe.target, "fp32").model
        if kind != "layer-skip":
            self.draft: Any = RecipeCheckpoints(recipe, lambda _: None).load_draft()[0]

    @torch.no_grad()
    def residuals(self, tokens: list[int]) -> list[torch.Tensor]:
        """[1, n, hidden] entering each layer, then what leaves the last, then its norm."""
        found: list[torch.Tensor] = []
        layers = self.model.model.layers
        hooks = [layer.register_forward_pre_hook(lambda _, args: found.append(args[0])) for layer in layers]
        hooks.append(layers[-1].register_forward_hook(lambda _, args, out: found.append(out)))
        hooks.append(self.model.model.norm.register_forward_hook(lambda _, args, out: found.append(out)))
        self.model(torch.tensor([tokens]), use_cache=False)
        for hook in hooks:
            hook.remove()
        return found

    @torch.no_grad()
    def eagle(self, committed: list[int], drafted: list[int]) -> Ranked:
        draft, residuals = self.draft, self.residuals(committed)
        if isinstance(draft, Eagle3Draft):
            features = torch.cat([residuals[layer] for layer in draft.config.layer_ids], dim=-1)
        else:
            assert isinstance(draft, Eagle1Draft)
            features = residuals[-1]
        hidden = draft.project(features[:, :-1])
        ids = committed[1:]
        for token in [*drafted, None]:
            out = draft.layer(hidden, draft.embed(torch.tensor([ids])), torch.arange(len(ids))[None])
            if token is not None:
                hidden = torch.cat([hidden, draft.fed_back(out[:, -1:])], dim=1)
                ids = [*ids, token]
        logits = draft.logits(out[0, -1])
        if isinstance(draft, Eagle3Draft):
            return ranked(logits, draft.target_ids)
        return ranked(logits[:VOCAB], torch.arange(VOCAB))

    @torch.no_grad()
    def medusa(self, committed: list[int], drafted: list[int]) -> Ranked:
        assert isinstance(self.draft, MedusaHeads)
        hidden = self.residuals(committed)[-1][0, -2]
        return ranked(self.draft.logits(hidden)[len(drafted), :VOCAB], torch.arange(VOCAB))

    @torch.no_grad()
    def skipping(self, kept: tuple[int, ...], committed: list[int], drafted: list[int]) -> int:
        """The next token by the kept layers, over the cache that all layers left of the tokens before the last."""
        inner, config, cache = self.model.model, self.model.config, DynamicCache()
        self.model(torch.tensor([committed[:-1]]), cache=cache)
        everything, depth = inner.layers, config.num_hidden_layers
        inner.layers, config.num_hidden_layers = torch.nn.ModuleList(everything[i] for i in kept), len(kept)
        try:
            fed = torch.tensor([[committed[-1], *drafted]])
            logits = self.model(fed, cache=cache).logits[0, -1, :VOCAB]
        finally:
            inner.layers, config.num_hidden_layers = everything, depth
        return int(logits.argmax())


def ranked(logits: torch.Tensor, ids: torch.Tensor) -> Ranked:
    best = torch.log_softmax(logits.double(), dim=-1).topk(CANDIDATES)
    return ids[best.indices].tolist(), best.values.tolist()


def static_nodes(tree: TreeSpec, committed: list[int], rank: Rank) -> Nodes:
    paths: list[tuple[int, ...]] = [()]
    nodes: Nodes = {}
    for parent, place in zip(tree.parents, tree.ranks, strict=True):
        path = (*paths[parent], place)
        before = [nodes[path[:end]] for end in range(1, len(path))]
        nodes[path] = rank(committed, before)[0][place]
        paths.append(path)
    return nodes


def dynamic_nodes(spec: EagleSpec, committed: list[int], rank: Rank) -> Nodes:
    """EAGLE-2 by the book: expand the best `branch` of each level, rank every candidate, keep the best."""
    assert spec.dynamic is not None
    level: list[tuple[tuple[int, ...], list[int], float]] = [((), [], 0.0)]
    everything: list[tuple[tuple[int, ...], list[int], float]] = []
    for _ in range(spec.k):
        found = []
        for path, tokens, worth in level:
            ids, logprobs = rank(committed, tokens)
            for place, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
                found.append(((*path, place), [*tokens, token], worth + logprob))
        everything += found
        level = sorted(found, key=lambda node: -node[2])[: spec.dynamic.branch]
    best = sorted(everything, key=lambda node: -node[2])[: spec.dynamic.nodes]
    return {path: tokens[-1] for path, tokens, _ in best}


def proposed_nodes(proposal: Proposal) -> Nodes:
    count = len(proposal.ids)
    parents = np.arange(count) if proposal.parents is None else proposal.parents
    ranks = np.zeros(count, np.int64) if proposal.ranks is None else proposal.ranks
    paths: list[tuple[int, ...]] = [()]
    for parent, place in zip(parents.tolist(), ranks.tolist(), strict=True):
        paths.append((*paths[parent], place))
    return dict(zip(paths[1:], proposal.ids.tolist(), strict=True))


def expected_nodes(reference: Reference, session: Session) -> Nodes:
    spec, committed = session.manifest.draft, session.tokens.tolist()
    if isinstance(spec, LayerSkipDraft):
        line: list[int] = []
        while len(line) < spec.k:
            line.append(reference.skipping(spec.layers, committed, line))
        return {(0,) * depth: token for depth, token in enumerate(line, start=1)}
    if isinstance(spec, MedusaDraft):
        return static_nodes(spec.tree, committed, reference.medusa)
    assert isinstance(spec, EagleSpec)
    if spec.dynamic is not None:
        return dynamic_nodes(spec, committed, reference.eagle)
    chain = TreeSpec(parents=tuple(range(spec.k)), ranks=(0,) * spec.k)
    return static_nodes(spec.tree or chain, committed, reference.eagle)


@pytest.mark.parametrize("kind", DRAFT_KINDS)
def test_every_drafted_token_is_the_one_pytorch_names(kind: str, opened: Opened) -> None:
    reference = Reference(kind)
    session = opened(kind).new_session()
    session.append([int(token) for token in np.random.default_rng(5).integers(3, 250, 41)])
    session.begin(SamplingParams(temperature=0.9, seed=2, ignore_eos=True))
    session.round()
    greedy = opened(kind).new_session()
    for _ in range(6):
        session.round()
        greedy.reset()
        greedy.append(session.tokens)
        greedy.begin(SamplingParams(ignore_eos=True))
        greedy.round()
        for _ in range(3):
            sampler = greedy._sampler
            assert sampler is not None
            assert proposed_nodes(greedy._propose(sampler)) == expected_nodes(reference, greedy)
            greedy.round()
