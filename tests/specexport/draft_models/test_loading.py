"""Published drafts load exactly, and whatever does not fit is refused with both sides named."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specexport.draft_models import (
    DraftTarget,
    Eagle3Draft,
    EagleDraft,
    MedusaConfig,
    MedusaHeads,
    embeddings_sha256,
    load_eagle,
    load_medusa,
    save_draft,
    writing,
)
from specexport.draft_models.loading import cast_weights
from specexport.draft_models.random_drafts import random_eagle
from specexport.errors import CheckpointUnsupported, SourceError

Weights = dict[str, Tensor]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty directory for a draft's files."""
    directory = tmp_path / "draft"
    directory.mkdir()
    return directory


def _stored(draft: Eagle3Draft | EagleDraft | MedusaHeads, directory: Path) -> tuple[dict[str, Any], Weights]:
    save_draft(draft, directory)
    config = json.loads((directory / "config.json").read_text())
    return config, load_file(directory / "model.safetensors")


def _write(
    directory: Path, config: dict[str, Any], weights: Weights, name: str = "model.safetensors"
) -> None:
    for path in directory.iterdir():
        path.unlink()
    (directory / "config.json").write_text(json.dumps(config))
    if name.endswith(".safetensors"):
        save_file(weights, directory / name)
    else:
        torch.save(weights, directory / name)


def _same(found: torch.nn.Module, expected: torch.nn.Module) -> None:
    """Equal weights, up to the fp16 they were stored in."""
    for key, tensor in expected.state_dict().items():
        rounded = tensor.half().to(tensor.dtype) if tensor.is_floating_point() else tensor
        kept = tensor if key.startswith(("embed_tokens", "lm_head")) else rounded
        value = found.state_dict()[key]
        assert torch.equal(value, rounded) or torch.equal(value, kept), key


def test_what_is_saved_loads(
    eagle3: Eagle3Draft, eagle: EagleDraft, heads: MedusaHeads, target: DraftTarget, place: Path
) -> None:
    for kind, draft in (("eagle3", eagle3), ("eagle", eagle), ("medusa", heads)):
        save_draft(draft, place / kind)
    _same(load_eagle(place / "eagle3", "eagle3", target, "it"), eagle3)
    _same(load_eagle(place / "eagle", "eagle", target, "it"), eagle)
    _same(load_medusa(place / "medusa", target, "it"), heads)


def test_saved_files_hold_only_what_the_target_has_not(
    eagle3: Eagle3Draft, eagle: EagleDraft, heads: MedusaHeads, place: Path
) -> None:
    expected_layer = {
        *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
        *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
        "post_attention_layernorm.weight",
    }
    _, weights = _stored(eagle3, place / "eagle3")
    layer = {*expected_layer, "input_layernorm.weight", "hidden_norm.weight"}
    assert weights.keys() == {
        "fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d", *(f"midlayer.{name}" for name in layer)
    }  # fmt: skip
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16, torch.int64, torch.bool}
    _, weights = _stored(eagle, place / "eagle")
    assert weights.keys() == {"fc.weight", "fc.bias", *(f"layers.0.{name}" for name in expected_layer)}
    _, weights = _stored(heads, place / "medusa")
    assert weights.keys() == {
        f"medusa_head.{head}.{block}.linear.{kind}"
        for head in range(3)
        for block in range(2)
        for kind in ("weight", "bias")
    }  # fmt: skip


