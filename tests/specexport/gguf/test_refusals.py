"""What a GGUF file says and cannot be carried out is refused by name, before the weights where a key says it."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from specexport.checkpoints.loading import known_positions, load_checkpoint
from specexport.errors import CheckpointUnsupported
from specexport.recipe.schema import Target
from tests.specexport.gguf import gguf_files
from tests.specexport.gguf.gguf_files import model_of, write_gguf

Metadata = Callable[[gguf.GGUFWriter], None]


def load(path: Path) -> PreTrainedModel:
    return load_checkpoint(Target(source=str(path)), "fp32").model


def _half_extrapolated(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(32)
    writer.add_rope_scaling_yarn_ext_factor(0.5)


def _yarn_attention(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(32)
    writer.add_rope_scaling_yarn_attn_factor(1.0)


REFUSED_KEYS: dict[str, tuple[Metadata, str]] = {
    "attention scale": (lambda w: w.add_attention_scale(0.5), r"llama\.attention\.scale \(0\.5\)"),
    "sliding window": (lambda w: w.add_sliding_window(16), r"llama\.attention\.sliding_window \(16\)"),
    "soft cap": (lambda w: w.add_final_logit_softcapping(30.0), r"llama\.final_logit_softcapping \(30\.0\)"),
    "experts": (lambda w: w.add_expert_count(8), r"llama\.expert_count \(8\)"),
    "logit scale": (lambda w: w.add_logit_scale(0.1), r"llama\.logit_scale"),
    "residual scale": (lambda w: w.add_residual_scale(0.1), r"llama\.residual_scale"),
    "embedding scale": (lambda w: w.add_embedding_scale(12.0), r"llama\.embedding_scale"),
    "not causal": (lambda w: w.add_causal_attention(False), r"llama\.attention\.causal \(False\)"),
    "unknown": (lambda w: w.add_uint32("llama.attention.surprise", 1), r"llama\.attention\.surprise"),
    "other namespace": (lambda w: w.add_float32("xielu.alpha_p", 1.0), r"what xielu\.alpha_p means"),
    "value length": (lambda w: w.add_value_length(8), r"llama\.attention\.value_length is 8, expected 16"),
    "rotary width": (lambda w: w.add_rope_dimension_count(8), r"rope\.dimension_count is 8, expected 16"),
    "heads by layer": (
        lambda w: w.add_array("llama.attention.head_count_kv", [2, 1]),
        r"head_count_kv differs from layer to layer: \[2, 1\]",
    ),
    "vocabulary": (lambda w: w.add_vocab_size(301), r"llama\.vocab_size is 301, expected 300"),
    "scaling by another name": (
        lambda w: w.add_string("llama.rope.scaling.type", "dynamic"),
        r"rope\.scaling\.type is dynamic, expected None or none or linear",
    ),
    "yarn's attention factor": (
        _yarn_attention,
        r"yarn_attn_factor is 1\.0, expected 1\.138629, which follows from the factor",
    ),
    "yarn's extrapolation": (
        _half_extrapolated,
        r"yarn_ext_factor is 0\.5, expected 1\.0",
    ),
    "attention factor": (
        lambda w: w.add_rope_scaling_attn_factors(1.2),
        r"rope\.scaling\.attn_factor is 1\.2, expected None or 1\.0",
    ),
    "longrope without tables": (
        lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE),
        r"lacks the tensor rope_factors_long\.weight",
    ),
    "part of a file": (lambda w: w.add_uint16("split.count", 3), "one of 3 parts of a model"),
    "adapter": (lambda w: w.add_type("adapter"), r"general\.type is adapter, expected model"),
}


@pytest.mark.parametrize("case", REFUSED_KEYS)
def test_a_key_that_cannot_be_carried_out_is_refused_by_name(cache: Path, tmp_path: Path, case: str) -> None:
    metadata, message = REFUSED_KEYS[case]
    path = tmp_path / "model.gguf"
    model = model_of("llama", head_dim=16)
    _write_over(path, model, metadata)
    with pytest.raises(CheckpointUnsupported, match=message):
        known_positions(Target(source=str(path)))


def _write_over(path: Path, model: PreTrainedModel, metadata: Metadata) -> None:
    """`metadata` may state again what the sizes state."""

    def replace(writer: gguf.GGUFWriter) -> None:
        known = dict(writer.kv_data[0])
        writer.kv_data[0].clear()
        metadata(writer)
        writer.kv_data[0] = {**known, **writer.kv_data[0]}

    write_gguf(path, model, "llama", replace)


@pytest.mark.parametrize("rows", [299, 300, 301])
def test_more_tokens_than_rows_of_the_embeddings_are_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """llama.cpp takes the number of tokens for that of the rows, and refuses the tensor's shape."""
    path = tmp_path / "model.gguf"
    with monkeypatch.context() as patched:
        add = gguf_files._add_tokenizer
        patched.setattr(gguf_files, "_add_tokenizer", lambda writer, _: add(writer, 300))
        write_gguf(path, model_of("llama", vocab_size=rows), "llama")
    tokens = len(gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"].data)
    if tokens <= rows:
        known_positions(Target(source=str(path)))
        return
    message = rf"tokenizer\.ggml\.tokens has {tokens} tokens and token_embd\.weight {rows} rows"
    with pytest.raises(CheckpointUnsupported, match=message):
        known_positions(Target(source=str(path)))


@pytest.mark.parametrize(
    "key",
    ["pooling_type", "logit_scale", "expert_count", "attention.sliding_window", "rope.scaling.attn_factor"],
)
def test_a_key_at_a_value_without_effect_is_accepted(cache: Path, tmp_path: Path, key: str) -> None:
    model = model_of("llama")
    value = 1.0 if "scale" in key or "factor" in key else 0

    def metadata(writer: gguf.GGUFWriter) -> None:
        writer.add_key_value(f"llama.{key}", value, gguf.GGUFValueType.get_type(value))
        writer.add_string("quantize.imatrix.file", "notes.dat")

    write_gguf(tmp_path / "model.gguf", model, "llama", metadata)
    found = load(tmp_path / "model.gguf").state_dict()
    assert all(torch.equal(found[name], weight) for name, weight in model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blk.0.attn_q_norm.weight", r"llama has no place for the tensor blk\.0\.attn_q_norm\.weight"),
        ("blk.0.attn_q.scale", r"no place for the tensor blk\.0\.attn_q\.scale"),
        ("blk.0.attn_q.bias", r"lacks weights that the model needs as llama: .*bias"),
        ("rope_freqs.weight", r"rope_freqs\.weight has 3 factors, expected 8"),
    ],
)
def test_a_tensor_without_a_place_is_refused_by_name(
    cache: Path, tmp_path: Path, name: str, message: str
) -> None:
    path = tmp_path / "model.gguf"
    size = 3 if name == "rope_freqs.weight" else 64
    write_gguf(path, model_of("llama"), "llama", extra={name: np.ones(size, np.float32)})
    with pytest.raises(CheckpointUnsupported, match=message):
        load(path)


