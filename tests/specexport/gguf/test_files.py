"""A GGUF file means what the checkpoint it was made of means, or is refused by the name of what would be lost.

Expected values: the model that the file was written from, and the `gguf` package's dequantiser.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from specexport.checkpoints.loading import known_positions, load_checkpoint
from specexport.recipe.schema import Target
from tests.specexport.gguf.gguf_files import model_of, write_gguf

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_IDS = torch.arange(48)[None] * 7 % 300
Metadata = Callable[[gguf.GGUFWriter], None]


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(_IDS).logits
    return found


def load(path: Path) -> PreTrainedModel:
    return load_checkpoint(Target(source=str(path)), "fp32").model


def require_equal(path: Path, model: PreTrainedModel) -> None:
    expected, found = logits(model), logits(load(path))
    assert float((found - expected).abs().max()) < 1e-5 * float(expected.abs().max())


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"head_dim": 24, "rms_norm_eps": 1e-2}),
    "qwen2": ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen2moe": ("qwen2_moe", {**_EXPERTS, "shared_expert_intermediate_size": 48}),
    "qwen3": ("qwen3", {"head_dim": 24, "tie_word_embeddings": True}),
    "qwen3moe": ("qwen3_moe", {**_EXPERTS, "head_dim": 24, "norm_topk_prob": True}),
    "phi3": (
        "phi3",
        {
            "sliding_window": 5,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "gemma2": (
        "gemma2",
        {
            "head_dim": 24,
            "query_pre_attn_scalar": 24,
            "sliding_window": 4,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 9.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {"head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 4, "num_hidden_layers": 7},
    ),
    "starcoder2": ("starcoder2", {}),
    "nemotron": ("nemotron", {}),
    "gpt2": ("gpt2", {}),
}


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_file_of_each_architecture_computes_what_its_checkpoint_computes(
    cache: Path, tmp_path: Path, architecture: str
) -> None:
    kind, changes = FAMILIES[architecture]
    model = model_of(kind, **changes)
    path = tmp_path / "model.gguf"
    write_gguf(path, model, architecture)
    require_equal(path, model)
    assert known_positions(Target(source=str(path))) == model.config.max_position_embeddings


def _llama3(factor: float, head_dim: int, original: int) -> NDArray[np.float32]:
    """The factors that conversion/llama.py makes of llama 3's scaling."""
    factors = []
    for i in range(0, head_dim, 2):
        length = 2 * math.pi * 10000.0 ** (i / head_dim)
        smooth = (original / length - 1) / (4 - 1)
        between = 1 / ((1 - smooth) / factor + smooth)
        factors.append(1 if length < original / 4 else factor if length > original else between)
    return np.array(factors, np.float32)


def _yarn(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(32)


def _yarn_in_full(writer: gguf.GGUFWriter) -> None:
    _yarn(writer)
    writer.add_rope_scaling_yarn_ext_factor(1.0)
    writer.add_rope_scaling_yarn_attn_factor(0.1 * math.log(4) + 1)
    writer.add_rope_scaling_yarn_beta_fast(16.0)
    writer.add_rope_scaling_yarn_beta_slow(2.0)


def _linear(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(8.0)


def _linear_by_its_old_key(writer: gguf.GGUFWriter) -> None:
    writer.add_float32(f"{writer.arch}.rope.scale_linear", 8.0)


def _longrope(writer: gguf.GGUFWriter) -> None:
    """As conversion/phi.py: no type, and the attention's factor by the method's own formula."""
    writer.add_rope_scaling_orig_ctx_len(32)
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(128 / 32) / math.log(32)))


_FACTORS: dict[str, NDArray[Any]] = {
    "rope_factors_short.weight": np.full(8, 1.1, np.float32),
    "rope_factors_long.weight": 2 + np.arange(8, dtype=np.float32) / 4,
}
_LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1.1] * 8,
    "long_factor": [2.0 + n / 4 for n in range(8)],
    "original_max_position_embeddings": 32,
}
_SCALED: dict[str, tuple[str, str, dict[str, Any], Metadata, dict[str, NDArray[Any]]]] = {
    "llama3": (
        "llama",
        "llama",
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        lambda writer: None,
        {"rope_freqs.weight": _llama3(8.0, 16, 64)},
    ),
    "yarn": (
        "qwen2",
        "qwen2",
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        _yarn,
        {},
    ),
    "yarn with every parameter": (
        "llama",
        "llama",
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
        },
        _yarn_in_full,
        {},
    ),
    "linear": ("qwen3", "qwen3", {"rope_type": "linear", "factor": 8.0}, _linear, {}),
    "linear by its old key": (
        "llama",
        "llama",
        {"rope_type": "linear", "factor": 8.0},
        _linear_by_its_old_key,
        {},
    ),
    "longrope": ("phi3", "phi3", _LONGROPE, _longrope, _FACTORS),
}


