"""The keys of a GGUF file, handed out one by one, so that none is passed over in silence.

A key is used (`take`), known to be harmless or at a value that changes nothing, or refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gguf
import numpy as np

from specexport.errors import CheckpointUnsupported

# Notes about the file and its making, and the tokenizer, which has a reader of its own.
_HARMLESS = ("GGUF.", "general.", "tokenizer.", "quantize.", "mradermacher.")
# The values at which a key changes nothing, by the meaning that llama.cpp gives it.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.sliding_window": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_used_count": (0,),
    "expert_weights_scale": (0, 1),
    "final_logit_softcapping": (0,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "pooling_type": (0,),
    "residual_scale": (0, 1),
    "rope.scaling.finetuned": (False, True),
    "tensor_data_layout": ("Meta AI original pth",),
}
_REQUIRED = object()


@dataclass
class Keys:
    """The keys of one architecture, without its name in front."""

    source: str
    architecture: str
    values: Mapping[str, Any]
    _used: set[str] = field(default_factory=set)

    def take(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return the value of `key`. Raises `CheckpointUnsupported` where a key without default is missing."""
        self._used.add(key)
        if key in self.values:
            return self.values[key]
        if default is _REQUIRED:
            raise self.refused(f"lacks the key {self.architecture}.{key}")
        return default

    def take_one(self, key: str, default: Any = _REQUIRED) -> Any:
        """As `take`, for a key that may hold one number for each layer. Raises where layers differ."""
        found = self.take(key, default)
        if isinstance(found, list):
            if len(set(found)) != 1:
                raise self.refused(f"{self.architecture}.{key} differs from layer to layer: {found}")
            return found[0]
        return found

    def require(self, key: str, found: Any, *expected: Any) -> None:
        """Raise `CheckpointUnsupported` for a value that is not one of those `expected`."""
        if found not in expected:
            wanted = " or ".join(str(value) for value in expected)
            raise self.refused(f"{self.architecture}.{key} is {found}, expected {wanted}")

    def require_all_used(self) -> None:
        """Raise `CheckpointUnsupported` for keys that were not taken and are not at a value without effect."""
        left = [
            f"{self.architecture}.{key} ({_shown(value)})"
            for key, value in self.values.items()
            if key not in self._used and value not in _NEUTRAL.get(key, ())
        ]
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise self.refused(
                f"the architecture {self.architecture} is not known to have {', '.join(left[:3])}{more}, so what it "
                "changes in the arithmetic would be lost"
            )

    def refused(self, reason: str) -> CheckpointUnsupported:
        return CheckpointUnsupported(
            f"{self.source}: {reason}; docs/architectures.md lists what is read from GGUF files; "
            "take the original checkpoint as a directory"
        )


def read_keys(source: str, reader: gguf.GGUFReader) -> Keys:
    """Return the keys of the file's architecture. Raises `CheckpointUnsupported` for keys outside it that are not known
    to be harmless, and for a file that holds no whole model."""
    fields = dict(reader.fields.items())
    if "general.architecture" not in fields:
        raise CheckpointUnsupported(
            f"{source}: lacks the key general.architecture; expected a GGUF model file"
        )
    architecture = _value(fields["general.architecture"])
    prefix = f"{architecture}."
    own = {
        name.removeprefix(prefix): _value(field) for name, field in fields.items() if name.startswith(prefix)
    }
    _require_whole_model(source, fields)
    foreign = [name for name in fields if not name.startswith((prefix, "split.", *_HARMLESS))]
    if foreign:
        raise CheckpointUnsupported(
            f"{source}: what {', '.join(foreign[:3])} means to a {architecture} is not known; if it is a note only, "
            f"remove it: gguf-new-metadata --remove-metadata {foreign[0]} OLD NEW"
        )
    return Keys(source, architecture, own)


def _require_whole_model(source: str, fields: Mapping[str, gguf.ReaderField]) -> None:
    if "general.type" in fields and (kind := _value(fields["general.type"])) != "model":
        raise CheckpointUnsupported(f"{source}: general.type is {kind}, expected model")
    if "split.count" in fields and (parts := _value(fields["split.count"])) > 1:
        raise CheckpointUnsupported(
            f"{source}: one of {parts} parts of a model; put them together with llama-gguf-split --merge"
        )


def _value(field: gguf.ReaderField) -> Any:
    """Return the field's value. A 32-bit number is given as the shortest decimal that stands for it, which is what the
    config said: 1e-05, not 9.999999747378752e-06."""
    found = field.contents()
    if gguf.GGUFValueType.FLOAT32 not in field.types:
        return found
    if isinstance(found, list):
        return [float(str(np.float32(value))) for value in found]
    return float(str(np.float32(found)))


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