def test_frequency_factors_of_an_architecture_that_does_not_use_them_are_refused(
    cache: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, model_of("qwen2"), "qwen2", extra={"rope_freqs.weight": np.full(8, 2, np.float32)})
    with pytest.raises(CheckpointUnsupported, match=r"qwen2 .*rope_freqs\.weight"):
        load(path)


def test_an_architecture_without_a_table_is_refused_by_name(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "qwen4")
    writer.add_tensor("token_embd.weight", np.ones((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        CheckpointUnsupported, match=r"architecture qwen4 are not read, expected llama, .*did you"
    ):
        load(path)


def test_a_type_of_block_that_cannot_be_read_is_refused_by_name(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    numbers = np.zeros((96, 64), np.float64)
    write_gguf(
        path,
        model_of("qwen2"),
        "qwen2",
        quantised={"blk.0.ffn_up.weight": (numbers, gguf.GGMLQuantizationType.F64)},
    )
    with pytest.raises(CheckpointUnsupported, match=r"blk\.0\.ffn_up\.weight is stored as F64"):
        load(path)


def test_weights_that_are_not_numbers_are_called_that(cache: Path, tmp_path: Path) -> None:
    model = model_of("qwen2")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, :2] = torch.tensor([torch.nan, torch.inf])
    model.save_pretrained(tmp_path / "saved")
    write_gguf(tmp_path / "model.gguf", model, "qwen2")
    message = (
        r"2 of the 6144 numbers of the weight model\.layers\.1\.mlp\.up_proj\.weight are NaN or infinite"
    )
    for place in ("saved", "model.gguf"):
        with pytest.raises(CheckpointUnsupported, match=message):
            load(tmp_path / place)
