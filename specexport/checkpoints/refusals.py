"""The checkpoints that are refused, each with its reason. Whether an attention fits a graph is judged by the export."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specexport.errors import CheckpointUnsupported, reason_of
from specruntime.manifest.messages import nearest

SUPPORTED = ("llama", "mistral", "qwen3", "gemma3_text", "phi3", "gpt_neox", "gpt2", "gpt_oss")
"""Some of those that the tests hold to PyTorch, for messages."""
_ATTENTION_LAYERS = {"full_attention", "sliding_attention"}
_OTHER_SENSES = {"vision_config", "audio_config"}
_CAUSAL_CLASSES = ("ForCausalLM", "LMHeadModel", "LMHead")


def unsupported_config(source: str, error: Exception) -> CheckpointUnsupported:
    """Return what transformers' complaint about a config means for the user."""
    reason, told = reason_of(error), str(error)
    if "trust_remote_code" in told:
        return CheckpointUnsupported(
            f"{source}: this checkpoint brings its own Python code; read it, then set trust_remote_code: true"
        )
    if "model type" in told or "architecture" in told:
        return CheckpointUnsupported(
            f"{source}: transformers {version('transformers')} does not know this architecture: {reason}"
        )
    return CheckpointUnsupported(f"{source}: its config cannot be read: {reason}")


def require_language_model(source: str, config: PretrainedConfig) -> None:
    """Raise `CheckpointUnsupported` for what is not a decoder-only language model in plain weights.

    Whether its attention is causal is not asked of the config: `is_decoder` is false where its publisher left it out,
    and read by some models and not by others. The model's own masks say it (`export.check_config`).
    """
    kind = config.model_type
    _require_decoder(source, config)
    if config.get_text_config() is not config or _OTHER_SENSES & set(config.sub_configs):
        raise CheckpointUnsupported(
            f"{source}: {kind} reads more than text, expected a text model; save its language model by itself"
        )
    classes = config.architectures or []
    if classes and not any(name.endswith(_CAUSAL_CLASSES) for name in classes):
        hint = "; for an EAGLE draft write draft.kind: eagle3 or eagle" if "Eagle" in classes[0] else ""
        raise CheckpointUnsupported(
            f"{source}: holds a {classes[0]}, expected a causal language model (...ForCausalLM){hint}"
        )
    brings_own_class = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if not brings_own_class:
        require_known_class(source, config)
    quantization = getattr(config, "quantization_config", None) or {}
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization.quant_method
    if method not in (None, "gguf"):
        raise CheckpointUnsupported(
            f"{source}: weights are quantised with {method}, expected plain weights or GGUF"
        )


def require_known_class(source: str, config: PretrainedConfig) -> None:
    """Raise `CheckpointUnsupported` for a model type that no sizes can help: it is not a causal language model, or its
    attention is out of reach."""
    _require_decoder(source, config)
    model_class = AutoModelForCausalLM._model_mapping.get(type(config), None)
    if model_class is None:
        raise CheckpointUnsupported(
            f"{source}: {config.model_type} is not a causal language model in transformers"
        )
    if not getattr(model_class, "_supports_attention_backend", False):
        try:
            require_attention(config, model_class)
        except CheckpointUnsupported as error:
            raise CheckpointUnsupported(f"{source}: {error}") from None


def _require_decoder(source: str, config: PretrainedConfig) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise CheckpointUnsupported(
            f"{source}: {config.model_type} is an encoder-decoder model, expected a decoder-only one"
        )


def require_attention(config: PretrainedConfig, model_class: object) -> None:
    """Raise `CheckpointUnsupported` for layers that keep other state than a KV cache, and for attention that does
    not go through transformers' attention interface."""
    name = config.model_type
    odd = sorted(set(getattr(config, "layer_types", None) or ()) - _ATTENTION_LAYERS)
    if odd:
        raise CheckpointUnsupported(
            f"{name} has layers of kind {', '.join(odd)}; expected {', '.join(sorted(_ATTENTION_LAYERS))} only"
        )
    if not getattr(model_class, "_supports_attention_backend", False):
        raise CheckpointUnsupported(
            f"{name} computes attention without transformers' attention interface; expected an architecture that "
            f"supports it, such as {', '.join(SUPPORTED)} (docs/architectures.md)"
        )


def with_new_rope_name(stated: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the config.json of a Phi-3 with its rotary scaling by the name it has today, None where nothing is to be
    renamed.

    transformers' own class renames `su`, but only after it has looked for the longrope's original length in vain.
    """
    scaling = stated.get("rope_scaling")
    if stated.get("model_type") != "phi3" or not isinstance(scaling, dict):
        return None
    if scaling.get("rope_type", scaling.get("type")) != "su":
        return None
    rest = {key: value for key, value in scaling.items() if key != "type"}
    return {**stated, "rope_scaling": {**rest, "rope_type": "longrope"}}


def require_known_rope(source: str, config: PretrainedConfig) -> None:
    """Raise `CheckpointUnsupported` for rotary scaling by a name that transformers does not know, or by none."""
    stated = getattr(config, "rope_parameters", None) or {}
    known = ("default", "linear", "llama3", "longrope", "yarn")
    for part in (stated, *stated.values()):
        if not isinstance(part, dict) or not {"rope_type", "type"} & set(part):
            continue
        kind = part.get("rope_type")
        if kind == "default" and "type" not in part and part.get("factor", 1) != 1:
            raise CheckpointUnsupported(
                f"{source}: rope_scaling in config.json has a factor of {part['factor']} and no rope_type, so it would "
                f"be left out; name it: {', '.join(known)}"
            )
        if kind not in ("default", *ROPE_INIT_FUNCTIONS):
            old = ", an old name of longrope" if kind == "su" else ""
            raise CheckpointUnsupported(
                f"{source}: rope_type in config.json is {kind!r}{old}, expected one of {', '.join(known)}"
                f"{'' if old else nearest(str(kind), known)}; correct it in config.json, with the keys of that scaling"
            )


def require_all_weights(source: str, kind: str, report: dict[str, Any]) -> None:
    """Raise `CheckpointUnsupported` when transformers' loading `report` says that a weight did not fit.

    transformers fills gaps with random numbers; a bundle must not be made of those.
    """
    for key, meaning in (
        ("missing_keys", "lacks weights that the model needs"),
        ("mismatched_keys", "has weights of another shape"),
        ("unexpected_keys", "has weights that the model does not use"),
    ):
        if names := sorted(report.get(key) or ()):
            names = [name if isinstance(name, str) else _shapes(*name) for name in names]
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise CheckpointUnsupported(f"{source}: the checkpoint {meaning} as {kind}: {names[0]}{more}")


def require_finite_weights(source: str, model: nn.Module) -> None:
    """Raise `CheckpointUnsupported` for weights that are not numbers, or too large for the type they are in."""
    for name, weight in model.named_parameters():
        # Smallest and largest are NaN where any number is, and need no memory of their own.
        if weight.numel() == 0 or all(bound.isfinite() for bound in torch.aminmax(weight.detach())):
            continue
        count, kind = int((~weight.isfinite()).sum()), str(weight.dtype).removeprefix("torch.")
        wider = "" if weight.dtype == torch.float32 else ", or a wider precision"
        raise CheckpointUnsupported(
            f"{source}: {count} of the {weight.numel()} numbers of the weight {name} are NaN or infinite in {kind}, "
            f"expected finite ones; get the files again, and where they stay so choose another checkpoint{wider}"
        )


def _shapes(name: str, found: Any, expected: Any) -> str:
    return f"{name} is {list(found)}, expected {list(expected)}"
