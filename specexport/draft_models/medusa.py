"""Medusa: further LM heads on the target's last hidden state. https://arxiv.org/abs/2401.10774."""

import torch
from torch import Tensor, nn

from specexport.draft_models.configs import MedusaConfig


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
