"""Writes tiny GGUF files as llama.cpp's conversion scripts write them: names by the `gguf` package's own table, tensors
changed as conversion/{llama,gemma,nemotron,gpt2,qwen}.py change them, metadata by the package's writer.

Holds no code of specexport, so that what is read can be compared with what was written.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

Tensors = Iterator[tuple[str, NDArray[np.float32]]]
_TEXT = ["the quick brown fox jumps over the lazy dog", "def f(x):\n    return x + 1\n"] * 4


SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
GPT2_SIZES = {
    "vocab_size": 300,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 96,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def model_of(kind: str, **changes: Any) -> PreTrainedModel:
    """A tiny model of a transformers model type, `changes` made to its sizes."""
    sizes = GPT2_SIZES if kind == "gpt2" else SIZES | changes
    return tiny_model(CONFIG_MAPPING[kind](**sizes))


def tiny_model(config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    """Random weights of a size at which every part of the arithmetic shows in the logits."""
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.3 if parameter.ndim > 1 else 0.2
            centre = 0.0 if parameter.ndim > 1 or name.endswith("bias") else parameter.mean()
            parameter.copy_(centre + scale * torch.randn_like(parameter))
    return model


def byte_bpe(size: int) -> Tokenizer:
    """A byte-level BPE tokenizer of at most `size` tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    return tokenizer


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    architecture: str,
    metadata: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    *,
    sizes: bool = True,
    name: str | None = "tiny",
    extra: Mapping[str, NDArray[Any]] | None = None,
    quantised: Mapping[str, tuple[NDArray[Any], gguf.GGMLQuantizationType]] | None = None,
) -> None:
    """`metadata` adds keys to those of `add_sizes`, or all of them where `sizes` is false.

    `extra`: tensors that no weight of the model stands for; `quantised`: blocks in place of tensors, by GGUF name.
    """
    writer = gguf.GGUFWriter(path, architecture)
    if name is not None:
        writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if sizes:
        add_sizes(writer, model.config)
    metadata(writer)
    _add_tokenizer(writer, int(model.config.vocab_size))
    for tensor, values in gguf_tensors(model, architecture):
        blocks = (quantised or {}).get(tensor)
        if blocks is None:
            writer.add_tensor(tensor, np.ascontiguousarray(values))
        else:
            writer.add_tensor(tensor, blocks[0], raw_dtype=blocks[1])
    for tensor, values in (extra or {}).items():
        writer.add_tensor(tensor, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_sizes(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    """What conversion/base.py and the scripts of the architectures write of a config without rotary scaling."""
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if getattr(config, "num_key_value_heads", None) is not None:
        writer.add_head_count_kv(config.num_key_value_heads)
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for name in ("norm_epsilon", "norm_eps", "layer_norm_epsilon"):
        if hasattr(config, name):
            writer.add_layer_norm_eps(getattr(config, name))
    if (head_dim := getattr(config, "head_dim", None)) is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    if "rope_theta" in rope:
        writer.add_rope_freq_base(rope["rope_theta"])
    if (part := rope.get("partial_rotary_factor")) is not None:
        writer.add_rope_dimension_count(int(part * config.hidden_size) // config.num_attention_heads)
    _add_parts(writer, config)


def _add_parts(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    for name, add in (
        ("num_experts", writer.add_expert_count),
        ("num_experts_per_tok", writer.add_expert_used_count),
        ("moe_intermediate_size", writer.add_expert_feed_forward_length),
        ("shared_expert_intermediate_size", writer.add_expert_shared_feed_forward_length),
        ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
        ("final_logit_softcapping", writer.add_final_logit_softcapping),
        ("sliding_window", writer.add_sliding_window),
    ):
        if (value := getattr(config, name, None)) is not None:
            add(value)


def gguf_tensors(model: PreTrainedModel, architecture: str) -> Tensors:
    """The model's weights by GGUF name, as the conversion script of the architecture stores them."""
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, model.config.num_hidden_layers)
    for key, parameter in model.state_dict().items():
        if key == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        for own, values in _converted(key, parameter.float(), model.config, architecture):
            name = names.get_name(own, (".weight", ".bias"))
            assert name is not None, own
            yield name, values.numpy()


def _converted(
    key: str, weight: torch.Tensor, config: PretrainedConfig, architecture: str
) -> Iterator[tuple[str, torch.Tensor]]:
    if architecture == "llama" and ("q_proj" in key or "k_proj" in key):
        heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads
        halves = weight.reshape(heads, 2, len(weight) // heads // 2, *weight.shape[1:])
        yield key, halves.swapaxes(1, 2).reshape(weight.shape)
    elif architecture in ("gemma2", "gemma3", "nemotron") and key.endswith("norm.weight"):
        yield key, weight + 1
    elif architecture == "gpt2" and key.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        yield key, weight.T
    elif key.endswith("experts.gate_up_proj"):
        stem = key.removesuffix("gate_up_proj")
        gate, up = weight.chunk(2, dim=1)
        yield f"{stem}gate_proj.weight", gate
        yield f"{stem}up_proj.weight", up
    elif key.endswith("experts.down_proj"):
        yield f"{key}.weight", weight
    elif key.endswith("shared_expert_gate.weight"):
        yield key, weight.squeeze(0)
    else:
        yield key, weight


def _add_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    """As conversion/base.py does for byte-level BPE: ids that the tokenizer lacks are padding."""
    tokenizer = byte_bpe(size)
    known = {index: token for token, index in tokenizer.get_vocab().items()}
    tokens = [known.get(index, f"[PAD{index}]") for index in range(size)]
    kinds = [
        gguf.TokenType.CONTROL
        if index < 2
        else gguf.TokenType.NORMAL
        if index in known
        else gguf.TokenType.UNUSED
        for index in range(size)
    ]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)