def test_own_embeddings_are_read_and_need_no_equal_width(
    eagle3: Eagle3Draft, target: DraftTarget, place: Path
) -> None:
    config, weights = _stored(eagle3, place)
    table = torch.randn(272, 32).half()
    _write(place, config | {"target_embeddings_sha256": "0" * 64}, weights | {"embed_tokens.weight": table})
    loaded = load_eagle(place, "eagle3", target, "it")
    assert torch.equal(loaded.embed_tokens.weight, table.float())
    assert loaded.config.own_embeddings


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_specforge_loads(name: str, eagle3: Eagle3Draft, target: DraftTarget, place: Path) -> None:
    config, weights = _stored(eagle3, place)
    kept = (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
    )
    published = {key: config[key] for key in kept} | {
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
    _write(place, published, weights, name)
    loaded = load_eagle(place, "eagle3", target, "it")
    _same(loaded, eagle3)
    assert loaded.config.layer_ids == (0, 1, 2)


def test_speculators_eagle3_loads(eagle3: Eagle3Draft, target: DraftTarget, place: Path) -> None:
    config, weights = _stored(eagle3, place)
    renamed = {key.replace("midlayer.", "layers.0."): value for key, value in weights.items()}
    keys = (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
    )
    published = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 100,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "transformer_layer_config": {key: config[key] for key in keys}
        | {"model_type": "llama", "num_hidden_layers": 1},
    }
    _write(place, published, renamed)
    loaded = load_eagle(place, "eagle3", target, "it")
    _same(loaded, eagle3)
    features, ids = torch.randn(1, 3, 96), torch.randint(0, 259, (1, 3))
    eagle3.midlayer._norm_before_residual = True
    cast_weights(eagle3, torch.float16)
    cast_weights(eagle3, torch.float32)
    eagle3.embed_tokens.weight = loaded.embed_tokens.weight
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(features, ids, torch.arange(3)[None]), eagle3(features, ids, torch.arange(3)[None])
        )


def test_speculators_eagle_with_its_norms_loads(eagle: EagleDraft, target: DraftTarget, place: Path) -> None:
    config, weights = _stored(eagle, place)
    renamed = {
        key.replace("layers.0.", "transformer.").replace("fc.", "fusion_fc."): value
        for key, value in weights.items()
    }
    norms = ("embedding_layernorm", "pre_lm_head_layernorm", "transformer.input_layernorm")
    renamed |= {f"{name}.weight": torch.full((32,), 2.0) for name in norms}
    keys = (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
    )
    published = {
        "speculators_model_type": "eagle",
        "layernorms": True,
        "fusion_bias": True,
        "transformer_layer_config": {key: config[key] for key in keys} | {"num_hidden_layers": 1},
    }
    _write(place, published, renamed)
    loaded = load_eagle(place, "eagle", target, "it")
    assert isinstance(loaded, EagleDraft)
    for norm in (loaded.embedding_layernorm, loaded.pre_lm_head_layernorm, loaded.layers[0].input_layernorm):
        assert isinstance(norm, torch.nn.Module)
        assert torch.equal(norm.get_parameter("weight"), torch.full((32,), 2.0))
    _write(place, published | {"layernorms": False}, renamed)
    with pytest.raises(CheckpointUnsupported, match=r"embedding_layernorm\.weight"):
        load_eagle(place, "eagle", target, "it")


