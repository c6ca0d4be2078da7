"""Makes a transformers config of a GGUF file's metadata: a closed table of keys for each architecture.

transformers' own reading takes the keys it knows and passes over the rest, and fills in a class's defaults where a key
is not in its table, so that a file can mean one thing to llama.cpp and another here. What a key means, and what holds
where it is missing, is llama.cpp's (src/llama-model.cpp, src/models/*.cpp, conversion/*.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
from transformers import CONFIG_MAPPING, PretrainedConfig

from specexport.gguf.keys import Keys, read_keys
from specexport.gguf.rope import ROPE_FREQS, ROPE_LONG, ROPE_SHORT, rope_parameters
from specexport.tokenizer.gguf_vocabulary import read_vocabulary
from specruntime.manifest.messages import nearest

_RMS, _LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


@dataclass(frozen=True)
class _Sizes:
    """What every architecture states."""

    hidden: int
    layers: int
    heads: int
    head_dim: int
    context: int
    feed_forward: int


@dataclass(frozen=True)
class _Family:
    """How one architecture's keys become a config.

    `norm`: the key of the norms' epsilon and the config's name for it. `names`: the config's own names for sizes.
    `optional`: parts of the model that are there where a tensor of layer 0 is. `more`: the architecture's other keys.
    """

    model_type: str
    norm: tuple[str, str] = (_RMS, "rms_norm_eps")
    names: Mapping[str, str] = field(default_factory=dict)
    optional: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[Keys, _Sizes], dict[str, Any]] = lambda keys, sizes: {}
    grouped: bool = True
    own_head_dim: bool = False
    rotary: bool = True
    partial_rotary: bool = False
    tables: tuple[str, ...] = ()


def gguf_config(source: str, path: Path) -> PretrainedConfig:
    """Return the config of the model in a GGUF file.

    Raises `CheckpointUnsupported` for an architecture, a key or a value that cannot be carried out, by name.
    """
    reader = gguf.GGUFReader(str(path))
    keys = read_keys(source, reader)
    family = _FAMILIES.get(keys.architecture)
    if family is None:
        raise keys.refused(
            f"GGUF files of the architecture {keys.architecture} are not read, expected {', '.join(_FAMILIES)}"
            f"{nearest(keys.architecture, _FAMILIES)}"
        )
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    sizes, values = _sizes(keys, family)
    values |= _vocabulary(keys, path, tensors) | family.more(keys, sizes)
    values |= {attribute: name in tensors for name, attribute in family.optional.items()}
    if family.rotary:
        values |= _rotary(keys, family, sizes, tensors)
    keys.require_all_used()
    named = {family.names.get(name, name): value for name, value in values.items()}
    config: PretrainedConfig = CONFIG_MAPPING[family.model_type](**named)
    return config


def rope_tables(architecture: str) -> tuple[str, ...]:
    """Return the tensors that became part of the config, in a file of this architecture."""
    return _FAMILIES[architecture].tables


def _sizes(keys: Keys, family: _Family) -> tuple[_Sizes, dict[str, Any]]:
    """Return the sizes, and the config's values that follow from them."""
    hidden, heads = keys.take("embedding_length"), keys.take_one("attention.head_count")
    kv_heads = keys.take_one("attention.head_count_kv", heads)
    head_dim = keys.take("attention.key_length", hidden // heads)
    keys.require("attention.value_length", keys.take("attention.value_length", hidden // heads), head_dim)
    sizes = _Sizes(
        hidden=hidden,
        layers=keys.take("block_count"),
        heads=heads,
        head_dim=head_dim,
        context=keys.take("context_length"),
        feed_forward=keys.take_one("feed_forward_length"),
    )
    values = {
        "hidden_size": hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": heads,
        "max_position_embeddings": sizes.context,
        "intermediate_size": sizes.feed_forward,
        family.norm[1]: keys.take(family.norm[0]),
    }
    if family.grouped:
        values["num_key_value_heads"] = kv_heads
    else:
        keys.require("attention.head_count_kv", kv_heads, heads)
    if family.own_head_dim:
        values["head_dim"] = head_dim
    else:
        keys.require("attention.key_length", head_dim, hidden // heads)
    return sizes, values


def _vocabulary(keys: Keys, path: Path, tensors: Mapping[str, gguf.ReaderTensor]) -> dict[str, Any]:
    """Return vocabulary size and end ids: the rows of the table itself, the tokenizer's ids."""
    if "token_embd.weight" not in tensors:
        raise keys.refused("lacks the tensor token_embd.weight")
    rows = int(tensors["token_embd.weight"].shape[1])
    keys.require("vocab_size", keys.take("vocab_size", rows), rows)
    found = read_vocabulary(keys.source, path)
    if found is not None and len(found.tokens) > rows:
        raise keys.refused(
            f"tokenizer.ggml.tokens has {len(found.tokens)} tokens and token_embd.weight {rows} rows, expected a row "
            "for each token"
        )
    ends = () if found is None else found.ends
    return {
        "vocab_size": rows,
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": found and found.bos,
        "eos_token_id": ends[0] if len(ends) == 1 else list(ends) or None,
        "pad_token_id": found and found.padding,
    }


def _rotary(
    keys: Keys, family: _Family, sizes: _Sizes, tensors: Mapping[str, gguf.ReaderTensor]
) -> dict[str, Any]:
    count = keys.take("rope.dimension_count", sizes.head_dim)
    tables = {
        name: [float(value) for value in tensors[name].data] for name in family.tables if name in tensors
    }
    found = rope_parameters(keys, tables, count, sizes.context)
    if family.partial_rotary:
        found["partial_rotary_factor"] = count / sizes.head_dim
    else:
        keys.require("rope.dimension_count", count, sizes.head_dim)
    if family.model_type == "gemma3_text":
        local = {"rope_type": "default", "rope_theta": keys.take("rope.freq_base_swa", 10000.0)}
        return {"rope_parameters": {"full_attention": found, "sliding_attention": local}}
    if family.model_type == "gemma2":
        keys.require(
            "rope.freq_base_swa", keys.take("rope.freq_base_swa", found["rope_theta"]), found["rope_theta"]
        )
    return {"rope_parameters": found}


def _gemma(keys: Keys, sizes: _Sizes, period: int, largest: int) -> dict[str, Any]:
    """Layers in turns, and the attention's scale, which the model of `largest` layers takes from its width."""
    pattern = keys.take("attention.sliding_window_pattern", period)
    if isinstance(pattern, list):
        slides = [bool(value) for value in pattern]
    else:
        slides = [pattern != 0 and layer % pattern < pattern - 1 for layer in range(sizes.layers)]
    if len(slides) != sizes.layers:
        raise keys.refused(
            f"attention.sliding_window_pattern has {len(slides)} layers, expected {sizes.layers}"
        )
    scale = sizes.hidden // sizes.heads if sizes.layers == largest else sizes.head_dim
    return {
        "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides],
        "query_pre_attn_scalar": scale,
    }


def _gemma2(keys: Keys, sizes: _Sizes) -> dict[str, Any]:
    return _gemma(keys, sizes, period=2, largest=46) | {
        "sliding_window": keys.take("attention.sliding_window", 4096),
        "attn_logit_softcapping": keys.take("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.take("final_logit_softcapping", 30.0),
    }


def _gemma3(keys: Keys, sizes: _Sizes) -> dict[str, Any]:
    window = keys.take("attention.sliding_window", 0)
    found = _gemma(keys, sizes, period=6, largest=62)
    if not window:
        found["layer_types"] = ["full_attention"] * sizes.layers
    return found | {
        "sliding_window": window or None,
        "final_logit_softcapping": keys.take("final_logit_softcapping", 0.0) or None,
    }


def _experts(keys: Keys, sizes: _Sizes) -> dict[str, Any]:
    used = keys.take("expert_used_count")
    return {
        "num_experts": keys.take("expert_count"),
        "num_experts_per_tok": used,
        "moe_intermediate_size": keys.take("expert_feed_forward_length", sizes.feed_forward // used),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _qwen2moe(keys: Keys, sizes: _Sizes) -> dict[str, Any]:
    shared = keys.take("expert_shared_feed_forward_length", sizes.feed_forward)
    return _experts(keys, sizes) | {"shared_expert_intermediate_size": shared, "norm_topk_prob": False}


def _qwen3moe(keys: Keys, sizes: _Sizes) -> dict[str, Any]:
    return _experts(keys, sizes) | {"norm_topk_prob": True}


def _phi3(keys: Keys, sizes: _Sizes) -> dict[str, Any]:
    return {
        "sliding_window": keys.take("attention.sliding_window", 0) or None,
        "original_max_position_embeddings": keys.take("rope.scaling.original_context_length", sizes.context),
    }


_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(
        "llama",
        own_head_dim=True,
        tables=(ROPE_FREQS, ROPE_LONG, ROPE_SHORT),
        optional={"blk.0.attn_q.bias": "attention_bias", "blk.0.ffn_up.bias": "mlp_bias"},
    ),
    "qwen2": _Family("qwen2"),
    "qwen2moe": _Family("qwen2_moe", more=_qwen2moe),
    "qwen3": _Family("qwen3", own_head_dim=True, optional={"blk.0.attn_q.bias": "attention_bias"}),
    "qwen3moe": _Family(
        "qwen3_moe", more=_qwen3moe, own_head_dim=True, optional={"blk.0.attn_q.bias": "attention_bias"}
    ),
    "phi3": _Family("phi3", more=_phi3, partial_rotary=True, tables=(ROPE_LONG, ROPE_SHORT)),
    "gemma2": _Family("gemma2", more=_gemma2, own_head_dim=True),
    "gemma3": _Family("gemma3_text", more=_gemma3, own_head_dim=True),
    "starcoder2": _Family(
        "starcoder2", norm=(_LAYER, "norm_epsilon"), optional={"blk.0.attn_q.bias": "use_bias"}
    ),
    "nemotron": _Family(
        "nemotron",
        norm=(_LAYER, "norm_eps"),
        own_head_dim=True,
        partial_rotary=True,
        optional={"blk.0.attn_q.bias": "attention_bias", "blk.0.ffn_up.bias": "mlp_bias"},
    ),
    "gpt2": _Family(
        "gpt2",
        norm=(_LAYER, "layer_norm_epsilon"),
        grouped=False,
        rotary=False,
        names={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
            "intermediate_size": "n_inner",
        },
    ),
}
