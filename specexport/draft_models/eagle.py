"""EAGLE-1 and EAGLE-2: decoder layers on the target's normed hidden state, scored by the target's LM head.

https://arxiv.org/abs/2401.15077, https://arxiv.org/abs/2406.16858. Pair t as in `eagle3`.
"""

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specexport.draft_models.configs import EagleConfig
from specexport.draft_models.decoder import DraftDecoder, PlainLayer


class EagleDraft(DraftDecoder):
    """Predicts the target's next feature, which `logits` scores with the target's LM head.

    Parameters carry the names of the published checkpoints: fc, layers.N, embed_tokens. `lm_head` is the target's and
    never part of the draft's files.
    """

    def __init__(self, config: EagleConfig) -> None:
        super().__init__(config.layer)
        size = config.hidden_size
        self.config = config
        self.embed_tokens = nn.Embedding(config.target_vocab_size, size)
        self.fc = nn.Linear(size + config.target_hidden_size, size, bias=config.fc_bias)
        self.layers = nn.ModuleList(
            PlainLayer(config.layer, index, input_norm=index > 0 or config.input_norm)
            for index in range(config.layer.num_hidden_layers)
        )
        eps = config.layer.rms_norm_eps
        self.embedding_layernorm = LlamaRMSNorm(size, eps=eps) if config.extra_norms else None
        self.pre_lm_head_layernorm = LlamaRMSNorm(size, eps=eps) if config.extra_norms else None
        self.lm_head = nn.Linear(size, config.target_vocab_size, bias=False)

    def embed(self, input_ids: Tensor) -> Tensor:
        """[B, W] target ids -> [B, W, h]."""
        embeds = self.embed_tokens(input_ids)
        return embeds if self.embedding_layernorm is None else self.embedding_layernorm(embeds)  # type: ignore[no-any-return]

    def project(self, features: Tensor) -> Tensor:
        """The features themselves: [B, W, target hidden]; the draft joins them with the embeddings in `layer`."""
        return features

    def layer(
        self,
        hidden: Tensor,
        embeds: Tensor,
        position_ids: Tensor,
        mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """[B, W, h] the target's features, or this function's output one step before -> [B, W, h].

        `mask` and `cache` as in `Eagle3Draft.layer`.
        """
        hidden = self.fc(torch.cat((embeds, hidden), dim=-1))
        rotary = self.rotary(hidden, position_ids)
        for layer in self.layers:
            hidden = layer(hidden, rotary, mask, cache)
        return hidden

    def fed_back(self, hidden: Tensor) -> Tensor:
        """What the next step takes of `layer`'s output: itself, a predicted feature."""
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., h] -> [..., target vocabulary]."""
        if self.pre_lm_head_layernorm is not None:
            hidden = self.pre_lm_head_layernorm(hidden)
        return self.lm_head(hidden)  # type: ignore[no-any-return]

    def forward(
        self,
        features: Tensor,  # [B, W, target hidden]
        input_ids: Tensor,  # [B, W] token t+1 beside the features of position t
        position_ids: Tensor,  # [B, W]
        mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """-> logits [B, W, target vocabulary] and the hidden states [B, W, h] that a next step takes."""
        hidden = self.layer(features, self.embed(input_ids), position_ids, mask, cache)
        return self.logits(hidden), hidden
