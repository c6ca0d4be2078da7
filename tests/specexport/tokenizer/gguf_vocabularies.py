"""Writes the tokenizers of small GGUF files, key by key, and holds the texts that tokenizers are compared on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from tests.specexport.gguf.gguf_files import add_sizes, gguf_tensors

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
        add_sizes(writer, weights.config)
        for name, values in gguf_tensors(weights, "llama"):
            writer.add_tensor(name, np.ascontiguousarray(values))
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
