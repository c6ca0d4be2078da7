"""Traces a draft module into its canonical ONNX graph: hidden rows and tokens in, candidates in target ids out.

Owns the names and symbolic shapes of the draft graphs. The hooks are those of the target (`adapter`), so the same
passes lower both. Knows nothing of backends.
"""

from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import causal_mask_function

from specexport.draft_models import Eagle1Draft, Eagle3Draft, MedusaHeads
from specexport.export.adapter import (
    IMPLEMENTATION,
    ScatterCache,
    WindowInputs,
    window_attention,
    window_attention_mask,
    window_inputs,
)
from specexport.export.trace import export_module

_EXAMPLE_BATCH, _EXAMPLE_WIDTH, _EXAMPLE_ROWS = 2, 5, 3
_TOPK = ["topk_ids", "topk_logprobs"]
_CALLED = "the draft"


class TracedCandidates(nn.Module):
    """Scores of the draft's vocabulary -> its best candidates in target ids, and a distribution over the target's
    vocabulary.

    `target_ids` [draft_vocab] ascend; those of `vocab_size` and more are padding and are never named.
    """

    target_ids: Tensor
    places: Tensor

    def __init__(self, target_ids: Tensor, *, vocab_size: int, padded_vocab_size: int, count: int) -> None:
        super().__init__()
        real = target_ids[target_ids < vocab_size]
        places = torch.full((padded_vocab_size,), len(real))  # behind the last score stands -inf
        places[real] = torch.arange(len(real))
        self.register_buffer("target_ids", real)
        self.register_buffer("places", places)
        self._count = min(count, len(real))
        self._names_all = torch.equal(real, torch.arange(len(real)))

    def best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """[..., draft_vocab] -> ids and log-probabilities [..., K], best first."""
        logprobs = torch.log_softmax(scores[..., : len(self.target_ids)], dim=-1)
        best, places = torch.topk(logprobs, self._count, dim=-1)
        if self._names_all:
            return places, best
        # An embedding of one number: a plain Gather in the graph.
        return nn.functional.embedding(places, self.target_ids[:, None]).squeeze(-1), best

    def padded_logits(self, scores: Tensor) -> Tensor:
        """[..., draft_vocab] -> logits [..., padded_vocab], -inf for ids that the draft does not know."""
        real = scores[..., : len(self.target_ids)]
        padded = torch.cat([real, torch.full_like(real[..., :1], float("-inf"))], dim=-1)
        return torch.index_select(padded, -1, self.places)


class _EagleForward(nn.Module):
    """The signature of an EAGLE draft's graph; `past` as in the target's."""

    def __init__(self, draft: Eagle1Draft | Eagle3Draft, candidates: TracedCandidates, capacity: int) -> None:
        super().__init__()
        self.draft = draft
        self.candidates = candidates
        self._capacity = capacity

    def forward(
        self,
        input_ids: Tensor,  # [B, W] token t+1
        hidden: Tensor,  # [B, W, h] the target's features of position t, or this graph's next_hidden
        position_ids: Tensor,  # [B, W] t
        cache_length: Tensor,  # [B]
        window_mask: Tensor,  # [B, W, W]
        logits_rows: Tensor,  # [B, R]
        past: list[Tensor],  # 2 x layers of [B, kv_heads, capacity, head_dim]
    ) -> tuple[Tensor, ...]:
        cache = ScatterCache(past[0::2], past[1::2], cache_length)
        inputs = WindowInputs(position_ids, cache_length, window_mask, logits_rows, self._capacity)
        batch, width = input_ids.shape
        with window_inputs(inputs):
            mask = window_attention_mask(batch, width, self._capacity, causal_mask_function)
            embeds = self.draft.embed(input_ids)
            found = self.draft.layer(hidden.to(embeds.dtype), embeds, position_ids, mask, cache)
        rows = torch.gather(found, 1, logits_rows[:, :, None].expand(-1, -1, found.shape[-1]))
        scores = self.draft.logits(rows).float()  # [B, R, draft_vocab]
        ids, logprobs = self.candidates.best(scores)
        present = [tensor for pair in cache.present if pair is not None for tensor in pair]
        following = self.draft.fed_back(found).float()
        return (ids, logprobs, following, self.candidates.padded_logits(scores), *present)


