"""Writes small GGUF files, as llama.cpp's converter lays them out, and the texts that tokenizers are compared on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

CORPUS = [
    "the quick brown fox jumps over the lazy dog. once upon a time there was a house, don't you know? 12345 67890 2024",
    "def f(x):\n    return x + 1\n\n\nprint(f(3))   # comment\n\n1. a\n2. b\n x =  12",
    "naïve café déjà vu — 😊 日本語 テスト 2024年",
] * 4
TEXTS = [
    "x =  12",
    "\n\n1. a\n2.  b\n\n\n10. c",
    "the quick  brown fox 12345 and 6,789.01",
    "def f(x):\n    return x + 12\n\tdone  \n   ",
    "don't WE'LL I'm they'd",
    "日本語のテスト2024年 中文，和。",
    "naïve cafe\u0301 e\u0301\u0301",
    "😊👩‍👩‍👧 ok",
    " leading and trailing ",
    "\t\r\n \r\n mixed\u00a0space\u3000wide",
    "１２ ² ½ Ⅷ",
]


def tiny_llama(rows: int) -> LlamaForCausalLM:
    """One layer of random weights, wide enough apart that a token more or less shows in the answer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=rows,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config)
    model.eval()
    return model


def byte_level_model(size: int = 400) -> models.Model:
    """Byte pairs trained on `CORPUS` with no rule, so that merges reach over digits and spaces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        max_token_length=6,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    model: models.Model = tokenizer.model
    return model


def write_gguf(
    path: Path,
    tokens: Sequence[str],
    types: Sequence[int],
    *,
    weights: LlamaForCausalLM | None = None,
    **metadata: Any,
) -> Path:
    """A llama with these tokens; `metadata` under `tokenizer.ggml.`, and `chat_template`."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(metadata.pop("name", "tiny"))
    if (template := metadata.pop("chat_template", None)) is not None:
        writer.add_chat_template(template)
    writer.add_token_list(list(tokens))
    writer.add_array("tokenizer.ggml.token_type", [int(kind) for kind in types])
    for key, value in metadata.items():
        _add(writer, f"tokenizer.ggml.{key}", value)
    if weights is not None:
        _add_llama(writer, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    add: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        str: writer.add_string,
        list: writer.add_array,
    }
    add[type(value)](key, value)


def _add_llama(writer: gguf.GGUFWriter, model: LlamaForCausalLM) -> None:
    config: Any = model.config
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in tensors.items():
        part = name.split(".")[-2]
        written = _interleaved(tensor, heads[part]) if part in heads else tensor
        gguf_name = names.get_name(name, try_suffixes=(".weight",))
        assert gguf_name is not None, name
        writer.add_tensor(gguf_name, np.ascontiguousarray(written, np.float32))


def _interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head in GGUF's order: the halves that rotate together stand next to each other."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(weight.shape)
