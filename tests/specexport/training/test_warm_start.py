"""An EAGLE-3 draft begins as its target's last layer, its norms by what they multiply, or it is said why not."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specexport.draft_models import (
    DraftTarget,
    Eagle3Draft,
    TappedFeatures,
    draft_target,
    load_eagle,
    save_draft,
)
from specexport.export import find_residual_stream, watching
from specexport.training.batching import TrainingBatch
from specexport.training.objectives import Eagle3Task, Teacher
from specexport.training.warm_start import draft_layer, new_eagle3

SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 272, "max_position_embeddings": 512,
    "initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
PROBE = torch.randint(0, 272, (2, 20), generator=torch.Generator().manual_seed(5))


def model_of(architecture: str, *, norms: float = 0.5, **sizes: Any) -> PreTrainedModel:
    """Random weights whose norms differ from 1 and from each other, as trained ones do."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(architecture, **{**SIZES, **sizes})
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(norms * torch.rand_like(parameter))
    return model


def drafted(model: PreTrainedModel) -> tuple[Eagle3Draft, list[str]]:
    said: list[str] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        side = target_of(model)
        return new_eagle3(model, side, TappedFeatures((2, 3, 4), ""), torch.arange(272), said.append), said


def target_of(model: PreTrainedModel) -> DraftTarget:
    return draft_target(model, name="tiny", vocab_size=272)


def both_layers(model: PreTrainedModel, draft: Eagle3Draft) -> tuple[Tensor, Tensor]:
    """What the draft's layer and the target's last add to what enters the latter, with the embeddings unseen."""
    stream = find_residual_stream(model)
    assert not isinstance(stream, str)
    with watching(model, stream) as states, torch.no_grad():
        model(PROBE, use_cache=False)
    entering, leaving = states.entering[-1], states.leaving[-1]
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj"):
            draft.midlayer.self_attn.get_parameter(f"{name}.weight")[:, :32] = 0
        made = draft.layer(entering, draft.embed(PROBE), torch.arange(20)[None].expand(2, -1))
    return made - entering, leaving - entering


@pytest.mark.parametrize("architecture", ["llama", "mistral", "granite"])
def test_a_layer_of_the_same_form_computes_what_the_targets_does(architecture: str) -> None:
    model = model_of(architecture)
    draft, said = drafted(model)
    found, expected = both_layers(model, draft)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert said == []


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3_text", "qwen3"])
def test_norms_behind_a_part_or_on_heads_go_into_the_weights(architecture: str) -> None:
    model = model_of(architecture)
    draft, said = drafted(model)
    found, expected = both_layers(model, draft)
    assert float((found - expected).norm() / expected.norm()) < 0.4
    assert said == []


BEFORE_THE_MLP = {
    "gemma2": "pre_feedforward_layernorm",
    "gemma3_text": "pre_feedforward_layernorm",
    "glm4": "post_attention_layernorm",
    "cohere": None,  # a layer norm, which no RMS norm can be
    "qwen2": "post_attention_layernorm",
}


@pytest.mark.parametrize("architecture", BEFORE_THE_MLP)
def test_the_norm_before_the_mlp_is_the_one_whose_output_the_mlp_reads(architecture: str) -> None:
    model = model_of(architecture)
    draft, _ = drafted(model)
    name = BEFORE_THE_MLP[architecture]
    expected = torch.ones(32)
    if name is not None:
        layer = model.get_decoder().layers[-1]
        expected = getattr(layer, name)(torch.ones(1, 32))[0]
    torch.testing.assert_close(draft.midlayer.post_attention_layernorm.weight, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("architecture", ["olmo2", "olmo3", "exaone4"])
def test_a_layer_that_reads_what_no_norm_scales_is_left_out_and_said(architecture: str) -> None:
    draft, said = drafted(model_of(architecture))
    assert said == [
        "the draft's layer begins at random, not as the target's last: its attention and MLP read hidden states that "
        "no norm scales"
    ]
    assert torch.equal(draft.midlayer.post_attention_layernorm.weight, torch.ones(32))
    assert not torch.equal(draft.norm.weight, torch.ones(32)), "the final norm is the target's all the same"


def test_a_target_that_turns_part_of_a_head_gives_no_queries_and_keys() -> None:
    _, said = drafted(model_of("glm4"))
    assert said == [
        "queries and keys of the draft begin at random: the target turns 50% of a head by its position"
    ]


def test_the_first_loss_of_a_draft_for_gemma_3_is_better_than_chance() -> None:
    """The norm behind the attention multiplies with tens in trained ones: before the MLP it is worse than chance."""
    model = model_of("gemma3_text")
    layer = model.get_decoder().layers[-1]
    with torch.no_grad():
        layer.post_attention_layernorm.weight.fill_(40.0)
    draft, _ = drafted(model)
    right = first_loss(model, draft)
    with torch.no_grad():
        draft.midlayer.post_attention_layernorm.weight.fill_(41.0)
    assert right < math.log(272) < first_loss(model, draft)


def first_loss(model: PreTrainedModel, draft: Eagle3Draft) -> float:
    with torch.no_grad():
        states = model.get_decoder()(PROBE, use_cache=False, output_hidden_states=True).hidden_states
        taps = torch.cat([states[layer] for layer in draft.config.layer_ids], dim=-1)
        answer = torch.ones_like(PROBE, dtype=torch.bool)
        answer[:, 0] = False
        teacher = Teacher(target_of(model).head.weight, draft.target_ids)
        return float(
            Eagle3Task(draft, teacher, 1)(TrainingBatch(PROBE, states[-1], taps, answer, 1, 40)).loss
        )


def test_a_nested_table_of_rotary_frequencies_is_reduced_to_that_of_the_last_layer(tmp_path: Path) -> None:
    tables = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    for last, expected in (("sliding_attention", 1e4), ("full_attention", 1e6)):
        kinds = ["full_attention"] * 5 + [last]
        model = model_of("gemma3_text", rope_parameters=tables, layer_types=kinds)
        side = target_of(model)
        found = draft_layer(model, side).to_dict()["rope_parameters"]
        assert (found["rope_type"], found["rope_theta"]) == (tables[last]["rope_type"], expected)
        draft, _ = drafted(model)
        save_draft(draft, tmp_path / last)
        loaded = load_eagle(tmp_path / last, "eagle3", side, "it")
        torch.testing.assert_close(loaded.rotary_emb.inv_freq, draft.rotary_emb.inv_freq)
