"""The published formats of EAGLE drafts: what their config.json says, and what they call their weights.

Three families: the original repository's (EAGLE-1, -2 and -3), SpecForge's (EAGLE-3, the same weight names), and
speculators' (`speculators_model_type`). A key that asks for a computation we do not have is refused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transformers import LlamaConfig

from specexport.draft_models.configs import EagleConfig, describing_layers
from specexport.draft_models.files import DraftFiles, read_config, tensor_names
from specexport.draft_models.tapped_layers import StatedLayers, tapped_layers
from specexport.draft_models.targets import DraftTarget
from specexport.errors import CheckpointUnsupported

EagleKind = Literal["eagle", "eagle3"]

SHA256_KEY = "target_embeddings_sha256"
EMBEDDINGS = "embed_tokens.weight"
_UNSUPPORTED = {
    "fc_norm": "norms in front of the joining projection",
    "norm_before_fc": "a norm in front of the joining projection",
    "use_sliding_window": "a sliding window",
    "parallel_drafting": "parallel drafting",
}


@dataclass(frozen=True)
class EagleFormat:
    """`config` of the draft, and how the file's weight names differ from the module's: (file's start, module's)."""

    config: EagleConfig
    renames: tuple[tuple[str, str], ...] = ()

    def file_key(self, parameter: str) -> str:
        """Return what the file calls a parameter of the module."""
        for start, ours in self.renames:
            if parameter.startswith(ours):
                return start + parameter.removeprefix(ours)
        return parameter


def kind_of(config: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the kind of draft that a config.json and weights of these names are."""
    named = config.get("speculators_model_type")
    if named is not None:
        return str(named)
    if "medusa_num_heads" in config:
        return "medusa"
    return "eagle3" if any(name.startswith("midlayer.") for name in names) else "eagle"


def require_kind(directory: Path, kind: EagleKind, name: str) -> None:
    """Raise `CheckpointUnsupported` where config and tensors' names say that the files are of another kind."""
    config, names = read_config(directory, name), tensor_names(directory)
    found = kind_of(config, names)
    # Where the names are not known, the config alone tells some kinds.
    if found != kind and (names or found == "medusa" or "speculators_model_type" in config):
        refuse_kind(name, kind, found)


def read_eagle_format(
    files: DraftFiles, kind: EagleKind, target: DraftTarget, stated: StatedLayers | None = None
) -> EagleFormat:
    """`stated`: the layers that the recipe names for EAGLE-3, in place of the config's.

    Raises `CheckpointUnsupported` for a draft of another kind, or one that asks for what we do not compute."""
    config = files.config
    _refuse_unsupported(config, files.name)
    found = kind_of(config, files.weights)
    if found != kind:
        refuse_kind(files.name, kind, found)
    if config.get("speculators_model_type") is not None:
        return _read_speculators(files, kind, target, stated)
    if kind == "eagle3":
        return EagleFormat(_eagle3_config(files, config, config, target, stated))
    return EagleFormat(
        EagleConfig(
            layer=layer_config(config, files.name, target, bias_key="qkv_bias"),
            target_hidden_size=target.hidden_size,
            target_vocab_size=_size(config, "vocab_size", files.name, target.padded_vocab_size),
            draft_vocab_size=target.padded_vocab_size,
            fc_bias=_flag(config, "bias", files.name, True),
            own_embeddings=EMBEDDINGS in files.weights,
        )
    )


def _read_speculators(
    files: DraftFiles, kind: EagleKind, target: DraftTarget, stated: StatedLayers | None
) -> EagleFormat:
    config = files.config
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise CheckpointUnsupported(
            f"{files.name}: config.json has speculators_model_type and no transformer_layer_config, expected its keys"
        )
    if kind == "eagle3":
        found = _eagle3_config(files, config, layer, target, stated)
        return EagleFormat(found, renames=(("layers.0.", "midlayer."),))
    norms = _flag(config, "layernorms", files.name)
    found = EagleConfig(
        layer=layer_config(layer, files.name, target),
        target_hidden_size=target.hidden_size,
        target_vocab_size=_size(layer, "vocab_size", files.name, target.padded_vocab_size),
        draft_vocab_size=target.padded_vocab_size,
        fc_bias=_flag(config, "fusion_bias", files.name),
        extra_norms=norms,
        input_norm=norms,
        own_embeddings=EMBEDDINGS in files.weights,
    )
    return EagleFormat(found, renames=(("transformer.", "layers.0."), ("fusion_fc.", "fc.")))


def _eagle3_config(
    files: DraftFiles,
    config: Mapping[str, Any],
    layer: Mapping[str, Any],
    target: DraftTarget,
    stated: StatedLayers | None,
) -> EagleConfig:
    speculators = layer is not config
    tapped = tapped_layers(config, files.name, target, stated, speculators=speculators)
    vocab_size = _size(layer, "vocab_size", files.name, target.padded_vocab_size)
    return EagleConfig(
        layer=layer_config(layer, files.name, target),
        target_hidden_size=_size(config, "target_hidden_size", files.name, target.hidden_size),
        target_vocab_size=vocab_size,
        draft_vocab_size=_size(config, "draft_vocab_size", files.name, vocab_size),
        tapped=tapped,
        norm_before_residual=_flag(config, "norm_before_residual", files.name),
        norm_output=_flag(config, "norm_output", files.name),
        own_embeddings=EMBEDDINGS in files.weights,
    )


def layer_config(
    stated: Mapping[str, Any], name: str, target: DraftTarget, *, bias_key: str = "attention_bias"
) -> LlamaConfig:
    """Return the decoder layers that config keys describe. Raises `CheckpointUnsupported` for layers that are not
    Llama's.
    """
    kind = stated.get("model_type", "llama")
    if kind != "llama":
        raise CheckpointUnsupported(
            f"{name}: its decoder layer is a {kind!r} one, expected 'llama'; other layers are not supported"
        )
    kept = {key: value for key, value in stated.items() if key not in ("architectures", "auto_map", "dtype")}
    kept["attention_bias"] = _flag(stated, bias_key, name, _flag(stated, "attention_bias", name))
    with describing_layers(name):
        config = LlamaConfig(**kept)
    if config.num_hidden_layers < 1:
        raise CheckpointUnsupported(
            f"{name}: num_hidden_layers is {config.num_hidden_layers}, expected 1 or more"
        )
    return config


def _size(config: Mapping[str, Any], key: str, name: str, default: int) -> int:
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointUnsupported(f"{name}: {key} is {value!r} in config.json, expected a number above 0")
    return value


def _flag(config: Mapping[str, Any], key: str, name: str, default: bool = False) -> bool:
    value = config.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise CheckpointUnsupported(f"{name}: {key} is {value!r} in config.json, expected true or false")
    return value


def _refuse_unsupported(config: Mapping[str, Any], name: str) -> None:
    for key, meaning in _UNSUPPORTED.items():
        if config.get(key):
            raise CheckpointUnsupported(
                f"{name}: config.json asks for {meaning} ({key}), which is not supported; expected {key}: false or no "
                "such key"
            )


def refuse_kind(name: str, asked: str, found: str) -> None:
    raise CheckpointUnsupported(
        f"{name}: holds a draft of kind {found!r}, and the recipe says draft.kind {asked!r}; correct one of them"
    )
