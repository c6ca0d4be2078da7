"""Whole training runs on a tiny target, by the call that `specexport train` makes."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from specexport.checkpoint import Checkpoint
from specexport.draft_models import Eagle3Draft, draft_target, load_eagle, load_medusa
from specexport.draft_models.pruned import load_pruned
from specexport.errors import TrainingRefused
from specexport.recipe import Recipe
from specexport.training import loop
from specexport.training.kinds import Kind, Shape
from specexport.training.loop import Progress
from specexport.training.prompts_file import append_prompts
from specexport.training.run import ANSWERS, Order, Reports, train_draft
from specexport.training.warm_start import change_vocabulary

Orders = Callable[[Kind], Order]
KINDS: tuple[Kind, ...] = ("medusa", "eagle3", "model")


def load(kind: Kind, directory: Path, checkpoint: Checkpoint) -> torch.nn.Module:
    target = draft_target(checkpoint.model, name="tiny", vocab_size=checkpoint.vocab_size)
    if kind == "medusa":
        return load_medusa(directory, target, "draft")
    if kind == "eagle3":
        return load_eagle(directory, "eagle3", target, "draft")
    return load_pruned(directory, target, "draft")


def weights(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / "model.safetensors")


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_learns_and_its_files_are_read_by_the_loader_of_its_kind(
    kind: Kind, recipe: Recipe, target: Checkpoint, order: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)
    losses: list[float] = []
    wanted = dataclasses.replace(order(kind), plan=dataclasses.replace(order(kind).plan, epochs=10))
    reports = Reports(step=lambda progress, done: losses.append(progress.loss))
    acceptance = train_draft(recipe, wanted, reports)
    assert losses[-1] < losses[0] - 0.05  # nats, of about 5 that are mostly the target's own entropy
    assert len(acceptance) == 3
    assert 1 >= acceptance[0] >= acceptance[-1] >= 0
    load(kind, wanted.out, target)
    card = (wanted.out / "README.md").read_text()
    assert f"{1 + sum(acceptance):.2f} tokens a round" in card


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_run_ends_with_the_weights_of_an_uninterrupted_one(
    kind: Kind, recipe: Recipe, order: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = order(kind)
    train_draft(recipe, whole, Reports())
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    parts = dataclasses.replace(
        whole, out=whole.out.with_name("parts"), work=whole.work.with_name("parts-work")
    )

    def interrupt(progress: Progress, done: float) -> None:
        if progress.step == 4:
            raise Interrupted

    with pytest.raises(Interrupted):
        train_draft(recipe, parts, Reports(step=interrupt))
    steps: list[int] = []
    train_draft(recipe, parts, Reports(step=lambda progress, done: steps.append(progress.step)))
    assert steps[0] == 4  # the step whose report interrupted had not been saved
    expected = weights(whole.out)
    for name, found in weights(parts.out).items():
        torch.testing.assert_close(found, expected[name], rtol=2e-2, atol=2e-3, msg=name)


def test_answers_and_features_are_made_once_for_all_kinds(
    recipe: Recipe, order: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_draft(recipe, order("medusa"), Reports())
    answers = (order("medusa").work / ANSWERS).read_bytes()
    told: list[tuple[int, int]] = []
    train_draft(recipe, order("model"), Reports(answers=lambda done, of: told.append((done, of))))
    assert told == [(80, 80)]
    assert (order("model").work / ANSWERS).read_bytes() == answers


def test_a_draft_is_trained_further_from_its_files(recipe: Recipe, order: Orders) -> None:
    first = order("eagle3")
    train_draft(recipe, first, Reports())
    further = dataclasses.replace(
        first, out=first.out.with_name("further"), start=first.out, shape=Shape(3), restart=True
    )
    train_draft(recipe, further, Reports())
    assert torch.equal(weights(further.out)["d2t"], weights(first.out)["d2t"])
    assert not torch.equal(weights(further.out)["fc.weight"], weights(first.out)["fc.weight"])


@pytest.mark.parametrize("kind", ["eagle3", "model"])
def test_a_draft_trained_further_can_change_its_vocabulary(
    kind: Kind, recipe: Recipe, target: Checkpoint, order: Orders
) -> None:
    first = order(kind)
    train_draft(recipe, first, Reports())
    further = dataclasses.replace(
        first, out=first.out.with_name("further"), start=first.out, shape=Shape(3, 200), restart=True
    )
    train_draft(recipe, further, Reports())
    load(kind, further.out, target)
    key = "d2t" if kind == "eagle3" else "draft_ids"
    assert len(weights(first.out)[key]) == 128
    assert len(weights(further.out)[key]) == 200


def test_the_rows_of_ids_that_stay_are_kept(recipe: Recipe, target: Checkpoint, order: Orders) -> None:
    train_draft(recipe, order("eagle3"), Reports())
    draft = load("eagle3", order("eagle3").out, target)
    assert isinstance(draft, Eagle3Draft)
    before = dict(zip(draft.target_ids.tolist(), draft.lm_head.weight.detach(), strict=True))
    ids = torch.arange(100, 250)
    change_vocabulary(draft, draft_target(target.model, name="tiny", vocab_size=target.vocab_size), ids)
    head = target.model.get_output_embeddings().weight
    assert torch.equal(draft.target_ids, ids)
    assert before.keys() & set(ids.tolist())
    for place, index in enumerate(ids.tolist()):
        assert torch.equal(draft.lm_head.weight[place], before.get(index, head[index]))


def test_minutes_end_a_run_before_its_epochs(
    recipe: Recipe, order: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr(loop, "monotonic", lambda: float(next(clock)))
    wanted = order("medusa")
    ends: list[float] = []
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)
    plan = dataclasses.replace(wanted.plan, epochs=1000, minutes=0.5)
    reports = Reports(step=lambda progress, done: ends.append(progress.seconds))
    train_draft(recipe, dataclasses.replace(wanted, plan=plan), reports)
    assert ends[-1] <= 30


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
