"""Whole training runs on a tiny target, by the call that `specexport train` makes."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from torch import Tensor

from specexport.checkpoints.loading import Checkpoint, load_checkpoint
from specexport.draft_models import (
    Eagle3Draft,
    TappedFeatures,
    draft_target,
    load_eagle,
    load_medusa,
    save_draft,
)
from specexport.draft_models.pruned import load_pruned
from specexport.draft_models.random_drafts import random_eagle
from specexport.recipe.schema import Recipe, load_recipe
from specexport.training import batching as batches
from specexport.training import loop
from specexport.training import target as precision
from specexport.training.answers import AnswerProgress
from specexport.training.batching import TrainingBatch
from specexport.training.features import stored_setup
from specexport.training.kinds import Kind, Shape, new_training
from specexport.training.loop import Progress, TrainingPlan
from specexport.training.objectives import Eagle3Task, MedusaTask, Teacher, TeacherRows, new_medusa
from specexport.training.pipeline import ANSWERS, Order, Reports, train_draft
from specexport.training.prompts_file import append_prompts
from specexport.training.warm_start import change_vocabulary, new_eagle3
from tests.scripted_clock import ScriptedClock
from tests.specexport.training.conftest import RECIPE

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
    told: list[AnswerProgress] = []
    train_draft(recipe, order("model"), Reports(answers=told.append))
    assert told == [AnswerProgress(80, 80)]
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


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("kind", ["medusa", "eagle3"])
def test_a_draft_learns_on_processors_with_and_without_fast_bfloat16(
    kind: Kind, fast: bool, recipe: Recipe, order: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (batches, loop, precision):
        monkeypatch.setattr(module, "fast_bfloat16", lambda: fast)
    wanted = order(kind)
    short = dataclasses.replace(wanted, plan=dataclasses.replace(wanted.plan, epochs=1))
    AcceleratorState._reset_state()  # accelerate has one precision per process
    try:
        assert all(0 <= share <= 1 for share in train_draft(recipe, short, Reports()))
    finally:
        AcceleratorState._reset_state()


def test_minutes_end_a_run_before_its_epochs(
    recipe: Recipe, order: Orders, monkeypatch: pytest.MonkeyPatch, ticking: ScriptedClock
) -> None:
    ticking.tick = 1.0
    wanted = order("medusa")
    ends: list[float] = []
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)
    plan = dataclasses.replace(wanted.plan, epochs=1000, minutes=0.5)
    reports = Reports(step=lambda progress, done: ends.append(progress.seconds))
    train_draft(recipe, dataclasses.replace(wanted, plan=plan), reports)
    assert ends[-1] <= 30


def test_other_prompts_in_the_same_place_are_what_is_trained_on(
    recipe: Recipe, order: Orders, tmp_path: Path
) -> None:
    first = order("medusa")
    train_draft(recipe, first, Reports())
    others = tmp_path / "others.jsonl"
    append_prompts(others, [f"another {n}" for n in range(60)])
    stages: list[str] = []
    second = dataclasses.replace(first, prompts=others, restart=True)
    train_draft(recipe, second, Reports(stage=stages.append))
    (told,) = (stage for stage in stages if stage.startswith("training on"))
    alone = dataclasses.replace(second, work=tmp_path / "alone-work", out=tmp_path / "alone")
    train_draft(recipe, alone, Reports(stage=stages.append))
    assert stages.count(told) == 2
    expected = weights(alone.out)
    for name, found in weights(second.out).items():
        torch.testing.assert_close(found, expected[name], rtol=2e-2, atol=2e-3, msg=name)


def test_a_checkpoint_is_found_where_its_run_ended_while_replacing_the_old_one(
    recipe: Recipe, order: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = order("medusa")
    train_draft(recipe, wanted, Reports())
    place = wanted.work / "medusa" / "checkpoint"
    place.rename(place.with_name("checkpoint.new"))
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)
    steps: list[int] = []
    train_draft(recipe, wanted, Reports(step=lambda progress, done: steps.append(progress.step)))
    assert steps == []  # nothing was left to do
    assert place.is_dir()


def test_a_draft_trained_further_reads_the_layers_it_was_made_for(
    recipe: Recipe, target: Checkpoint, order: Orders, tmp_path: Path
) -> None:
    side = draft_target(target.model, name="tiny", vocab_size=target.vocab_size)
    published = random_eagle("eagle3", side, seed=1, draft_vocab_size=128)
    published.config = dataclasses.replace(published.config, tapped=TappedFeatures((1, 4, 5), "made so"))
    save_draft(published, tmp_path / "published")
    further = dataclasses.replace(order("eagle3"), start=tmp_path / "published", shape=Shape(3))
    train_draft(recipe, further, Reports())
    setup = stored_setup(further.work / "features-taps")
    assert setup is not None
    assert setup.layer_ids == (1, 4, 5)
    drafted = load("eagle3", further.out, target)
    assert isinstance(drafted, Eagle3Draft)
    assert drafted.config.layer_ids == (1, 4, 5)


def test_a_step_takes_the_normed_state_where_the_draft_says_so(recipe: Recipe, target: Checkpoint) -> None:
    side = draft_target(target.model, name="tiny", vocab_size=target.vocab_size)
    made = torch.Generator().manual_seed(3)
    ids, taps = torch.randint(0, 255, (1, 12), generator=made), torch.randn(1, 12, 96, generator=made)
    final = torch.randn(1, 12, 32, generator=made)
    batch = TrainingBatch(ids, final, taps, torch.arange(12)[None] >= 1, 1, 12)
    reached = []
    for norm_output in (False, True):
        drawn = random_eagle("eagle3", side, seed=1, draft_vocab_size=128)
        assert isinstance(drawn, Eagle3Draft)
        drawn.config = dataclasses.replace(drawn.config, norm_output=norm_output)
        task = Eagle3Task(drawn, Teacher(side.head.weight, drawn.target_ids), 2)
        with torch.no_grad():
            reached.append(float(task(batch).loss))
            hidden = drawn.layer(
                drawn.project(taps[:, :10]), drawn.embed(ids[:, 1:11]), torch.arange(10)[None]
            )
            fed = drawn.fed_back(hidden)
        assert torch.equal(fed, drawn.norm(hidden) if norm_output else hidden)
    assert reached[0] != pytest.approx(reached[1], abs=1e-4)


OTHER_LAYERS = {  # sizes by the names that each has
    "gpt2": "n_embd: 32, n_layer: 6, n_head: 4, n_positions: 512, initializer_range: 0.2",
    "opt": "hidden_size: 32, word_embed_proj_dim: 32, ffn_dim: 64, num_hidden_layers: 6, num_attention_heads: 4, "
    "max_position_embeddings: 512, init_std: 0.2",
    "phi": "hidden_size: 32, intermediate_size: 64, num_hidden_layers: 6, num_attention_heads: 4, "
    "max_position_embeddings: 512, initializer_range: 0.2",
    "olmo2": "hidden_size: 32, intermediate_size: 64, num_hidden_layers: 6, num_attention_heads: 4, "
    "max_position_embeddings: 512, initializer_range: 0.2",
}


@pytest.mark.parametrize("architecture", OTHER_LAYERS)
def test_a_target_whose_layers_have_other_names_is_drafted_for(
    architecture: str, cache: Path, order: Orders, tmp_path: Path
) -> None:
    path = tmp_path / "other.yaml"
    begin, end = RECIPE.index("sizes: {"), RECIPE.index("}", RECIPE.index("sizes: {"))
    sizes = f"sizes: {{{OTHER_LAYERS[architecture]}, vocab_size: 272"
    path.write_text((RECIPE[:begin] + sizes + RECIPE[end:]).replace("llama", architecture))
    recipe = load_recipe(path)
    wanted = dataclasses.replace(order("eagle3"), plan=TrainingPlan(1, 512, 1e-3))
    assert len(train_draft(recipe, wanted, Reports())) == 3
    load("eagle3", wanted.out, load_checkpoint(recipe.target, "fp32"))


def test_a_draft_begins_with_what_the_targets_norms_multiply_with(
    cache: Path, recipe: Recipe, tmp_path: Path
) -> None:
    path = tmp_path / "gemma.yaml"
    path.write_text(RECIPE.replace("llama", "gemma3_text").replace("sizes: {", "sizes: {head_dim: 8, "))
    for given, more in ((recipe, 0.0), (load_recipe(path), 1.0)):
        checkpoint = load_checkpoint(given.target, "fp32")
        side = draft_target(checkpoint.model, name="tiny", vocab_size=checkpoint.vocab_size)
        norm = checkpoint.model.get_decoder().norm.weight
        with torch.no_grad():
            norm.copy_(torch.linspace(-0.5, 0.5, len(norm)))
        draft = new_eagle3(checkpoint.model, side, TappedFeatures((2, 3, 3), ""), torch.arange(64))
        torch.testing.assert_close(draft.norm.weight, norm + more)


def test_a_teacher_says_what_a_head_with_a_bias_says() -> None:
    made = torch.Generator().manual_seed(3)
    head = torch.nn.Linear(8, 50)
    final, ids = torch.randn(30, 8, generator=made), torch.arange(0, 50, 2)
    with torch.no_grad():
        head.bias.copy_(3 * torch.randn(50, generator=made))
        teacher = Teacher(head.weight, ids, head.bias)
        expected = head(final)[:, ids]
        torch.testing.assert_close(teacher.logits(final), expected)
        law = torch.softmax(expected, dim=-1)
        torch.testing.assert_close(teacher.probabilities(final).float(), law, rtol=2e-2, atol=2e-2)


def test_the_bias_of_a_targets_head_reaches_the_teacher(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "phi.yaml"
    path.write_text(RECIPE.replace("llama", "phi"))
    checkpoint = load_checkpoint(load_recipe(path).target, "fp32")
    side = draft_target(checkpoint.model, name="phi", vocab_size=checkpoint.vocab_size)
    assert side.head.bias is not None
    ids = torch.arange(0, 128, 2)
    made = new_training("medusa", checkpoint.model, side, Shape(2, 64), ids, None)
    assert isinstance(made.task, MedusaTask)
    assert made.task._teacher.bias is not None
    assert torch.equal(made.task._teacher.bias, side.head.bias[ids])


def test_a_short_run_is_measured_over_its_whole_depth(recipe: Recipe, order: Orders) -> None:
    plan = TrainingPlan(
        epochs=1, tokens_per_step=1 << 16, learning_rate=1e-3
    )  # one step, of the curriculum's first part
    acceptance = train_draft(recipe, dataclasses.replace(order("eagle3"), plan=plan), Reports())
    assert len(acceptance) == 3


def test_heads_are_measured_against_every_id_they_can_say(target: Checkpoint) -> None:
    side = draft_target(target.model, name="tiny", vocab_size=target.vocab_size)
    heads = new_medusa(side, 1)
    made = torch.Generator().manual_seed(2)
    final = torch.randn(1, 40, 32, generator=made)
    said = side.head(final)[..., :259].argmax(dim=-1)  # blocks of zeros say what the target's head says
    few = torch.tensor([index for index in range(259) if index not in set(said[0, ::2].tolist())])
    ids = torch.cat([torch.zeros(1, 2, dtype=torch.long), said[:, :-2]], dim=1)
    batch = TrainingBatch(ids, final, None, torch.ones(1, 40, dtype=torch.bool), 0, 40)
    head = side.head.weight
    task = MedusaTask(heads, Teacher(head, few), Teacher(head, torch.arange(259)))
    learning = task.train()(batch)
    judged = task.eval()(batch)
    assert judged.reached == judged.starts  # every id is predicted
    assert learning.reached[0] < learning.starts[0]  # the teacher of few ids does not know them all


def test_hits_do_not_depend_on_the_type_that_scores_have() -> None:
    made = torch.Generator().manual_seed(5)
    head = torch.randn(50, 8, generator=made).bfloat16().float()
    final = torch.randn(1, 30, 8, generator=made).bfloat16().float()
    scores = torch.randn(1, 29, 50, generator=made).bfloat16()
    ids = torch.cat([torch.zeros(1, 1, dtype=torch.long), scores.argmax(dim=-1)], dim=1)
    batch = TrainingBatch(ids, final, None, torch.ones(1, 30, dtype=torch.bool), 0, 30)
    teacher, wanted = Teacher(head, torch.arange(50)), torch.ones(1, 29, dtype=torch.bool)
    for dtype in (torch.bfloat16, torch.float32):
        given = scores[0].to(dtype)
        rows = TeacherRows(batch, teacher)
        _, hits = rows.score(lambda hidden, given=given: given.clone(), final[:, :29], wanted, 0)  # type: ignore[misc]
        assert hits.all(), dtype
