"""Drafts that others have published load exactly."""

from pathlib import Path

import pytest
import torch

from specexport.draft_models import (
    DraftTarget,
    Eagle1Draft,
    Eagle3Draft,
    MedusaConfig,
    MedusaHeads,
    load_eagle,
    load_medusa,
)
from specexport.draft_models.loading import cast_weights
from specexport.errors import CheckpointUnsupported
from tests.specexport.draft_models.draft_files import require_same, stored_in, write_files

SIZES = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
)  # fmt: skip


def test_own_embeddings_are_read_and_need_no_equal_width(
    eagle3: Eagle3Draft, target: DraftTarget, place: Path
) -> None:
    config, weights = stored_in(eagle3, place)
    table = torch.randn(272, 32).half()
    write_files(
        place, config | {"target_embeddings_sha256": "0" * 64}, weights | {"embed_tokens.weight": table}
    )
    loaded = load_eagle(place, "eagle3", target, "it")
    assert torch.equal(loaded.embed_tokens.weight, table.float())
    assert loaded.config.own_embeddings


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_specforge_loads(name: str, eagle3: Eagle3Draft, target: DraftTarget, place: Path) -> None:
    config, weights = stored_in(eagle3, place)
    published = {key: config[key] for key in SIZES} | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "draft_vocab_size": 100,
        "torch_dtype": "float16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True},
    }
    write_files(place, published, weights, name)
    loaded = load_eagle(place, "eagle3", target, "it")
    require_same(loaded, eagle3)
    assert loaded.config.layer_ids == (0, 1, 2)


def test_speculators_eagle3_loads(eagle3: Eagle3Draft, target: DraftTarget, place: Path) -> None:
    config, weights = stored_in(eagle3, place)
    renamed = {key.replace("midlayer.", "layers.0."): value for key, value in weights.items()}
    published = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 100,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "transformer_layer_config": {key: config[key] for key in SIZES}
        | {"model_type": "llama", "num_hidden_layers": 1},
    }
    write_files(place, published, renamed)
    loaded = load_eagle(place, "eagle3", target, "it")
    require_same(loaded, eagle3)
    features, ids = torch.randn(1, 3, 96), torch.randint(0, 259, (1, 3))
    eagle3.midlayer._norm_before_residual = True
    cast_weights(eagle3, torch.float16)
    cast_weights(eagle3, torch.float32)
    eagle3.embed_tokens.weight = loaded.embed_tokens.weight
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(features, ids, torch.arange(3)[None]), eagle3(features, ids, torch.arange(3)[None])
        )


def test_speculators_eagle_with_its_norms_loads(eagle: Eagle1Draft, target: DraftTarget, place: Path) -> None:
    config, weights = stored_in(eagle, place)
    renamed = {
        key.replace("layers.0.", "transformer.").replace("fc.", "fusion_fc."): value
        for key, value in weights.items()
    }
    norms = ("embedding_layernorm", "pre_lm_head_layernorm", "transformer.input_layernorm")
    renamed |= {f"{name}.weight": torch.full((32,), 2.0) for name in norms}
    published = {
        "speculators_model_type": "eagle",
        "layernorms": True,
        "fusion_bias": True,
        "transformer_layer_config": {key: config[key] for key in SIZES} | {"num_hidden_layers": 1},
    }
    write_files(place, published, renamed)
    loaded = load_eagle(place, "eagle", target, "it")
    assert isinstance(loaded, Eagle1Draft)
    for norm in (loaded.embedding_layernorm, loaded.pre_lm_head_layernorm, loaded.layers[0].input_layernorm):
        assert isinstance(norm, torch.nn.Module)
        assert torch.equal(norm.get_parameter("weight"), torch.full((32,), 2.0))
    write_files(place, published | {"layernorms": False}, renamed)
    with pytest.raises(CheckpointUnsupported, match=r"embedding_layernorm\.weight"):
        load_eagle(place, "eagle", target, "it")


@pytest.mark.parametrize("prefix", ["", "medusa_head.", "medusa_lm_head."])
@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
def test_published_medusa_heads_load(prefix: str, name: str, target: DraftTarget, place: Path) -> None:
    drawn = MedusaHeads(MedusaConfig(heads=2, layers=1, hidden_size=32, vocab_size=272))
    weights = {key.replace("medusa_head.", prefix): value.half() for key, value in drawn.state_dict().items()}
    assert f"{prefix}1.1.weight" in weights
    write_files(
        place,
        {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "x"},
        weights,
        name,
    )
    require_same(load_medusa(place, target, "it"), drawn)
