"""What the PyTorch module of a draft computes for fixed random rows, cached with its canonical graph.

A chain of pairs that extends the cache, and a tree behind it whose nodes are judged as chains of their own ancestors.
Taken once while the module is in memory.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from specexport.draft_models import Eagle1Draft, Eagle3Draft, MedusaHeads
from specexport.graph.canonical import named_rows, rows_of

DRAFT_REFERENCE_NAME = "draft_reference.npz"
TREE_PARENTS = (-1, -1, -1, 0, 0, 1, 3, 3, 5, 6)
"""Parents of the nodes of the tree after the pairs, level by level; -1 for the last pair."""

_SEED = 20240602


@dataclass(frozen=True)
class DraftReference:
    """Random rows and what the module makes of them; of Medusa heads only `hidden` [T, h] and `scores` [T, heads, V].

    `ids` [T + n] and `hidden` [T + n, h]: T pairs of a chain, then the n nodes of `TREE_PARENTS`. `scores`
    [T + n, draft_vocab] and `following` [T + n, h] are the module's answers; `keys` and `values` per layer
    [kv_heads, T, head_dim]. `target_ids` [draft_vocab]: what a score is about.
    """

    ids: NDArray[np.int64]
    hidden: NDArray[np.float32]
    scores: NDArray[np.float32]
    following: NDArray[np.float32]
    target_ids: NDArray[np.int64]
    keys: tuple[NDArray[np.float32], ...] = ()
    values: tuple[NDArray[np.float32], ...] = ()

    @property
    def pairs(self) -> int:
        """T."""
        return len(self.hidden) - (len(TREE_PARENTS) if self.keys else 0)


def take_heads_reference(heads: MedusaHeads, *, vocab_size: int, tokens: int) -> DraftReference:
    """Return what heads make of `tokens` random rows; they name ids of the target's `vocab_size` tokens."""
    draw = np.random.default_rng(_SEED)
    hidden = draw.standard_normal((tokens, heads.config.hidden_size)).astype(np.float32)
    with torch.no_grad():
        scores = heads(_like(heads, hidden)[None])[0]
    nothing = np.zeros((0, 0), np.float32)
    every = np.arange(vocab_size)
    return DraftReference(every[:0], hidden, _array(scores)[..., :vocab_size], nothing, every)


def take_layer_reference(
    draft: Eagle1Draft | Eagle3Draft, *, vocab_size: int, padded_vocab_size: int, tokens: int
) -> DraftReference:
    """Return what a layer makes of `tokens` random rows and a tree behind them; ids are of the target's tokens."""
    draw = np.random.default_rng(_SEED)
    count = tokens + len(TREE_PARENTS)
    ids = draw.integers(0, vocab_size, count)
    hidden = draw.standard_normal((count, draft.config.hidden_size)).astype(np.float32)
    cache = DynamicCache()
    chain = _run(draft, ids[:tokens], hidden[:tokens], cache)
    answers = [chain, *(_last(_run_path(draft, ids, hidden, tokens, path)) for path in tree_paths())]
    known = draft.target_ids.numpy() if isinstance(draft, Eagle3Draft) else np.arange(padded_vocab_size)
    known = known[known < vocab_size]
    layers = [layer for layer in cache.layers if isinstance(layer, DynamicLayer)]
    return DraftReference(
        ids,
        hidden,
        np.concatenate([scores for scores, _ in answers])[:, : len(known)],
        np.concatenate([following for _, following in answers]),
        known,
        tuple(_array(layer.keys[0]) for layer in layers if layer.keys is not None),
        tuple(_array(layer.values[0]) for layer in layers if layer.values is not None),
    )


def save_draft_reference(reference: DraftReference, directory: Path) -> None:
    """Write `DRAFT_REFERENCE_NAME` into `directory`."""
    np.savez(
        directory / DRAFT_REFERENCE_NAME,
        allow_pickle=False,
        ids=reference.ids,
        hidden=reference.hidden,
        scores=reference.scores,
        following=reference.following,
        target_ids=reference.target_ids,
        **named_rows(reference.keys, reference.values),
    )


def load_draft_reference(directory: Path) -> DraftReference:
    """Return what `save_draft_reference` wrote."""
    with np.load(directory / DRAFT_REFERENCE_NAME, allow_pickle=False) as file:
        return DraftReference(
            file["ids"],
            file["hidden"],
            file["scores"],
            file["following"],
            file["target_ids"],
            *rows_of(file),
        )


def tree_paths() -> list[tuple[int, ...]]:
    """For each node of the reference tree: its ancestors and itself, as node numbers."""
    paths: list[tuple[int, ...]] = []
    for node, parent in enumerate(TREE_PARENTS):
        paths.append((*(paths[parent] if parent >= 0 else ()), node))
    return paths


def _run(
    draft: Eagle1Draft | Eagle3Draft,
    ids: NDArray[np.int64],
    hidden: NDArray[np.float32],
    cache: DynamicCache | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scores and following hidden states of one chain from position 0."""
    positions = torch.arange(len(ids))[None]
    with torch.no_grad():
        found = draft.layer(
            _like(draft, hidden)[None], draft.embed(torch.from_numpy(ids)[None]), positions, None, cache
        )
        return _array(draft.logits(found)[0]), _array(draft.fed_back(found)[0])


def _run_path(
    draft: Eagle1Draft | Eagle3Draft,
    ids: NDArray[np.int64],
    hidden: NDArray[np.float32],
    pairs: int,
    path: tuple[int, ...],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rows = np.concatenate([np.arange(pairs), pairs + np.array(path)])
    return _run(draft, ids[rows], hidden[rows])


def _last(
    answers: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    scores, following = answers
    return scores[-1:], following[-1:]


def _like(module: torch.nn.Module, rows: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(rows).to(next(module.parameters()).dtype)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.float().numpy()
    return array
