"""What a new draft begins with: the target's own weights where its layers have the usual names and sizes.

A draft that begins as a piece of its target needs a fraction of the text that one of random weights needs.
"""

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PretrainedConfig, PreTrainedModel

from specexport.draft_models import DraftTarget, Eagle3Draft, EagleConfig, TappedLayers
from specexport.draft_models.pruned import PrunedForCausalLM, new_pruned
from specexport.errors import TrainingRefused

_MLP = ("gate_proj", "up_proj", "down_proj")
_EMBEDDING_SCALE = 0.5  # of the weights of the hidden half: embeddings are seen, the target's features lead


def new_eagle3(
    model: PreTrainedModel, target: DraftTarget, tapped: TappedLayers | None, ids: Tensor
) -> Eagle3Draft:
    """An EAGLE-3 draft of one layer for `target`, with the vocabulary `ids` [V] ascending."""
    draft = Eagle3Draft(
        EagleConfig(
            layer=draft_layer(model, target),
            target_hidden_size=target.hidden_size,
            target_vocab_size=target.padded_vocab_size,
            draft_vocab_size=len(ids),
            tapped=tapped,
        )
    )
    draft.set_vocabulary(ids)
    draft.embed_tokens.weight = nn.Parameter(target.embeddings.detach(), requires_grad=False)
    with torch.no_grad():
        draft.lm_head.weight.copy_(target.head.weight[ids])
        size = target.hidden_size
        draft.fc.weight.normal_(std=0.1 / size**0.5)
        draft.fc.weight[:, -size:] += torch.eye(size)  # the uppermost tap passes through
        _take_layer(draft, model)
    return draft


def change_vocabulary(draft: Eagle3Draft, target: DraftTarget, ids: Tensor) -> None:
    """Makes `draft` say `ids` [V] ascending: rows of the LM head that it has stay, the others begin as the target's."""
    rows = target.head.weight.detach()[ids].to(draft.lm_head.weight.dtype)
    places = draft.t2d.long().cumsum(dim=0) - 1  # [target vocabulary] a draft id, where there is one
    known = draft.t2d[ids]
    rows[known] = draft.lm_head.weight.detach()[places[ids[known]]]
    draft.config = dataclasses.replace(draft.config, draft_vocab_size=len(ids))
    draft.lm_head = nn.Linear(rows.shape[1], len(ids), bias=False)
    draft.lm_head.weight = nn.Parameter(rows)
    draft.d2t = torch.zeros(len(ids), dtype=torch.long)
    draft.set_vocabulary(ids)


def draft_layer(model: PreTrainedModel, target: DraftTarget) -> LlamaConfig:
    """A Llama layer of the target's sizes. All heads have keys of their own: embeddings pass through the values."""
    config = model.config
    heads = int(config.num_attention_heads)
    return LlamaConfig(
        hidden_size=target.hidden_size,
        intermediate_size=int(getattr(config, "intermediate_size", None) or 4 * target.hidden_size),
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=int(getattr(config, "head_dim", None) or target.hidden_size // heads),
        max_position_embeddings=target.max_positions,
        rms_norm_eps=float(getattr(config, "rms_norm_eps", None) or 1e-5),
        rope_parameters=getattr(config, "rope_parameters", None),
        vocab_size=target.padded_vocab_size,
    )


def _take_layer(draft: Eagle3Draft, model: PreTrainedModel) -> None:
    """What the target's last layer has under the usual names; the rest begins at random, its norms at 1."""
    decoder = model.get_decoder()
    layers, joined = getattr(decoder, "layers", None), draft.midlayer
    copy_norm(getattr(decoder, "norm", None), draft.norm)
    if layers is None:
        return
    layer = layers[-1]
    copy_norm(getattr(layer, "post_attention_layernorm", None), joined.post_attention_layernorm)
    copy_norm(getattr(layer, "input_layernorm", None), joined.hidden_norm)
    mlp, attention = getattr(layer, "mlp", None), getattr(layer, "self_attn", None)
    for name in _MLP:
        copy_weight(getattr(mlp, name, None), getattr(joined.mlp, name))
    copy_weight(getattr(attention, "o_proj", None), joined.self_attn.o_proj)
    size, width = draft.config.hidden_size, joined.self_attn.head_dim
    for name in ("q_proj", "k_proj", "v_proj"):
        source, ours = getattr(attention, name, None), getattr(joined.self_attn, name).weight
        if source is None or source.weight.shape[1] != size or len(ours) % len(source.weight):
            continue
        repeats = len(ours) // len(source.weight)
        rows = source.weight.view(-1, width, size).repeat_interleave(repeats, dim=0).reshape(len(ours), size)
        ours[:, size:] = rows
        ours[:, :size].normal_(std=_EMBEDDING_SCALE * float(rows.std()))


def copy_norm(source: nn.Module | None, ours: nn.Module) -> None:
    """Takes what an RMS norm of our size multiplies with, in some models 1 more than its weight; no other norm."""
    found, weight = getattr(source, "weight", None), ours.weight
    assert isinstance(weight, Tensor)
    if source is None or not isinstance(found, Tensor) or found.shape != weight.shape:
        return
    factors = source(torch.ones_like(found)[None])[0]
    for taken in (found, found + 1):
        if torch.allclose(factors, taken, rtol=1e-3, atol=1e-3):
            weight.copy_(taken)
            return


def copy_weight(source: nn.Module | None, ours: nn.Module) -> None:
    """Takes the source's weight where there is one of our shape."""
    found, weight = getattr(source, "weight", None), ours.weight
    assert isinstance(weight, Tensor)
    if isinstance(found, Tensor) and found.shape == weight.shape:
        weight.copy_(found)


def new_small_model(
    model: PreTrainedModel, target: DraftTarget, layers: tuple[int, ...], ids: Tensor
) -> PrunedForCausalLM:
    """The target with `layers` only, scoring `ids` [V] ascending. Raises as `require_layers`."""
    require_layers(model.config, layers)
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = len(layers)
    config.tie_word_embeddings = False
    draft = new_pruned(LlamaConfig(**_plain(config)), target, ids)
    decoder = model.get_decoder()
    for ours, index in zip(draft.model.layers, layers, strict=True):
        ours.load_state_dict(decoder.layers[index].state_dict())
    draft.model.norm.load_state_dict(decoder.norm.state_dict())
    return draft


def require_layers(config: PretrainedConfig, layers: tuple[int, ...]) -> None:
    """Raises `TrainingRefused` for layers that the target has not, and for a target that is not a Llama model, whose
    layers a Llama draft cannot take over."""
    if config.model_type != "llama":
        raise TrainingRefused(
            f"--kind model: found a target of type {config.model_type}, expected llama, whose layers the draft "
            "takes over; train eagle3 or medusa"
        )
    count = int(config.num_hidden_layers)
    if not layers or list(layers) != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] < count:
        raise TrainingRefused(
            f"--layers: found {','.join(map(str, layers))}, expected ascending layers within 0..{count - 1}"
        )


def _plain(config: PretrainedConfig) -> dict[str, Any]:
    left_out = (
        "quantization_config",
        "architectures",
        "layer_types",
        "torch_dtype",
        "dtype",
        "transformers_version",
    )
    return {key: value for key, value in config.to_dict().items() if key not in left_out}
