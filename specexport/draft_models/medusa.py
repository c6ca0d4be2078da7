"""Medusa: further LM heads on the target's last hidden state. https://arxiv.org/abs/2401.10774."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specexport.draft_models.configs import MedusaConfig
from specexport.draft_models.eagle_formats import kind_of, refuse_kind
from specexport.draft_models.files import DraftFiles, read_config, tensor_names
from specexport.draft_models.targets import DraftTarget
from specexport.errors import CheckpointUnsupported


class ResidualBlock(nn.Module):
    """x + SiLU(linear(x))."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + nn.functional.silu(self.linear(hidden))


class MedusaHeads(nn.Module):
    """Head i at position t predicts token t + i + 2; the hidden state is the one after the target's final norm.

    Parameters carry the published names without their prefix: `medusa_head.{head}.{block}.linear.*` and, where a head
    has its own, `medusa_head.{head}.{layers}.weight`. `lm_head` is the target's, used where heads share it, and never
    part of the files.
    """

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        self.medusa_head = nn.ModuleList(
            nn.Sequential(
                *(ResidualBlock(size) for _ in range(config.layers)),
                *([nn.Linear(size, config.vocab_size, bias=False)] if config.own_head else []),
            )
            for _ in range(config.heads)
        )
        self.lm_head = None if config.own_head else nn.Linear(size, config.vocab_size, bias=False)

    def hidden(self, hidden: Tensor) -> Tensor:
        """[..., h] -> [..., heads, h], after the residual blocks."""
        blocks = self.config.layers
        return torch.stack([head[:blocks](hidden) for head in self.medusa_head], dim=-2)  # type: ignore[index]

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., h] the target's last hidden state -> [..., heads, vocab]."""
        if self.lm_head is not None:
            return self.lm_head(self.hidden(hidden))  # type: ignore[no-any-return]
        return torch.stack([head(hidden) for head in self.medusa_head], dim=-2)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.logits(hidden)


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
        """Return what the file calls a parameter of the module."""
        return self.prefix + parameter.removeprefix(MODULE_PREFIX)


def stated_heads(directory: Path, name: str) -> int:
    """Return the number of heads in the draft's files, by their config. Raises `CheckpointUnsupported` for another
    kind.
    """
    config, names = read_config(directory, name), tensor_names(directory)
    if HEADS_KEY not in config and "fc.weight" in names:
        refuse_kind(name, "medusa", kind_of(config, names))
    return count_of(config, HEADS_KEY, name)


def read_medusa_format(files: DraftFiles, target: DraftTarget) -> MedusaFormat:
    """Raise `CheckpointUnsupported` for another kind of draft, or heads of another target's hidden size."""
    if HEADS_KEY not in files.config and "fc.weight" in files.weights:
        refuse_kind(files.name, "medusa", kind_of(files.config, files.weights))
    heads = count_of(files.config, HEADS_KEY, files.name)
    layers = count_of(files.config, LAYERS_KEY, files.name)
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


def count_of(config: Mapping[str, Any], key: str, name: str) -> int:
    """Return what the config.json of the draft `name` says of its heads; raises `CheckpointUnsupported` where it does
    not.
    """
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
        raise CheckpointUnsupported(
            f"{name}: {key} is {value!r} in config.json, expected the number of {key.removeprefix('medusa_num_')} as "
            f"published with Medusa heads, 1 to {_MOST}"
        )
    return value
