"""EAGLE-3: one decoder layer on the joined features of three target layers, with a reduced vocabulary.

https://arxiv.org/abs/2503.01840. Pair t is (features of position t, embedding of token t+1); its cache row and its
position are t, and it scores token t+2.
"""

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specexport.draft_models.configs import EagleConfig
from specexport.draft_models.decoder import DraftDecoder, JoinedLayer, PlainLayer


class Eagle3Draft(DraftDecoder):
    """`project` the target's features, run `layer`, score with `logits`; the next step takes `layer`'s own output.

    Parameters carry the names of the published checkpoints: fc, midlayer, norm, lm_head, embed_tokens. Buffers `d2t`
    [draft_vocab] (target id = draft id + d2t[draft id]) and `t2d` [target_vocab] bool (which target ids it has).
    """

    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: EagleConfig) -> None:
        super().__init__(config.layer)
        size = config.hidden_size
        self.config = config
        self.embed_tokens = nn.Embedding(config.target_vocab_size, size)
        self.fc = nn.Linear(len(config.layer_ids) * config.target_hidden_size, size, bias=False)
        self.midlayer = JoinedLayer(config.layer, norm_before_residual=config.norm_before_residual)
        self.norm = LlamaRMSNorm(size, eps=config.layer.rms_norm_eps)
        self.lm_head = nn.Linear(size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))
        self.register_buffer("t2d", torch.arange(config.target_vocab_size) < config.draft_vocab_size)

    def set_vocabulary(self, target_ids: Tensor) -> None:
        """Make draft id i stand for `target_ids[i]`: [draft_vocab] int64, strictly increasing."""
        self.d2t.copy_(target_ids - torch.arange(len(target_ids)))
        self.t2d.zero_()
        self.t2d[target_ids] = True

    @property
    def target_ids(self) -> Tensor:
        """[draft_vocab] int64: the target id of each draft id."""
        return self.d2t + torch.arange(len(self.d2t))

    def embed(self, input_ids: Tensor) -> Tensor:
        """[B, W] target ids -> [B, W, h]."""
        return self.embed_tokens(input_ids)  # type: ignore[no-any-return]

    def project(self, features: Tensor) -> Tensor:
        """[B, W, 3 * target hidden], the layers in the order of `layer_ids` -> [B, W, h]."""
        return self.fc(features)  # type: ignore[no-any-return]

    def layer(
        self,
        hidden: Tensor,
        embeds: Tensor,
        position_ids: Tensor,
        mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """[B, W, h] projected features, or `fed_back` of the step before -> [B, W, h], before the norm.

        `mask` is bool or additive [B, 1, W, keys]; None is causal over the window alone. `cache` appends: with a
        `DynamicCache` an unrolled step sees the keys of the steps before it (as in training).
        """
        return self.midlayer(hidden, embeds, self.rotary(hidden, position_ids), mask, cache)  # type: ignore[no-any-return]

    def fed_back(self, hidden: Tensor) -> Tensor:
        """Return what the next step takes of `layer`'s output: itself, or its norm where the config says so."""
        return self.norm(hidden) if self.config.norm_output else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., h], an output of `layer` -> [..., draft_vocab]."""
        return self.lm_head(self.norm(hidden))  # type: ignore[no-any-return]

    def forward(
        self,
        features: Tensor,  # [B, W, 3 * target hidden]
        input_ids: Tensor,  # [B, W] token t+1, paired with the features of position t
        position_ids: Tensor,  # [B, W]
        mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """-> logits [B, W, draft_vocab] and the hidden states [B, W, h] that a next step takes."""
        hidden = self.layer(self.project(features), self.embed(input_ids), position_ids, mask, cache)
        return self.logits(hidden), self.fed_back(hidden)


class Eagle1Draft(DraftDecoder):
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
        """Return the features themselves: [B, W, target hidden]; the draft joins them with the embeddings in
        `layer`.
        """
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
        """Return what the next step takes of `layer`'s output: itself, a predicted feature."""
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., h] -> [..., target vocabulary]."""
        if self.pre_lm_head_layernorm is not None:
            hidden = self.pre_lm_head_layernorm(hidden)
        return self.lm_head(hidden)  # type: ignore[no-any-return]

    def forward(
        self,
        features: Tensor,  # [B, W, target hidden]
        input_ids: Tensor,  # [B, W] token t+1, paired with the features of position t
        position_ids: Tensor,  # [B, W]
        mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """-> logits [B, W, target vocabulary] and the hidden states [B, W, h] that a next step takes."""
        hidden = self.layer(features, self.embed(input_ids), position_ids, mask, cache)
        return self.logits(hidden), hidden