@pytest.mark.parametrize("prefix", ["", "medusa_head.", "medusa_lm_head."])
@pytest.mark.parametrize("name", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
def test_published_medusa_heads_load(prefix: str, name: str, target: DraftTarget, place: Path) -> None:
    drawn = MedusaHeads(MedusaConfig(heads=2, layers=1, hidden_size=32, vocab_size=272))
    weights = {key.replace("medusa_head.", prefix): value.half() for key, value in drawn.state_dict().items()}
    assert f"{prefix}1.1.weight" in weights
    _write(
        place,
        {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "x"},
        weights,
        name,
    )
    _same(load_medusa(place, target, "it"), drawn)


def _drop(key: str) -> Callable[[dict[str, Any], Weights], None]:
    return lambda config, weights: weights.__delitem__(key)


def _set(**keys: object) -> Callable[[dict[str, Any], Weights], None]:
    return lambda config, weights: config.update(keys)


def _put(key: str, tensor: Tensor) -> Callable[[dict[str, Any], Weights], None]:
    return lambda config, weights: weights.update({key: tensor})


REFUSED = {
    "missing weight": (_drop("fc.weight"), ["'fc.weight'", "missing"]),
    "missing d2t": (_drop("d2t"), ["'d2t'", "100", "272"]),
    "extra weight": (_put("midlayer.self_attn.q_norm.weight", torch.ones(16)), ["q_norm", "does not use"]),
    "misshaped": (_put("norm.weight", torch.ones(31)), ["norm.weight", "[31]", "[32]"]),
    "infinite": (_put("norm.weight", torch.full((32,), float("inf"))), ["norm.weight", "finite"]),
    "hidden size": (_set(target_hidden_size=64), ["target_hidden_size", "64", "32", "tiny"]),
    "own hidden size": (_set(hidden_size=64), ["hidden_size is 64", "expected 32", "tiny"]),
    "vocabulary": (_set(vocab_size=999), ["vocab_size is 999", "272", "tiny"]),
    "draft vocabulary": (_set(draft_vocab_size=300), ["draft_vocab_size is 300", "272"]),
    "two layers": (_set(num_hidden_layers=2), ["num_hidden_layers is 2", "expected 1"]),
    "layer ids": (_set(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 9]}), ["[0, 1, 9]", "0..2", "tiny"]),
    "two layer ids": (_set(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1]}), ["[0, 1]", "3 layer numbers"]),
    "no layer ids": (_set(eagle_config=None), ["eagle_aux_hidden_state_layer_ids", "[2, 1, -1]"]),
    "another layer": (_set(model_type="qwen3"), ["'qwen3'", "'llama'"]),
    "unsupported norm": (_set(fc_norm=True), ["fc_norm"]),
    "another target": (_set(target_embeddings_sha256="0" * 64), ["0" * 64, "hash to", "tiny"]),
    "d2t out of range": (_put("d2t", torch.full((100,), 250)), ["draft token 22", "272", "0..271"]),
    "d2t of ids": (_put("d2t", torch.arange(100).flip(0)), ["draft tokens 0 and 1", "99 and 99", "offsets"]),
    "d2t of floats": (_put("d2t", torch.zeros(100)), ["d2t", "float32"]),
    "t2d of another": (_put("t2d", torch.arange(272) < 100), ["t2d flags 100", "not the same"]),
    "speculators without layer": (_set(speculators_model_type="eagle3"), ["transformer_layer_config"]),
    "another kind": (_set(speculators_model_type="eagle"), ["'eagle'", "'eagle3'"]),
    "unknown activation": (_set(hidden_act="sile"), ["config.json", "'sile'"]),
    "unknown rotary scaling": (_set(rope_parameters={"rope_type": "far"}), ["config.json", "'far'"]),
    "no key heads": (_set(num_key_value_heads=0), ["config.json", "no Llama layer"]),
    "more than memory": (_set(intermediate_size=10**13), ["config.json", "no Llama layer"]),
    "flag in words": (_set(norm_output="false"), ["norm_output is 'false'", "true or false"]),
    "integer weights": (_put("norm.weight", torch.ones(32, dtype=torch.int8)), ["norm.weight", "int8", "float16"]),
    "float8 weights": (
        _put("norm.weight", torch.ones(32).to(torch.float8_e4m3fn)), ["norm.weight", "float8_e4m3fn", "float16"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_draft_that_does_not_fit_is_refused(
    case: str, eagle3: Eagle3Draft, target: DraftTarget, place: Path
) -> None:
    change, words = REFUSED[case]
    config, weights = _stored(eagle3, place)
    change(config, weights)
    _write(place, config, weights)
    with pytest.raises(CheckpointUnsupported) as caught:
        load_eagle(place, "eagle3", target, "it")
    message = str(caught.value)
    assert message.startswith("it: ") and "\n" not in message
    for word in words:
        assert word in message, message


def test_the_kind_must_be_the_files_kind(
    eagle3: Eagle3Draft, eagle: EagleDraft, heads: MedusaHeads, target: DraftTarget, place: Path
) -> None:
    save_draft(eagle3, place)
    with pytest.raises(CheckpointUnsupported, match=r"'eagle3'.*'eagle'"):
        load_eagle(place, "eagle", target, "it")
    with pytest.raises(CheckpointUnsupported, match=r"'eagle3'.*'medusa'"):
        load_medusa(place, target, "it")
    save_draft(eagle, place)
    with pytest.raises(CheckpointUnsupported, match=r"'eagle'.*'medusa'"):
        load_medusa(place, target, "it")
    save_draft(heads, place)
    with pytest.raises(CheckpointUnsupported, match=r"'medusa'.*'eagle3'"):
        load_eagle(place, "eagle3", target, "it")


def test_medusa_heads_of_another_target_are_refused(
    heads: MedusaHeads, target: DraftTarget, place: Path
) -> None:
    config, weights = _stored(heads, place)
    cases = [
        (config | {"hidden_size": 64}, weights, "64, expected 32"),
        (config | {"medusa_num_heads": 4}, weights, "medusa_head.3.0.linear.bias"),
        (config | {"medusa_num_heads": 2}, weights, "does not use"),
        (config | {"medusa_num_layers": 0}, weights, "medusa_num_layers is 0"),
        (config | {"medusa_num_heads": 10**9}, weights, "medusa_num_heads is 1000000000 .* 1 to 64"),
        (
            {key: value for key, value in config.items() if key != "hidden_size"},
            weights | {"medusa_head.0.0.linear.weight": torch.tensor(1.0)},
            r"is \[\], expected \[32, 32\]",
        ),
        (
            config,
            weights | {"medusa_head.0.2.weight": torch.zeros(100, 32)},
            "scores 100 tokens, expected 272",
        ),
    ]
    for stated, stored, words in cases:
        _write(place, stated, stored)
        with pytest.raises(CheckpointUnsupported, match=words):
            load_medusa(place, target, "it")


def test_files_that_cannot_be_read_are_named(target: DraftTarget, place: Path) -> None:
    with pytest.raises(SourceError, match=r"config\.json cannot be read"):
        load_eagle(place, "eagle3", target, "it")
    (place / "config.json").write_text("{}")
    with pytest.raises(SourceError, match="no weights of a draft"):
        load_eagle(place, "eagle3", target, "it")
    (place / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(CheckpointUnsupported, match=r"model\.safetensors cannot be read"):
        load_eagle(place, "eagle3", target, "it")
    (place / "config.json").write_text("[]")
    with pytest.raises(CheckpointUnsupported, match="expected keys and values"):
        load_eagle(place, "eagle3", target, "it")


class _Runs:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("ran"),))


def test_a_pickle_that_runs_code_is_refused(
    target: DraftTarget, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    (place / "config.json").write_text('{"medusa_num_heads": 1, "medusa_num_layers": 1}')
    torch.save({"0.0.linear.weight": _Runs()}, place / "medusa_lm_head.pt")
    with pytest.raises(CheckpointUnsupported, match="cannot be read"):
        load_medusa(place, target, "it")
    assert not (place / "ran").exists()


def test_shards_are_joined(eagle3: Eagle3Draft, target: DraftTarget, place: Path) -> None:
    _, weights = _stored(eagle3, place)
    (place / "model.safetensors").unlink()
    names = sorted(weights)
    shards = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(names)}
    for shard in set(shards.values()):
        save_file({name: weights[name] for name in names if shards[name] == shard}, place / shard)
    index = place / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    _same(load_eagle(place, "eagle3", target, "it"), eagle3)
    index.write_text(json.dumps({"weight_map": {"fc.weight": "../part-0.safetensors"}}))
    with pytest.raises(SourceError, match="part-0"):
        load_eagle(place, "eagle3", target, "it")


def test_the_hash_is_of_values_not_of_types(target: DraftTarget) -> None:
    table = target.embeddings.detach()
    assert embeddings_sha256(table.half()) == embeddings_sha256(table.half().float())
    assert embeddings_sha256(table.bfloat16()) == embeddings_sha256(table.bfloat16().float())
    changed = table.clone()
    changed[271, 31] += 1
    assert embeddings_sha256(changed) != embeddings_sha256(table)


def test_a_target_of_another_width_is_named(eagle3: Eagle3Draft, target: DraftTarget, place: Path) -> None:
    save_draft(eagle3, place)
    other = replace(target, name="wider", hidden_size=48)
    with pytest.raises(CheckpointUnsupported, match=r"target_hidden_size is 32, expected 48.*wider"):
        load_eagle(place, "eagle3", other, "it")


def test_a_random_draft_knows_no_more_tokens_than_its_target(target: DraftTarget) -> None:
    with pytest.raises(
        CheckpointUnsupported, match=r"draft_vocab_size: found 300, expected at most 259, .* tiny"
    ):
        random_eagle("eagle3", target, seed=1, draft_vocab_size=300)


def test_a_draft_that_cannot_be_written_whole_leaves_the_old_one(
    eagle3: Eagle3Draft, target: DraftTarget, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_draft(eagle3, place)
    before = {path.name: path.read_bytes() for path in place.iterdir()}

    def interrupted(weights: Weights, path: Path, **options: object) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_draft(random_eagle("eagle3", target, seed=2, draft_vocab_size=50), place)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before
