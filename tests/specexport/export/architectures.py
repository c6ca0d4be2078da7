"""The architectures that are exported and compared with PyTorch as tiny random models, and those that are refused.

One model per architecture, its sizes chosen so that together they cover every feature a graph must carry. The tables
of docs/architectures.md are made from this file and from what the comparison finds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_SHORT_WINDOW, _LONG_WINDOW = 7, 300
"""Shorter and longer than every sequence of the comparison (`comparison.CAPACITY`)."""
_GPT2_SIZES = {"vocab_size": 160, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
_OPT_SIZES = {
    "vocab_size": 160,
    "hidden_size": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "word_embed_proj_dim": 56,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "long_factor": [2.0 + n / 4 for n in range(8)],
    "short_factor": [1.1] * 8,
}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
_EXPERTS = {"num_experts_per_tok": 2, "head_dim": 16}


@dataclass(frozen=True)
class Architecture:
    """A transformers model type with tiny sizes; `features` is what its graph must carry, in words.

    `asked_for` are those the project promises; the others are exported by the slow tests only.
    """

    model_type: str
    sizes: Mapping[str, Any]
    features: str
    asked_for: bool = False


@dataclass(frozen=True)
class Refused:
    """A model type that is refused before anything is traced; `reason` is part of the message."""

    model_type: str
    sizes: Mapping[str, Any]
    reason: str


def _sized(**changes: Any) -> dict[str, Any]:
    return _SIZES | changes


def _one_layer(**changes: Any) -> dict[str, Any]:
    return _sized(num_hidden_layers=1, **changes)


EXPORTED: tuple[Architecture, ...] = (
    Architecture(
        "llama",
        _sized(rope_parameters=_LLAMA3_ROPE),
        "grouped KV heads, llama3 rotary scaling, untied embeddings",
        asked_for=True,
    ),
    Architecture(
        "mistral",
        _sized(sliding_window=_SHORT_WINDOW, head_dim=24),
        "sliding window shorter than the sequence, head size of its own",
        asked_for=True,
    ),
    Architecture(
        "qwen2",
        _sized(
            use_sliding_window=True,
            sliding_window=_SHORT_WINDOW,
            max_window_layers=1,
            tie_word_embeddings=True,
        ),
        "QKV biases, full and sliding layers, tied embeddings",
        asked_for=True,
    ),
    Architecture(
        "qwen3",
        _sized(head_dim=16, rope_parameters=_YARN),
        "query and key norms, yarn rotary scaling",
        asked_for=True,
    ),
    Architecture(
        "gemma2",
        _sized(
            head_dim=16,
            sliding_window=_LONG_WINDOW,
            query_pre_attn_scalar=20,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
        ),
        "attention and logit soft-capping, attention scale, sliding window longer than the sequence, tied embeddings",
        asked_for=True,
    ),
    Architecture(
        "gemma3_text",
        _sized(
            head_dim=16,
            sliding_window=_SHORT_WINDOW,
            query_pre_attn_scalar=16,
            layer_types=["sliding_attention", "full_attention"],
        ),
        "full and sliding layers with rotary positions of their own, query and key norms, scaled embeddings",
        asked_for=True,
    ),
    Architecture(
        "phi3",
        _sized(
            pad_token_id=0,
            sliding_window=_LONG_WINDOW,
            original_max_position_embeddings=32,
            rope_parameters=_LONG_ROPE,
        ),
        "long-rope scaling, projections packed in the checkpoint",
        asked_for=True,
    ),
    Architecture(
        "gpt2",
        _GPT2_SIZES,
        "learned positions, biases, one KV head per query head, tied embeddings",
        asked_for=True,
    ),
    Architecture(
        "opt",
        _OPT_SIZES,
        "learned positions with an offset, projected embeddings, biases",
        asked_for=True,
    ),
    Architecture(
        "gpt_oss",
        _sized(
            **_EXPERTS,
            num_local_experts=4,
            sliding_window=_SHORT_WINDOW,
            pad_token_id=0,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        ),
        "attention sinks, mixture of experts with biases, full and sliding layers",
        asked_for=True,
    ),
    Architecture("mixtral", _one_layer(**_EXPERTS, num_local_experts=4), "mixture of experts"),
    Architecture(
        "qwen3_moe",
        _one_layer(**_EXPERTS, num_experts=4, moe_intermediate_size=32),
        "mixture of experts, query and key norms",
    ),
    Architecture(
        "phi", _one_layer(partial_rotary_factor=0.5), "partial rotary positions, biases, parallel MLP"
    ),
    Architecture(
        "gpt_neox", _one_layer(num_key_value_heads=4), "partial rotary positions, packed projections"
    ),
    Architecture("olmo2", _one_layer(), "norms after the blocks, norms over all heads"),
    Architecture(
        "granite",
        _one_layer(
            attention_multiplier=0.2, embedding_multiplier=3.0, residual_multiplier=0.7, logits_scaling=2.0
        ),
        "attention, embedding, residual and logit scales",
    ),
    Architecture("cohere", _one_layer(logit_scale=0.3), "interleaved rotary positions, parallel MLP"),
    Architecture("starcoder2", _one_layer(sliding_window=_SHORT_WINDOW), "biases, sliding window"),
    Architecture("smollm3", _sized(pad_token_id=0, no_rope_layers=[1, 0]), "layers without positions"),
    Architecture(
        "glm",
        _one_layer(head_dim=16, pad_token_id=0, partial_rotary_factor=0.5),
        "interleaved, partial rotary positions; QKV biases",
    ),
)

_NO_INTERFACE = "without transformers' attention interface"
_NO_CACHE_ROWS = "one key and one value tensor of the same shape per layer"
_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "pad_token_id": 0,
}

REFUSED: tuple[Refused, ...] = (
    Refused("falcon", _SIZES, _NO_INTERFACE),
    Refused("bloom", {"vocab_size": 160, "hidden_size": 64, "n_layer": 2, "n_head": 4}, _NO_INTERFACE),
    Refused("mpt", {"vocab_size": 160, "d_model": 64, "n_layers": 2, "n_heads": 4}, _NO_INTERFACE),
    Refused("stablelm", _SIZES, _NO_INTERFACE),
    Refused(
        "gpt_neo",
        {
            "vocab_size": 160,
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
        },
        _NO_INTERFACE,
    ),
    Refused("mamba", {"vocab_size": 160, "hidden_size": 64, "num_hidden_layers": 2}, "linear_attention"),
    Refused("jamba", _sized(num_experts=2), "linear_attention"),
    Refused("lfm2", _sized(layer_types=["conv", "full_attention"], pad_token_id=0), "layers of kind conv"),
    Refused("llama4_text", _sized(num_local_experts=2, pad_token_id=0), "layers of kind chunked_attention"),
    Refused("deepseek_v3", _sized(**_LATENT), _NO_CACHE_ROWS),
)
