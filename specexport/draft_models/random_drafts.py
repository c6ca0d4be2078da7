"""Drafts of random weights for a target: every kind can be built and tested without training one."""

from typing import TypeVar

import torch
from torch import nn
from transformers import LlamaConfig

from specexport.draft_models.configs import EagleConfig, MedusaConfig
from specexport.draft_models.eagle import Eagle1Draft, Eagle3Draft
from specexport.draft_models.eagle_formats import EagleKind
from specexport.draft_models.loading import attach, cast_weights
from specexport.draft_models.medusa import MedusaHeads
from specexport.draft_models.tapped_layers import TappedFeatures, default_layer_ids
from specexport.draft_models.targets import DraftTarget
from specexport.errors import CheckpointUnsupported

AnyDraft = TypeVar("AnyDraft", Eagle1Draft, Eagle3Draft, MedusaHeads)

_HEAD_DIM = 16
_SCALE = 0.2  # of weights; large enough that a draft's candidates differ from token to token


def random_eagle(
    kind: EagleKind, target: DraftTarget, *, seed: int, draft_vocab_size: int | None = None
) -> Eagle1Draft | Eagle3Draft:
    """One Llama layer of the target's hidden size. EAGLE-3: the draft scores every n-th token of the target.

    Raises `CheckpointUnsupported` for a `draft_vocab_size` beyond the target's.
    """
    heads = max(1, target.hidden_size // _HEAD_DIM)
    layer = LlamaConfig(
        hidden_size=target.hidden_size,
        intermediate_size=2 * target.hidden_size,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2 if heads % 2 == 0 else heads,
        head_dim=_HEAD_DIM,
        max_position_embeddings=target.max_positions or 2048,
        vocab_size=len(target.embeddings),
    )
    size = draft_vocab_size or target.vocab_size
    if size > target.vocab_size:
        raise CheckpointUnsupported(
            f"source.random.draft_vocab_size: found {size}, expected at most {target.vocab_size}, the tokens of the "
            f"target {target.name}"
        )
    config = EagleConfig(
        layer=layer,
        target_hidden_size=target.hidden_size,
        target_vocab_size=len(target.embeddings),
        draft_vocab_size=size if kind == "eagle3" else target.padded_vocab_size,
        tapped=_tapped(target.layers) if kind == "eagle3" else None,
        fc_bias=kind == "eagle",
    )
    if kind == "eagle":
        return _drawn(Eagle1Draft(config), seed, target)
    draft = _drawn(Eagle3Draft(config), seed, target)
    draft.set_vocabulary(torch.arange(size) * target.vocab_size // size)
    return draft


def random_medusa(target: DraftTarget, *, seed: int, heads: int, layers: int = 1) -> MedusaHeads:
    """Heads with residual blocks of their own and the target's LM head."""
    config = MedusaConfig(
        heads=heads,
        layers=layers,
        hidden_size=target.hidden_size,
        vocab_size=target.padded_vocab_size,
        own_head=False,
    )
    return _drawn(MedusaHeads(config), seed, target)


def _tapped(layers: int) -> TappedFeatures:
    """Return the published choice, or, for targets too small for it, the first, the middle and the last hidden
    state.
    """
    ids = default_layer_ids(layers)
    if ids[0] < ids[1] < ids[2]:
        return TappedFeatures(ids, "the published choice")
    return TappedFeatures((0, (layers + 1) // 2, layers), "first, middle and last: the target has few layers")


def _drawn(draft: AnyDraft, seed: int, target: DraftTarget) -> AnyDraft:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in draft.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                for parameter in module.parameters():
                    parameter.normal_(std=_SCALE, generator=generator)
    cast_weights(draft, target.dtype)
    attach(draft, target, require_hash=None, name="the random draft")
    return draft.eval()
