"""A pruned draft: files and back, the whole vocabulary out of a part of it, what is refused, a bundle with one."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from specexport.checkpoints.loading import Checkpoint, load_checkpoint
from specexport.cli import main
from specexport.draft_kinds import ModelRecipe
from specexport.draft_models import DraftTarget, draft_target
from specexport.draft_models.pruned import UNSAID, PrunedForCausalLM, load_pruned, save_pruned
from specexport.errors import CheckpointUnsupported
from specexport.recipe.schema import Target, load_recipe
from specexport.training.warm_start import new_small_model
from tests.conftest import RECIPES
from tests.specexport.conftest import random_target

IDS = torch.tensor([*range(32, 127), 200, 256])


@pytest.fixture
def pruned(tiny: Checkpoint, target: DraftTarget) -> PrunedForCausalLM:
    draft = new_small_model(tiny.model, target, (1,), IDS)
    for parameter in draft.model.layers.parameters():  # as fp16 stores them
        parameter.data = parameter.data.half().float()
    return draft


@pytest.fixture
def directory(pruned: PrunedForCausalLM, target: DraftTarget, tmp_path: Path) -> Path:
    save_pruned(pruned, target, tmp_path / "pruned")
    return tmp_path / "pruned"


def test_what_was_written_is_read(pruned: PrunedForCausalLM, directory: Path, target: DraftTarget) -> None:
    ids = torch.randint(0, 255, (2, 9))
    read = load_pruned(directory, target, "draft")
    with torch.no_grad():
        torch.testing.assert_close(read(ids).logits, pruned(ids).logits, rtol=1e-3, atol=1e-3)
    stored = load_file(directory / "model.safetensors")
    assert not any("embed_tokens" in name or "lm_head" in name for name in stored)


def test_ids_outside_its_vocabulary_are_never_said(pruned: PrunedForCausalLM, target: DraftTarget) -> None:
    ids = torch.randint(0, 255, (1, 9))
    with torch.no_grad():
        logits = pruned(ids).logits
        hidden = pruned.model(ids).last_hidden_state
    assert logits.shape == (1, 9, target.padded_vocab_size)
    torch.testing.assert_close(logits[..., IDS], hidden @ target.head.weight[IDS].T)
    others = torch.ones(target.padded_vocab_size, dtype=torch.bool)
    others[IDS] = False
    assert bool((logits[..., others] == UNSAID).all())


def test_a_pruned_draft_is_a_checkpoint_with_its_targets_vocabulary(
    tiny: Checkpoint, directory: Path
) -> None:
    draft = load_checkpoint(ModelRecipe(kind="model", source=str(directory)), "fp32", target=tiny)
    assert (draft.vocab_size, draft.padded_vocab_size) == (tiny.vocab_size, tiny.padded_vocab_size)
    assert draft.tokenizer == tiny.tokenizer
    other = load_checkpoint(random_target(seed=1), "fp32")
    with pytest.raises(CheckpointUnsupported, match=r"embeddings_sha256 is .* hash to .*another target"):
        load_checkpoint(ModelRecipe(kind="model", source=str(directory)), "fp32", target=other)


def test_a_pruned_draft_is_no_target(directory: Path, cache: Path) -> None:
    with pytest.raises(CheckpointUnsupported, match=r"is a pruned draft.*name this one as the draft"):
        load_checkpoint(Target(source=str(directory)), "fp32")


def test_a_draft_of_another_size_is_refused(directory: Path) -> None:
    wide = load_checkpoint(random_target(hidden_size=64), "fp32")
    target = draft_target(wide.model, name="wide", vocab_size=wide.vocab_size)
    with pytest.raises(
        CheckpointUnsupported, match="hidden_size is 32, expected 64, that of the target wide"
    ):
        load_pruned(directory, target, "draft")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([3, 2, 5]), "draft_ids runs from 3 to 5, expected ascending ids"),
        (torch.tensor([3, 270]), r"draft_ids runs from 3 to 270, expected .* within 0\.\.258"),
        (None, "lacks draft_ids"),
    ],
)
def test_a_table_of_ids_that_is_none_is_refused(
    ids: torch.Tensor | None, message: str, directory: Path, target: DraftTarget
) -> None:
    stored = load_file(directory / "model.safetensors")
    stored.pop("draft_ids")
    save_file(stored | ({} if ids is None else {"draft_ids": ids}), directory / "model.safetensors")
    with pytest.raises(CheckpointUnsupported, match=message):
        load_pruned(directory, target, "draft")


def test_a_weight_too_many_or_too_few_is_refused(directory: Path, target: DraftTarget) -> None:
    stored = load_file(directory / "model.safetensors")
    norm = stored.pop("model.norm.weight")
    save_file(stored, directory / "model.safetensors")
    with pytest.raises(CheckpointUnsupported, match=r"'model\.norm\.weight' is missing"):
        load_pruned(directory, target, "draft")
    save_file(
        stored | {"model.norm.weight": norm, "lm_head.weight": norm.clone()}, directory / "model.safetensors"
    )
    with pytest.raises(CheckpointUnsupported, match=r"found the weight 'lm_head\.weight'"):
        load_pruned(directory, target, "draft")


def test_a_config_without_a_key_is_refused(directory: Path, target: DraftTarget) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text())
    del config["rms_norm_eps"]
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointUnsupported, match=r"config\.json lacks rms_norm_eps"):
        load_pruned(directory, target, "draft")


@pytest.mark.parametrize(
    ("key", "value"), [("hidden_act", "sile"), ("num_hidden_layers", "2"), ("head_dim", 0)]
)
def test_a_config_of_no_llama_layers_is_refused(
    key: str, value: object, directory: Path, target: DraftTarget
) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(CheckpointUnsupported, match=r"draft: its config\.json describes no Llama layer"):
        load_pruned(directory, target, "draft")


@pytest.mark.slow
def test_a_bundle_with_a_pruned_draft_decodes_as_plain(tmp_path: Path) -> None:
    text = (RECIPES / "tiny-random.yaml").read_text()
    source = (
        "  source:\n    noise_of_target:\n      scale: 0.05                  # in units of each weight's own"
    )
    head, _, tail = text.partition(source)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(head + "  source: ./pruned\n" + tail.partition("seed: 1\n")[2])
    (tmp_path / "pruned").mkdir()
    target = load_checkpoint(load_recipe(recipe).target, "fp32")
    fitted = draft_target(target.model, name="tiny", vocab_size=target.vocab_size)
    save_pruned(new_small_model(target.model, fitted, (0, 1), IDS), fitted, tmp_path / "pruned")
    bundle = tmp_path / "tiny.bundle"
    built = CliRunner().invoke(main, ["build", str(recipe), "-o", str(bundle)])
    assert built.exit_code == 0, built.output
    checked = CliRunner().invoke(main, ["check", str(bundle)])
    assert checked.exit_code == 0, checked.output
