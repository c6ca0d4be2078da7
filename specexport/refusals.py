"""The checkpoints that are refused, each with its reason. Whether an attention fits a graph is judged by the export."""

from importlib.metadata import version
from typing import Any

from transformers import AutoModelForCausalLM, PretrainedConfig

from specexport.errors import CheckpointUnsupported, reason_of

SUPPORTED = ("llama", "mistral", "qwen3", "gemma3_text", "phi3", "gpt_neox", "gpt2", "gpt_oss")
"""Some of those that the tests hold to PyTorch, for messages."""
_ATTENTION_LAYERS = {"full_attention", "sliding_attention"}
_CAUSAL_CLASSES = ("ForCausalLM", "LMHeadModel", "LMHead")


def unsupported_config(source: str, error: Exception) -> CheckpointUnsupported:
    """What transformers' complaint about a config means for the user."""
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


def require_causal(source: str, config: PretrainedConfig) -> None:
    """Raises `CheckpointUnsupported` for what is not a decoder-only language model in plain weights."""
    kind = config.model_type
    _require_decoder(source, config)
    if getattr(config, "is_decoder", True) is False:
        raise CheckpointUnsupported(
            f"{source}: {kind} sees the text after a token too, expected a decoder-only model"
        )
    if config.get_text_config() is not config:
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
    """Raises `CheckpointUnsupported` for a model type that no sizes can help: it is no causal language model, or its
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
    """Raises `CheckpointUnsupported` for layers that keep other state than a KV cache, and for attention that does
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


def require_all_weights(source: str, kind: str, report: dict[str, Any]) -> None:
    """Raises `CheckpointUnsupported` when transformers' loading `report` says that a weight did not fit.

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


def _shapes(name: str, found: Any, expected: Any) -> str:
    return f"{name} is {list(found)}, expected {list(expected)}"