@pytest.mark.parametrize("scaling", _SCALED)
def test_rotary_scaling_is_carried_out(cache: Path, tmp_path: Path, scaling: str) -> None:
    architecture, kind, parameters, metadata, tensors = _SCALED[scaling]
    changes: dict[str, Any] = {"head_dim": 16} if kind in ("llama", "qwen3") else {}
    if kind == "phi3":
        changes["original_max_position_embeddings"] = 32
    model = model_of(kind, rope_parameters={"rope_theta": 1e4, **parameters}, **changes)
    path = tmp_path / "model.gguf"
    write_gguf(path, model, architecture, metadata, extra=tensors)
    require_equal(path, model)
    plain = logits(model_of(kind, **changes))
    assert float((logits(model) - plain).abs().max()) > 0.1, "this scaling does not show in these logits"


def test_linear_scaling_of_gemma3_is_that_of_its_full_layers_alone(cache: Path, tmp_path: Path) -> None:
    rope = {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    model = model_of("gemma3_text", **{**FAMILIES["gemma3"][1], "rope_parameters": rope})
    write_gguf(tmp_path / "model.gguf", model, "gemma3", _linear)
    require_equal(tmp_path / "model.gguf", model)


def test_what_a_file_leaves_out_has_llama_cpps_value(cache: Path, tmp_path: Path) -> None:
    """As many KV heads as heads, rotary base 10000, heads that share the width."""
    model = model_of("qwen2", num_key_value_heads=4)

    def metadata(writer: gguf.GGUFWriter) -> None:
        writer.add_context_length(128)
        writer.add_embedding_length(64)
        writer.add_block_count(2)
        writer.add_feed_forward_length(96)
        writer.add_head_count(4)
        writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)

    for architecture, kind in (("llama", "llama"), ("qwen2", "qwen2")):
        model = model_of(kind, num_key_value_heads=4)
        path = tmp_path / f"{architecture}.gguf"
        write_gguf(path, model, architecture, metadata, sizes=False)
        require_equal(path, model)


def test_biases_of_a_llama_are_used(cache: Path, tmp_path: Path) -> None:
    model = model_of("llama", attention_bias=True, mlp_bias=True)
    write_gguf(tmp_path / "model.gguf", model, "llama")
    require_equal(tmp_path / "model.gguf", model)


def test_a_files_name_does_not_choose_its_arithmetic(cache: Path, tmp_path: Path) -> None:
    """transformers takes a llama named `mistral` for another model, with a window that the file does not state."""
    model = model_of("llama")
    write_gguf(tmp_path / "model.gguf", model, "llama", lambda writer: writer.add_name("mistral"), name=None)
    require_equal(tmp_path / "model.gguf", model)


def test_every_token_that_ends_an_answer_is_an_end_of_the_bundle(cache: Path, tmp_path: Path) -> None:
    """The ends of a turn and of a message have names of their own here, and no chat template writes them."""

    def metadata(writer: gguf.GGUFWriter) -> None:
        writer.add_eot_token_id(7)
        writer.add_uint32("tokenizer.ggml.eom_token_id", 5)

    write_gguf(tmp_path / "model.gguf", model_of("llama"), "llama", metadata)
    loaded = load_checkpoint(Target(source=str(tmp_path / "model.gguf")), "fp32")
    assert loaded.eos_token_ids == (1, 5, 7)
    assert loaded.generation_config.eos_token_id == [1, 5, 7]


def _blocks(kind: gguf.GGMLQuantizationType, rows: int, columns: int) -> NDArray[np.uint8]:
    """Random bytes as blocks of `kind`, drawn again where a block's scale is not a number that a model could have."""
    generator = np.random.default_rng(int(kind))
    size, width = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.zeros((rows * columns // size, width), np.uint8)
    redo = np.ones(len(blocks), bool)
    while redo.any():
        blocks[redo] = generator.integers(0, 256, (int(redo.sum()), width), np.uint8)
        with np.errstate(all="ignore"):
            values = gguf.quants.dequantize(blocks, kind).reshape(len(blocks), -1)
        redo = ~(np.abs(values).max(axis=1) < 100)  # NaN is not below
    return blocks.reshape(rows, -1)


STORED = [kind for kind in gguf.GGMLQuantizationType if kind in gguf.quants._type_traits]


def test_every_type_of_block_gives_the_numbers_of_the_gguf_packages_dequantiser(
    cache: Path, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": len(STORED)}
    model = model_of("qwen2", **sizes)
    blocks = {
        f"blk.{layer}.ffn_up.weight": (_blocks(kind, 256, 256), kind) for layer, kind in enumerate(STORED)
    }
    write_gguf(tmp_path / "model.gguf", model, "qwen2", quantised=blocks)
    found = load(tmp_path / "model.gguf").state_dict()
    assert len(STORED) >= 24
    for layer, kind in enumerate(STORED):
        expected = gguf.quants.dequantize(blocks[f"blk.{layer}.ffn_up.weight"][0], kind)
        weight = found[f"model.layers.{layer}.mlp.up_proj.weight"].numpy()
        assert np.array_equal(weight, expected), kind.name
