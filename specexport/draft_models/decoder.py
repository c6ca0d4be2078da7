"""The decoder layers of EAGLE drafts, out of transformers' Llama parts, and how they are called.

Attention goes through transformers' interface, so training and the reference use its kernels and an export ours.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import Cache, LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

REFERENCE_ATTENTION = "sdpa"


class JoinedLayer(nn.Module):
    """EAGLE-3: attention reads the normed embedding concatenated with the normed hidden state, 2h wide."""

    def __init__(self, config: LlamaConfig, *, norm_before_residual: bool) -> None:
        super().__init__()
        size = config.hidden_size
        self.self_attn = LlamaAttention(config, layer_idx=0)
        for name in ("q_proj", "k_proj", "v_proj"):
            rows = getattr(self.self_attn, name).out_features
            setattr(self.self_attn, name, nn.Linear(2 * size, rows, bias=config.attention_bias))
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self._norm_before_residual = norm_before_residual

    def forward(
        self,
        hidden: Tensor,  # [B, W, h]
        embeds: Tensor,  # [B, W, h]
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: Cache | None,
    ) -> Tensor:
        normed = self.hidden_norm(hidden)
        residual = normed if self._norm_before_residual else hidden
        joined = torch.cat((self.input_layernorm(embeds), normed), dim=-1)  # [B, W, 2h]
        attended, _ = self.self_attn(joined, position_embeddings=rotary, attention_mask=mask, cache=cache)
        hidden = residual + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden))  # type: ignore[no-any-return]


class PlainLayer(nn.Module):
    """EAGLE-1/2: a Llama layer; the first of a draft has no norm on its input."""

    def __init__(self, config: LlamaConfig, index: int, *, input_norm: bool) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, layer_idx=index)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = (
            LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps) if input_norm else None
        )
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        hidden: Tensor,  # [B, W, h]
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: Cache | None,
    ) -> Tensor:
        normed = hidden if self.input_layernorm is None else self.input_layernorm(hidden)
        attended, _ = self.self_attn(normed, position_embeddings=rotary, attention_mask=mask, cache=cache)
        hidden = hidden + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden))  # type: ignore[no-any-return]


class DraftDecoder(nn.Module):
    """Base of the EAGLE drafts: rotary positions and the attention implementation of the layers."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        config._attn_implementation = REFERENCE_ATTENTION
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self._layer_config = config

    @contextmanager
    def attention(self, implementation: str) -> Iterator[None]:
        """Switch the layers to a registered implementation of transformers' attention interface, and back."""
        before = self._layer_config._attn_implementation
        self._layer_config._attn_implementation = implementation
        try:
            yield
        finally:
            self._layer_config._attn_implementation = before

    def rotary(self, hidden: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [B, W, head_dim] of `position_ids` [B, W] in the type of `hidden`."""
        cos, sin = self.rotary_emb(hidden, position_ids)
        return cos, sin
