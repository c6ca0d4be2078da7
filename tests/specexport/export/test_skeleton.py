"""What a config says without weights: the cache, the weights' size, the rotary factors, and every refusal of a mask."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from specexport.context import quiet
from specexport.errors import CheckpointUnsupported
from specexport.export import check_config, check_supported
from tests.specexport.export.architectures import EXPORTED, Architecture

BERT: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}


def config(model_type: str, **values: Any) -> PretrainedConfig:
    return AutoConfig.for_model(model_type, **values)


@pytest.mark.parametrize("architecture", [a for a in EXPORTED if a.asked_for], ids=lambda a: a.model_type)
def test_a_skeleton_is_the_model_without_its_numbers(architecture: Architecture) -> None:
    made = config(architecture.model_type, **architecture.sizes)
    with quiet():
        model = AutoModelForCausalLM.from_config(made, dtype=torch.float32).eval()
        found = check_config(made)
        layout = check_supported(model)
    assert found.untried is None
    assert found.layout == layout
    assert found.weight_elements == sum(parameter.numel() for parameter in model.parameters())
    assert found.head_rows == model.get_output_embeddings().weight.shape[0]


def test_a_skeleton_takes_no_memory_for_weights() -> None:
    """Four layers of Llama 3.1 405B, 17 billion parameters."""
    made = config(
        "llama",
        vocab_size=128256,
        hidden_size=16384,
        intermediate_size=53248,
        num_hidden_layers=4,
        num_attention_heads=128,
        num_key_value_heads=8,
    )
    with quiet():
        found = check_config(made)
    assert found.weight_elements > 10**10
    assert found.layout is not None and found.layout.shape(1, 100) == (8, 100, 128)


def test_the_flag_is_decoder_decides_nothing_for_a_model_that_does_not_read_it() -> None:
    made = config("gpt_neox", **BERT, rotary_pct=0.25)
    assert made.is_decoder is False
    with quiet():
        assert check_config(made).untried is None


@pytest.mark.parametrize("model_type", ["bert", "roberta", "electra", "xlm-roberta"])
def test_a_model_that_sees_later_tokens_is_refused_and_taken_as_a_decoder(model_type: str) -> None:
    with quiet(), pytest.raises(CheckpointUnsupported, match=f"^{model_type}: .*sees the text after it too"):
        check_config(config(model_type, **BERT))
    with quiet():
        check_config(config(model_type, **BERT, is_decoder=True))


def test_a_causal_model_told_to_look_both_ways_is_refused() -> None:
    sizes = next(a.sizes for a in EXPORTED if a.model_type == "llama")
    with quiet(), pytest.raises(CheckpointUnsupported, match="sees the text after it too"):
        check_config(config("llama", **sizes, is_causal=False))


def test_rotary_factors_that_change_with_the_length_are_refused() -> None:
    sizes = next(a.sizes for a in EXPORTED if a.model_type == "llama")
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 6.0}
    with quiet(), pytest.raises(CheckpointUnsupported, match="rotary scaling 'dynamic' changes its factors"):
        check_config(config("llama", **{**sizes, "rope_parameters": rope}))


def test_sizes_that_do_not_fit_together_are_refused() -> None:
    sizes = {**next(a.sizes for a in EXPORTED if a.model_type == "mixtral"), "num_experts_per_tok": 9}
    with quiet(), pytest.raises(CheckpointUnsupported, match=r"mixtral .*check the sizes in its config"):
        check_config(config("mixtral", **sizes))
