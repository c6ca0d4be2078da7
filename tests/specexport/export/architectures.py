"""The architectures that are exported and compared with PyTorch, as tiny random models, and those that are refused.

One model per architecture, its sizes chosen so that together they cover every feature a graph must carry. The table in
docs/architectures.md is made from this file and from what the comparison measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_SHORT_WINDOW, _LONG_WINDOW = 7, 300
"""Shorter and longer than every sequence of the comparison (`comparison.CAPACITY`)."""


@dataclass(frozen=True)
class Architecture:
    """A transformers model type with tiny sizes; `features` is what its graph must carry, in words."""

    model_type: str
    sizes: Mapping[str, Any] = field(default_factory=lambda: _SIZES)
    features: tuple[str, ...] = ()


def _sized(**changes: Any) -> dict[str, Any]:
    return _SIZES | changes


_GPT2_SIZES = {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
_OPT_SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "word_embed_proj_dim": 48,
}
_LONGROPE = {
    "rope_type": "longrope",
    "long_factor": [2.0 + n / 4 for n in range(8)],
    "short_factor": [1.1] * 8,
}

EXPORTED: tuple[Architecture, ...] = (
    Architecture(
        "llama",
        _sized(
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        ),
        ("rotary positions, llama3 scaling", "grouped KV heads", "untied embeddings"),
    ),
    Architecture(
        "mistral",
        _sized(sliding_window=_SHORT_WINDOW, head_dim=24),
        ("sliding window shorter than the sequence", "head size other than hidden/heads"),
    ),
    Architecture(
        "qwen2",
        _sized(
            use_sliding_window=True,
            sliding_window=_SHORT_WINDOW,
            max_window_layers=1,
            tie_word_embeddings=True,
        ),
        ("QKV biases", "full and sliding layers", "tied embeddings"),
    ),
    Architecture("qwen3", _sized(head_dim=16), ("query and key norms",)),
    Architecture(
        "gemma2",
        _sized(
            head_dim=16,
            sliding_window=_LONG_WINDOW,
            query_pre_attn_scalar=20,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
        ),
        (
            "attention and logit soft-capping",
            "attention scale of its own",
            "sliding window longer than the sequence",
            "tied embeddings",
        ),
    ),
    Architecture(
        "gemma3_text",
        _sized(
            head_dim=16,
            sliding_window=_SHORT_WINDOW,
            query_pre_attn_scalar=16,
            layer_types=["sliding_attention", "full_attention"],
        ),
        (
            "full and sliding layers with rotary positions of their own",
            "query and key norms",
            "scaled embeddings",
        ),
    ),
    Architecture(
        "phi3",
        _sized(
            pad_token_id=0,
            sliding_window=_LONG_WINDOW,
            original_max_position_embeddings=32,
            rope_parameters={**_LONGROPE, "rope_theta": 1e4},
        ),
        ("long-rope scaling, long factors", "packed projections in the checkpoint"),
    ),
    Architecture(
        "phi",
        _sized(partial_rotary_factor=0.5),
        ("partial rotary positions", "biases", "parallel attention and MLP"),
    ),
    Architecture(
        "gpt2", _GPT2_SIZES, ("learned positions", "biases", "one KV head per query head", "tied embeddings")
    ),
    Architecture("opt", _OPT_SIZES, ("learned positions with an offset", "embedding projections", "biases")),
    Architecture(
        "gpt_neox",
        _sized(num_key_value_heads=4),
        ("partial rotary positions", "packed projections in the checkpoint"),
    ),
    Architecture("olmo2", _SIZES, ("norms after the blocks", "norms over all heads")),
    Architecture(
        "granite",
        _sized(
            attention_multiplier=0.2, embedding_multiplier=3.0, residual_multiplier=0.7, logits_scaling=2.0
        ),
        ("attention, embedding, residual and logit scales",),
    ),
    Architecture(
        "cohere", _sized(logit_scale=0.3), ("interleaved rotary positions", "parallel attention and MLP")
    ),
    Architecture(
        "starcoder2",
        _sized(sliding_window=_SHORT_WINDOW),
        ("biases", "sliding window shorter than the sequence"),
    ),
    Architecture("smollm3", _sized(pad_token_id=0, no_rope_layers=[1, 0]), ("layers without positions",)),
    Architecture(
        "glm",
        _sized(head_dim=16, pad_token_id=0, partial_rotary_factor=0.5),
        ("interleaved, partial rotary positions", "QKV biases"),
    ),
    Architecture("mixtral", _sized(num_local_experts=4, num_experts_per_tok=2), ("mixture of experts",)),
    Architecture(
        "qwen3_moe",
        _sized(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
        ("mixture of experts", "query and key norms"),
    ),
    Architecture(
        "gpt_oss",
        _sized(
            head_dim=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=_SHORT_WINDOW,
            pad_token_id=0,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        ),
        ("attention sinks", "mixture of experts with biases", "full and sliding layers"),
    ),
)
