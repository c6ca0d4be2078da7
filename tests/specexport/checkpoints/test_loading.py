"""A checkpoint loads as it was saved, in silence, or is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specexport.checkpoints.loading import Checkpoint, load_checkpoint
from specexport.checkpoints.named import source_digest
from specexport.draft_kinds import ModelRecipe
from specexport.errors import CheckpointUnsupported, SourceError, TokenizerMismatch
from specexport.recipe.schema import Precision, Target
from tests.specexport.conftest import random_target


def noisy_draft(scale: float = 0.1, seed: int = 1) -> ModelRecipe:
    return ModelRecipe.model_validate(
        {"kind": "model", "source": {"noise_of_target": {"scale": scale, "seed": seed}}, "k": 2}
    )


def weights(checkpoint: Checkpoint) -> torch.Tensor:
    return torch.cat([p.detach().float().flatten() for p in checkpoint.model.parameters()])


def edit_config(directory: Path, **values: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_random_model_is_a_function_of_its_seed(cache: Path) -> None:
    state = torch.random.get_rng_state()
    first, same, other = (load_checkpoint(random_target(seed=s), "fp32") for s in (3, 3, 4))
    assert torch.equal(weights(first), weights(same))
    assert not torch.equal(weights(first), weights(other))
    assert (first.source_digest == same.source_digest, first.source_digest == other.source_digest) == (
        True,
        False,
    )
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's random stream moved"


def test_real_and_padded_vocabulary_are_told_apart(tiny: Checkpoint) -> None:
    assert (tiny.vocab_size, tiny.padded_vocab_size) == (259, 272)
    assert tiny.eos_token_ids == (256,)
    assert tiny.generation_config.eos_token_id == [256]


def test_a_vocabulary_too_small_for_bytes_has_no_tokenizer(cache: Path) -> None:
    small = load_checkpoint(random_target(vocab_size=64), "fp32")
    assert (small.tokenizer, small.vocab_size, small.padded_vocab_size, small.eos_token_ids) == (
        None,
        64,
        64,
        (),
    )


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)]
)
def test_weights_come_in_the_recipes_precision(
    cache: Path, saved: Path, precision: Precision, dtype: torch.dtype
) -> None:
    for spec in (random_target(), Target(source=str(saved))):
        model = load_checkpoint(spec, precision).model
        assert {p.dtype for p in model.parameters()} == {dtype}
        assert not model.training


def test_noise_changes_every_weight_matrix_by_its_scale(tiny: Checkpoint) -> None:
    before = weights(tiny)
    draft = load_checkpoint(noisy_draft(0.1), "fp32", target=tiny)
    for (name, own), copied in zip(tiny.model.named_parameters(), draft.model.parameters(), strict=True):
        if own.ndim == 2:
            ratio = ((copied - own).std() / own.std()).item()
            assert ratio == pytest.approx(0.1, rel=0.15), name
    assert torch.equal(before, weights(tiny)), "the target itself was changed"
    assert torch.equal(weights(draft), weights(load_checkpoint(noisy_draft(0.1), "fp32", target=tiny)))
    assert draft.source_digest != load_checkpoint(noisy_draft(0.2), "fp32", target=tiny).source_digest


def test_no_noise_is_the_target_itself(tiny: Checkpoint) -> None:
    assert torch.equal(weights(load_checkpoint(noisy_draft(0.0), "fp32", target=tiny)), weights(tiny))


def test_a_saved_model_loads_equal_and_in_silence(
    tiny: Checkpoint, saved: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    loaded = load_checkpoint(Target(source=str(saved)), "fp32")
    assert capfd.readouterr() == ("", "")
    assert torch.equal(weights(loaded), weights(tiny))
    assert (loaded.vocab_size, loaded.padded_vocab_size, loaded.eos_token_ids) == (259, 272, (256,))


def test_the_digest_needs_no_load_and_follows_content_not_place(saved: Path, tmp_path: Path) -> None:
    spec = Target(source=str(saved))
    digest = source_digest(spec)
    assert digest == load_checkpoint(spec, "fp32").source_digest
    moved = saved.rename(tmp_path / "moved")
    assert source_digest(Target(source=str(moved))) == digest
    assert source_digest(Target(source=str(moved), trust_remote_code=True)) != digest, "it runs other code"
    edit_config(moved, rope_theta=5.0)
    assert source_digest(Target(source=str(moved))) != digest


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
            "t5 is an encoder-decoder model",
        ),
        (
            {"architectures": ["LlamaForTokenClassification"]},
            "holds a LlamaForTokenClassification, expected a causal",
        ),
        ({"model_type": "vit", "architectures": None}, "vit is not a causal language model"),
        (
            {"model_type": "bert", "architectures": ["BertLMHeadModel"]},
            "bert: .* a token sees the text after it too; expected a causal mask",
        ),
        ({"is_causal": False}, "llama: .* a token sees the text after it too; expected a causal mask"),
        ({"model_type": "lama"}, "does not know this architecture: .*lama"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "weights are quantised with gptq"),
        ({"model_type": "llava", "architectures": None}, "llava reads more than text"),
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "c.Own"}},
            "its own Python code; .* trust_remote_code: true",
        ),
    ],
)
def test_what_is_no_plain_decoder_is_refused_by_name(
    saved: Path, values: dict[str, Any], message: str
) -> None:
    edit_config(saved, **values)
    with pytest.raises(CheckpointUnsupported, match=message) as caught:
        load_checkpoint(Target(source=str(saved)), "fp32")
    assert "\n" not in str(caught.value)


def test_what_the_config_says_is_refused_before_weights_are_read(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_config(saved, is_causal=False)
    monkeypatch.setattr(
        "specexport.checkpoints.loading._read_weights", lambda *args: pytest.fail("weights were read")
    )
    with pytest.raises(CheckpointUnsupported, match="sees the text after it"):
        load_checkpoint(Target(source=str(saved)), "fp32")


def test_weights_that_do_not_fit_the_model_are_refused_by_name(saved: Path) -> None:
    file = saved / "model.safetensors"
    good = load_file(file)
    name = "model.layers.1.mlp.up_proj.weight"
    for tensors, message in (
        (
            {k: v for k, v in good.items() if k != name},
            f"lacks weights that the model needs as llama: {name}",
        ),
        ({**good, "model.extra.weight": torch.zeros(2)}, "does not use as llama: model.extra.weight"),
        (
            {**good, name: torch.zeros(3, 32)},
            rf"another shape as llama: {name} is \[3, 32\], expected \[64, 32\]",
        ),
    ):
        save_file(tensors, file, metadata={"format": "pt"})
        with pytest.raises(CheckpointUnsupported, match=message):
            load_checkpoint(Target(source=str(saved)), "fp32")
    file.write_bytes(b"not safetensors")
    with pytest.raises(CheckpointUnsupported, match="its weights cannot be loaded as llama"):
        load_checkpoint(Target(source=str(saved)), "fp32")


def test_a_broken_tokenizer_or_config_is_refused(saved: Path) -> None:
    (saved / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointUnsupported, match="its tokenizer cannot be loaded"):
        load_checkpoint(Target(source=str(saved)), "fp32")
    (saved / "config.json").write_text("{")
    with pytest.raises(CheckpointUnsupported, match="its config cannot be read"):
        load_checkpoint(Target(source=str(saved)), "fp32")


@pytest.mark.parametrize(
    ("architecture", "sizes", "error", "message"),
    [
        ("lama", {}, SourceError, "expected a transformers model type; did you mean 'llama'"),
        ("llama", {"hiden_size": 3}, SourceError, "LlamaConfig has no such key; did you mean 'hidden_size'"),
        ("llama", {"num_attention_heads": 5}, SourceError, "LlamaConfig does not take them"),
        ("t5", {}, CheckpointUnsupported, "encoder-decoder"),
    ],
)
def test_a_random_model_that_cannot_be_made_is_refused(
    cache: Path, architecture: str, sizes: dict[str, int], error: type[Exception], message: str
) -> None:
    spec = Target.model_validate({"source": {"random": {"architecture": architecture, "sizes": sizes}}})
    with pytest.raises(error, match=message):
        load_checkpoint(spec, "fp32")


def test_a_size_under_the_architectures_own_name_counts(cache: Path) -> None:
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
    spec = Target.model_validate({"source": {"random": {"architecture": "gpt2", "sizes": sizes}}})
    assert load_checkpoint(spec, "fp32").config.max_position_embeddings == 64


def test_a_draft_with_a_longer_padded_tail_is_taken(tiny: Checkpoint) -> None:
    spec = random_target(vocab_size=300)
    draft = load_checkpoint(spec, "fp32", target=tiny)
    assert (draft.vocab_size, draft.padded_vocab_size) == (259, 300)


def test_a_draft_with_another_token_is_refused_naming_both(tiny: Checkpoint, saved: Path) -> None:
    text = (saved / "tokenizer.json").read_text()
    (saved / "tokenizer.json").write_text(text.replace("<|user|>", "<|human|>"))
    with pytest.raises(
        TokenizerMismatch, match=r"saved.*random llama.*token 257 is '<\|human\|>'.*'<\|user\|>'"
    ):
        load_checkpoint(Target(source=str(saved)), "fp32", target=tiny)


def test_a_draft_without_a_tokenizer_is_refused_where_the_target_has_one(tiny: Checkpoint) -> None:
    with pytest.raises(TokenizerMismatch, match=r"^draft .* has no tokenizer and target .* has one"):
        load_checkpoint(random_target(vocab_size=64), "fp32", target=tiny)


_PHI3_LONGROPE = {
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 2.5, 3.0, 3.5],
}


def test_a_phi3_with_the_old_name_of_longrope_is_that_phi3(cache: Path, tmp_path: Path) -> None:
    """transformers' class says that `su` is longrope, and then misses the original length it would have added."""
    from tests.specexport.gguf.gguf_files import model_of

    model = model_of("phi3", hidden_size=32, original_max_position_embeddings=32)
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    stated = {key: value for key, value in json.loads(path.read_text()).items() if key != "rope_parameters"}
    found = {}
    for name in ("su", "longrope"):
        path.write_text(json.dumps({**stated, "rope_scaling": {"type": name, **_PHI3_LONGROPE}}))
        found[name] = load_checkpoint(Target(source=str(tmp_path)), "fp32").model
    ids = torch.arange(24)[None]
    with torch.no_grad():
        assert torch.equal(found["su"](ids).logits, found["longrope"](ids).logits)
    parameters = found["su"].config.rope_parameters
    assert (parameters["rope_type"], parameters["original_max_position_embeddings"]) == ("longrope", 32)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        (
            {"type": "su", **_PHI3_LONGROPE},
            "rope_type in config.json is 'su', an old name of longrope, expected one",
        ),
        (
            {"rope_type": "llama_3", "factor": 2.0},
            "is 'llama_3', expected one of default, .*; did you mean 'llama3'",
        ),
        (
            {"type": "ntk", "factor": 2.0},
            "is 'ntk', expected one of default, linear, llama3, longrope, yarn; correct",
        ),
        (
            {"factor": 2.0},
            r"has a factor of 2\.0 and no rope_type, so it would be left out; name it: default, linear",
        ),
    ],
)
def test_rotary_scaling_by_an_unknown_name_is_refused_by_it(
    saved: Path, scaling: dict[str, Any], message: str
) -> None:
    path = saved / "config.json"
    stated = {key: value for key, value in json.loads(path.read_text()).items() if key != "rope_parameters"}
    path.write_text(json.dumps({**stated, "rope_scaling": scaling}))
    with pytest.raises(CheckpointUnsupported, match=message):
        load_checkpoint(Target(source=str(saved)), "fp32")
