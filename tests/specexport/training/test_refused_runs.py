"""What a training run cannot be made of is refused before it starts."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from specexport.checkpoints.loading import Checkpoint
from specexport.draft_models import (
    MedusaConfig,
    MedusaHeads,
    save_draft,
)
from specexport.errors import SourceError, TrainingRefused
from specexport.recipe.schema import Recipe, load_recipe
from specexport.training.kinds import Kind, Shape
from specexport.training.pipeline import Order, Reports, train_draft
from specexport.training.prompts_file import append_prompts
from tests.specexport.training.conftest import RECIPE

Orders = Callable[[Kind], Order]


def test_a_checkpoint_of_another_run_is_refused(recipe: Recipe, order: Orders) -> None:
    wanted = order("medusa")
    train_draft(recipe, wanted, Reports())
    other = dataclasses.replace(wanted, plan=dataclasses.replace(wanted.plan, epochs=4))
    with pytest.raises(TrainingRefused, match=r"'epochs': 3.*expected.*'epochs': 4.*--restart"):
        train_draft(recipe, other, Reports())
    train_draft(recipe, dataclasses.replace(other, restart=True), Reports())


def test_prompts_of_which_none_is_held_out_are_refused(recipe: Recipe, order: Orders, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    append_prompts(few, ["question 0"])
    with pytest.raises(TrainingRefused, match="found 1 prompts, none of which is among the 1 in 40"):
        train_draft(recipe, dataclasses.replace(order("medusa"), prompts=few), Reports())


def test_layers_the_target_lacks_are_refused(recipe: Recipe, order: Orders) -> None:
    wanted = dataclasses.replace(order("model"), shape=Shape(3, 128, layers=(0, 9)))
    with pytest.raises(
        TrainingRefused, match=r"--layers: found 0,9, expected ascending layers within 0\.\.5"
    ):
        train_draft(recipe, wanted, Reports())


@pytest.mark.parametrize(
    ("kind", "shape"), [("medusa", Shape(2, 128)), ("model", Shape(3, 128, (0, 5))), ("eagle3", Shape(3, 64))]
)
def test_a_checkpoint_of_another_shape_is_refused(
    kind: Kind, shape: Shape, recipe: Recipe, order: Orders
) -> None:
    train_draft(recipe, order(kind), Reports())
    with pytest.raises(
        TrainingRefused, match="give the same options and prompts to continue it, or --restart"
    ):
        train_draft(recipe, dataclasses.replace(order(kind), shape=shape), Reports())


def test_what_does_not_fit_the_draft_it_starts_from_is_refused_before_any_answer(
    recipe: Recipe, target: Checkpoint, order: Orders, tmp_path: Path
) -> None:
    first = order("medusa")
    train_draft(recipe, first, Reports())
    again = dataclasses.replace(first, start=first.out, work=tmp_path / "again")
    with pytest.raises(TrainingRefused, match=r"--depth: found 5, expected 3, the heads in .*medusa"):
        train_draft(recipe, dataclasses.replace(again, shape=Shape(5)), Reports())
    own = MedusaHeads(MedusaConfig(heads=2, layers=1, hidden_size=32, vocab_size=272, own_head=True))
    save_draft(own, tmp_path / "own")
    with pytest.raises(
        TrainingRefused, match=r"LM heads of their own .* expected heads that share the target's"
    ):
        train_draft(recipe, dataclasses.replace(again, start=tmp_path / "own", shape=Shape()), Reports())
    with pytest.raises(SourceError, match=r"config\.json cannot be read"):
        train_draft(recipe, dataclasses.replace(again, start=tmp_path / "none"), Reports())
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingRefused, match=r"--out: .*file is a file, expected a directory"):
        train_draft(recipe, dataclasses.replace(again, out=tmp_path / "file"), Reports())
    assert not (tmp_path / "again").exists()


def test_answers_of_another_target_are_refused(recipe: Recipe, order: Orders, tmp_path: Path) -> None:
    train_draft(recipe, order("medusa"), Reports())
    path = tmp_path / "other.yaml"
    path.write_text(RECIPE.replace("num_hidden_layers: 6", "num_hidden_layers: 7"))
    with pytest.raises(TrainingRefused, match=r"holds answers of another target .*choose another --work"):
        train_draft(load_recipe(path), order("eagle3"), Reports())


def test_answers_that_leave_no_room_for_a_prompt_are_refused(recipe: Recipe, order: Orders) -> None:
    with pytest.raises(TrainingRefused, match="--answer-tokens: found 512, expected less than 512"):
        train_draft(recipe, dataclasses.replace(order("medusa"), answer_tokens=512), Reports())


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        ("gemma2", "final_logit_softcapping: 3.0, head_dim: 8, query_pre_attn_scalar: 8"),
        ("granite", "logits_scaling: 2.0"),
        ("cohere", "logit_scale: 0.3"),
    ],
)
@pytest.mark.parametrize("kind", ["medusa", "eagle3"])
def test_a_target_that_changes_what_its_head_says_is_refused(
    architecture: str, sizes: str, kind: Kind, cache: Path, order: Orders, tmp_path: Path
) -> None:
    path = tmp_path / "other.yaml"
    changed = RECIPE.replace("llama", architecture).replace("sizes: {", f"sizes: {{{sizes}, ")
    path.write_text(changed)
    with pytest.raises(TrainingRefused, match=rf"target \({architecture}\) that scales or caps its logits"):
        train_draft(load_recipe(path), order(kind), Reports())
    assert not order(kind).work.exists(), "before the hours that answers may take"
