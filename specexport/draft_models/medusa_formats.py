"""The published format of Medusa heads: `medusa_lm_head.pt` or `.safetensors`, and a config.json of two numbers.

Weights are `{head}.{block}.linear.weight` and `.bias`, and `{head}.{blocks}.weight` for a head's own LM head; a file
saved from a whole model puts `medusa_head.` or `medusa_lm_head.` in front.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specexport.draft_models.configs import MedusaConfig
from specexport.draft_models.eagle_formats import refuse_kind, stored_kind
from specexport.draft_models.files import DraftFiles
from specexport.draft_models.targets import DraftTarget
from specexport.errors import CheckpointUnsupported

MODULE_PREFIX = "medusa_head."
HEADS_KEY, LAYERS_KEY = "medusa_num_heads", "medusa_num_layers"
_MOST = 64  # heads, or blocks of one: modules are made for them before the weights are compared
_PREFIXES = (MODULE_PREFIX, "medusa_lm_head.")


@dataclass(frozen=True)
class MedusaFormat:
    """`config` of the heads, and what the file puts in front of a weight's name in place of the module's prefix."""

    config: MedusaConfig
    prefix: str

    def file_key(self, parameter: str) -> str:
        """What the file calls a parameter of the module."""
        return self.prefix + parameter.removeprefix(MODULE_PREFIX)


def read_medusa_format(files: DraftFiles, target: DraftTarget) -> MedusaFormat:
    """Raises `CheckpointUnsupported` for another kind of draft, or heads of another target's hidden size."""
    if HEADS_KEY not in files.config and "fc.weight" in files.weights:
        refuse_kind(files.name, "medusa", stored_kind(files))
    heads = _count(files.config, HEADS_KEY, files.name)
    layers = _count(files.config, LAYERS_KEY, files.name)
    prefix = next((p for p in _PREFIXES if any(key.startswith(p) for key in files.weights)), "")
    stated = files.config.get("hidden_size")
    block = files.weights.get(f"{prefix}0.0.linear.weight")
    stored = block.shape[0] if block is not None and block.ndim else target.hidden_size
    found = stated if isinstance(stated, int) else stored
    if found != target.hidden_size:
        raise CheckpointUnsupported(
            f"{files.name}: its heads read hidden states of {found}, expected {target.hidden_size}, the hidden size of "
            f"the target {target.name}: the draft is for another target"
        )
    own = f"{prefix}0.{layers}.weight"
    head = files.weights.get(own)
    if head is not None and head.ndim and head.shape[0] != target.padded_vocab_size:
        raise CheckpointUnsupported(
            f"{files.name}: {own} scores {head.shape[0]} tokens, expected {target.padded_vocab_size}, the rows of the "
            f"LM head of the target {target.name}: the draft is for another target"
        )
    config = MedusaConfig(
        heads=heads,
        layers=layers,
        hidden_size=target.hidden_size,
        vocab_size=target.padded_vocab_size,
        own_head=head is not None,
    )
    return MedusaFormat(config, prefix)


def _count(config: Mapping[str, Any], key: str, name: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
        raise CheckpointUnsupported(
            f"{name}: {key} is {value!r} in config.json, expected the number of {key.removeprefix('medusa_num_')} as "
            f"published with Medusa heads, 1 to {_MOST}"
        )
    return value
