"""What a new draft begins with: the target's own weights where its layers have the usual names and sizes.

A draft that begins as a piece of its target needs a fraction of the text that one of random weights needs.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PretrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN

from specexport.draft_models import DraftTarget, Eagle3Draft, EagleConfig, TappedFeatures
from specexport.draft_models.pruned import PrunedForCausalLM, new_pruned
from specexport.errors import TrainingRefused

_MLP = ("gate_proj", "up_proj", "down_proj")
_PROBED_TOKENS = 64
_PARTIAL = "partial_rotary_factor"
_EMBEDDING_SCALE = 0.5  # of the weights of the hidden half: embeddings are seen, the target's features lead


def new_eagle3(
    model: PreTrainedModel,
    target: DraftTarget,
    tapped: TappedFeatures | None,
    ids: Tensor,
    say: Callable[[str], None] = lambda text: None,
) -> Eagle3Draft:
    """Return an EAGLE-3 draft of one layer for `target`, with the vocabulary `ids` [V] ascending.

    `say` gets the reason where the layer cannot begin as the target's last.
    """
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
        _take_layer(draft, model, say)
    return draft


def change_vocabulary(draft: Eagle3Draft, target: DraftTarget, ids: Tensor) -> None:
    """Make `draft` say `ids` [V] ascending: rows of the LM head that it has stay, the others begin as the target's."""
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
    """Return a Llama layer of the target's sizes. All heads have keys of their own: embeddings pass through the
    values.
    """
    config = model.config
    heads = int(config.num_attention_heads)
    # A Llama layer turns whole heads, whatever part of one the target turns.
    rope = {key: value for key, value in _rope_parameters(config).items() if key != _PARTIAL}
    return LlamaConfig(
        hidden_size=target.hidden_size,
        intermediate_size=int(getattr(config, "intermediate_size", None) or 4 * target.hidden_size),
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=int(getattr(config, "head_dim", None) or target.hidden_size // heads),
        max_position_embeddings=target.max_positions,
        rms_norm_eps=float(getattr(config, "rms_norm_eps", None) or 1e-5),
        rope_parameters=rope or None,
        vocab_size=target.padded_vocab_size,
        hidden_act=_activation(config),
    )


def _rope_parameters(config: PretrainedConfig) -> dict[str, Any]:
    """Return the rotary table of the target's last layer, whose queries and keys the draft's begin as; {} where it has
    none.

    Some models keep a table for each type of layer.
    """
    stated = getattr(config, "rope_parameters", None) or {}
    if stated and all(isinstance(each, dict) for each in stated.values()):
        kinds = getattr(config, "layer_types", None)
        stated = stated.get(kinds[-1] if kinds else "", next(iter(stated.values())))
    return dict(stated)


def _activation(config: PretrainedConfig) -> str:
    """Return the name of the MLP's activation where it has one; else Llama's own."""
    stated = getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", None)
    return stated if isinstance(stated, str) and stated in ACT2FN else "silu"


@dataclass
class _Seen:
    """What passed through a module in a probe: its first input and its output, [B, W, size]."""

    given: Tensor
    made: Tensor


@dataclass
class _LayerParts:
    """The target's last layer under the usual names, its norms by what they multiply.

    `before_*` make what attention or MLP reads; `after_*` scale what it answered, before the residual is added.
    """

    attention: nn.Module
    mlp: nn.Module
    before_attention: nn.Module | None
    before_mlp: nn.Module | None
    after_attention: nn.Module | None
    after_mlp: nn.Module | None
    seen: dict[nn.Module, _Seen]

    @property
    def missing(self) -> str | None:
        """Why the draft's layer, which norms what both parts read, cannot begin as this one."""
        without = [
            part
            for part, norm in (("attention", self.before_attention), ("MLP", self.before_mlp))
            if norm is None
        ]
        return f"its {' and '.join(without)} read hidden states that no norm scales" if without else None


def _layer_parts(model: PreTrainedModel) -> _LayerParts | None:
    """Return the parts of the last layer, found by running it on a few tokens; None where it has other names."""
    layers = getattr(model.get_decoder(), "layers", None)
    layer = layers[-1] if isinstance(layers, nn.ModuleList) else None
    attention, mlp = getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
    if layer is None or attention is None or mlp is None:
        return None
    inner = [each for part in (attention, mlp) for each in part.modules()]
    norms = [each for each in layer.children() if each not in inner and _scales(each)]
    watched = [attention, mlp, *norms, *_head_norms(attention)]
    seen = _watch(model, watched)
    if attention not in seen or mlp not in seen:
        return None

    def making(part: nn.Module) -> nn.Module | None:
        return next((n for n in norms if n in seen and _same(seen[n].made, seen[part].given)), None)

    def scaling(part: nn.Module) -> nn.Module | None:
        return next((n for n in norms if n in seen and _same(seen[n].given, seen[part].made)), None)

    return _LayerParts(attention, mlp, making(attention), making(mlp), scaling(attention), scaling(mlp), seen)


def _watch(model: PreTrainedModel, modules: list[nn.Module]) -> dict[nn.Module, _Seen]:
    seen: dict[nn.Module, _Seen] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = args[0] if args else kwargs.get("hidden_states")
        made = output[0] if isinstance(output, tuple) else output
        if isinstance(given, Tensor) and isinstance(made, Tensor):
            seen[module] = _Seen(given, made)

    hooks = [module.register_forward_hook(note, with_kwargs=True) for module in modules]
    ids = torch.randint(
        0, int(model.config.vocab_size), (1, _PROBED_TOKENS), generator=torch.Generator().manual_seed(0)
    )
    try:
        with torch.no_grad():
            model.get_decoder()(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _scales(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 1


def _head_norms(attention: nn.Module) -> list[nn.Module]:
    found = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    return [norm for norm in found if norm is not None and _scales(norm)]


def _same(made: Tensor, given: Tensor) -> bool:
    return made is given or (made.shape == given.shape and torch.equal(made, given))


def _take_layer(draft: Eagle3Draft, model: PreTrainedModel, say: Callable[[str], None]) -> None:
    """Copy what the target's last layer has under the usual names; the rest begins at random, its norms at 1."""
    joined, parts = draft.midlayer, _layer_parts(model)
    copy_norm(getattr(model.get_decoder(), "norm", None), draft.norm)
    if parts is None:
        say("the draft's layer begins at random: the target's layers have other names than self_attn and mlp")
        return
    if (reason := parts.missing) is not None:
        say(f"the draft's layer begins at random, not as the target's last: {reason}")
        return
    copy_norm(parts.before_attention, joined.hidden_norm)
    copy_norm(parts.before_mlp, joined.post_attention_layernorm)
    for name in _MLP:
        copy_weight(getattr(parts.mlp, name, None), getattr(joined.mlp, name))
    attention = parts.attention
    copy_weight(getattr(attention, "o_proj", None), joined.self_attn.o_proj)
    # A norm behind attention or MLP has no place in the draft: what it multiplies with on average goes into the rows.
    _fold(parts, parts.after_attention, joined.self_attn.o_proj.weight)
    _fold(parts, parts.after_mlp, joined.mlp.down_proj.weight)
    turned = float(_rope_parameters(model.config).get(_PARTIAL, 1.0))
    if turned != 1:
        say(
            f"queries and keys of the draft begin at random: the target turns {turned:.0%} of a head by its position"
        )
    _take_projections(draft, parts, ("v_proj",) if turned != 1 else ("q_proj", "k_proj", "v_proj"))


def _take_projections(draft: Eagle3Draft, parts: _LayerParts, names: Sequence[str]) -> None:
    """Copy the named of queries, keys and values, of the hidden half; the embedding's half begins at random, as
    wide.
    """
    joined, attention = draft.midlayer, parts.attention
    size, width = draft.config.hidden_size, joined.self_attn.head_dim
    for name in names:
        source, ours = getattr(attention, name, None), getattr(joined.self_attn, name).weight
        if source is None or source.weight.shape[1] != size or len(ours) % len(source.weight):
            continue
        rows = source.weight.clone()
        _fold(parts, getattr(attention, f"{name[0]}_norm", None), rows)
        if name == "q_proj":
            rows *= float(getattr(attention, "scaling", None) or width**-0.5) * width**0.5
        repeats = len(ours) // len(rows)
        rows = rows.view(-1, width, size).repeat_interleave(repeats, dim=0).reshape(len(ours), size)
        ours[:, size:] = rows
        ours[:, :size].normal_(std=_EMBEDDING_SCALE * float(rows.std()))


def _fold(parts: _LayerParts, norm: nn.Module | None, rows: Tensor) -> None:
    """Multiply `rows` [out, in] in place as `norm` multiplies what they make, at the mean size that the probe saw."""
    if norm is None or norm not in parts.seen or (factors := norm_factors(norm)) is None:
        return
    mean = parts.seen[norm].given.float().square().mean(dim=-1).sqrt().mean().clamp(min=1e-6)
    rows *= (factors / mean).repeat(len(rows) // len(factors))[:, None]


def norm_factors(norm: nn.Module) -> Tensor | None:
    """[size] what an RMS norm multiplies with, in some models 1 more than its weight; None for any other norm."""
    found = getattr(norm, "weight", None)
    if not isinstance(found, Tensor):
        return None
    factors = norm(torch.ones_like(found)[None])[0]
    same = (taken for taken in (found, found + 1) if torch.allclose(factors, taken, rtol=1e-3, atol=1e-3))
    return next(same, None)


def copy_norm(source: nn.Module | None, ours: nn.Module) -> None:
    """Take what an RMS norm of our size multiplies with; no other norm."""
    weight = ours.weight
    assert isinstance(weight, Tensor)
    if source is not None and (taken := norm_factors(source)) is not None and taken.shape == weight.shape:
        weight.copy_(taken)


def copy_weight(source: nn.Module | None, ours: nn.Module) -> None:
    """Take the source's weight where there is one of our shape."""
    found, weight = getattr(source, "weight", None), ours.weight
    assert isinstance(weight, Tensor)
    if isinstance(found, Tensor) and found.shape == weight.shape:
        weight.copy_(found)


def new_small_model(
    model: PreTrainedModel, target: DraftTarget, layers: tuple[int, ...], ids: Tensor
) -> PrunedForCausalLM:
    """Return the target with `layers` only, scoring `ids` [V] ascending. Raises as `require_layers`."""
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
    """Raise `TrainingRefused` for layers that the target has not, and for a target that is not a Llama model, whose
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