class _MedusaForward(nn.Module):
    """The signature of the heads' graph."""

    def __init__(self, heads: MedusaHeads, candidates: TracedCandidates) -> None:
        super().__init__()
        self.heads = heads
        self.candidates = candidates

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:  # [B, W, h]
        dtype = next(self.heads.parameters()).dtype
        return self.candidates.best(self.heads(hidden.to(dtype)).float())  # [B, W, heads, K]


def trace_eagle(
    draft: Eagle1Draft | Eagle3Draft,
    *,
    capacity: int,
    vocab_size: int,
    padded_vocab_size: int,
    candidates: int,
) -> ir.Model:
    """Return the canonical graph of an EAGLE draft with a cache of `capacity` rows, naming `candidates` tokens a row.

    `vocab_size` and `padded_vocab_size` are the target's. Raises `CheckpointUnsupported` when the draft does something
    the graph cannot carry.
    """
    config = draft.config.layer
    names = [f"{kind}.{layer}" for layer in range(config.num_hidden_layers) for kind in ("key", "value")]
    named = _candidates(draft, vocab_size, padded_vocab_size, candidates)
    batch, width, rows = (torch.export.Dim(symbol) for symbol in ("B", "W", "R"))
    shapes: dict[str, Any] = {
        "input_ids": {0: batch, 1: width},
        "hidden": {0: batch, 1: width},
        "position_ids": {0: batch, 1: width},
        "cache_length": {0: batch},
        "window_mask": {0: batch, 1: width, 2: width},
        "logits_rows": {0: batch, 1: rows},
        "past": [{0: batch} for _ in names],
    }
    AttentionInterface.register(IMPLEMENTATION, window_attention)
    with draft.attention(IMPLEMENTATION):
        return export_module(
            _EagleForward(draft, named, capacity),
            _eagle_example(draft, capacity),
            shapes,
            [*list(shapes)[:-1], *(f"past_{name}" for name in names)],
            [*_TOPK, "next_hidden", "logits", *(f"present_{name}" for name in names)],
            called=_CALLED,
        )


def trace_medusa(heads: MedusaHeads, *, vocab_size: int, padded_vocab_size: int, candidates: int) -> ir.Model:
    """Return the canonical graph of Medusa heads. Raises as `trace_eagle`."""
    named = _candidates(heads, vocab_size, padded_vocab_size, candidates)
    batch, rows = torch.export.Dim("B"), torch.export.Dim("R")
    example = torch.zeros(_EXAMPLE_BATCH, _EXAMPLE_ROWS, heads.config.hidden_size)
    shapes: dict[str, Any] = {"hidden": {0: batch, 1: rows}}
    forward = _MedusaForward(heads, named)
    model = export_module(forward, (example,), shapes, ["hidden"], _TOPK, called=_CALLED)
    (hidden,) = model.graph.inputs
    hidden.shape = ir.Shape(["B", "W", heads.config.hidden_size])  # as many rows as answers
    return model


def _candidates(
    draft: Eagle1Draft | Eagle3Draft | MedusaHeads, vocab_size: int, padded_vocab_size: int, count: int
) -> TracedCandidates:
    ids = draft.target_ids if isinstance(draft, Eagle3Draft) else torch.arange(padded_vocab_size)
    return TracedCandidates(ids, vocab_size=vocab_size, padded_vocab_size=padded_vocab_size, count=count)


def _eagle_example(draft: Eagle1Draft | Eagle3Draft, capacity: int) -> tuple[Tensor | list[Tensor], ...]:
    batch, width, rows = _EXAMPLE_BATCH, _EXAMPLE_WIDTH, _EXAMPLE_ROWS
    config, dtype = draft.config.layer, draft.embed_tokens.weight.dtype
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = (batch, int(config.num_key_value_heads or config.num_attention_heads), capacity, int(head_dim))
    return (
        torch.zeros(batch, width, dtype=torch.long),
        torch.zeros(batch, width, draft.config.hidden_size),
        torch.arange(width).repeat(batch, 1),
        torch.full((batch,), 3),
        torch.tril(torch.ones(width, width, dtype=torch.bool)).repeat(batch, 1, 1),
        torch.arange(rows).repeat(batch, 1),
        [torch.zeros(shape, dtype=dtype) for _ in range(2 * config.num_hidden_layers)],
    )
