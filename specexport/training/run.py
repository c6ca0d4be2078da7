"""`specexport train`, from recipe and prompts to a draft on disk: the order of the work, and nothing else."""

import os
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from specexport.checkpoint import Checkpoint, load_checkpoint
from specexport.draft_models import DraftTarget, draft_target
from specexport.errors import TrainingRefused
from specexport.recipe import Recipe
from specexport.training.answers import answer_prompts
from specexport.training.dialogues import Dialogue
from specexport.training.features import FeatureStore, Setup, add_features
from specexport.training.kinds import DEFAULT_VOCABULARY, Kind, Shape, Training, layer_ids, new_training
from specexport.training.loop import Plan, Progress, evaluate, train
from specexport.training.model_card import Facts, write_card
from specexport.training.precision import fast_copy
from specexport.training.prompt_codec import PromptCodec
from specexport.training.prompts_file import read_prompts
from specexport.training.vocabulary import most_frequent

ANSWERS = "answers.jsonl"
_FEATURES, _WITH_TAPS = "features", "features-taps"
_LONGEST = 1024  # tokens of a dialogue; longer prompts are left out


@dataclass(frozen=True)
class Order:
    """What is wanted. `work` keeps answers and features for every kind, and this kind's checkpoint."""

    kind: Kind
    prompts: Path
    out: Path
    work: Path
    shape: Shape
    plan: Plan
    answer_tokens: int = 224
    start: Path | None = None
    restart: bool = False
    command: str = "specexport train"


@dataclass(frozen=True)
class Reports:
    """Called as work goes on: `stage` with what begins, `answers` with how many there are of how many, `step` by the
    loop."""

    stage: Callable[[str], None] = lambda text: None
    answers: Callable[[int, int], None] = lambda answered, asked: None
    step: Callable[[Progress, float], None] = lambda progress, done: None


def train_draft(recipe: Recipe, order: Order, reports: Reports) -> list[float]:
    """Writes the draft to `order.out`; -> by drafted token, the held-out share of chains accepted up to it.

    What an interrupted run has done is not done again. Raises `TrainingRefused`, or what loading a checkpoint raises.
    """
    prompts = read_prompts(order.prompts)
    reports.stage("loading the target into PyTorch")
    checkpoint = load_checkpoint(recipe.target, "fp32")
    target = draft_target(checkpoint.model, name=checkpoint.name, vocab_size=checkpoint.vocab_size)
    setup = Setup(checkpoint.source_digest, target.hidden_size, _tapped_layers(order, target))
    dialogues, store = _text_and_features(checkpoint, order, setup, prompts, reports)
    ids = most_frequent(
        dialogues,
        order.shape.vocabulary or DEFAULT_VOCABULARY,
        always=checkpoint.eos_token_ids,
        vocab_size=checkpoint.vocab_size,
        padded_vocab_size=target.padded_vocab_size,
    )
    torch.manual_seed(order.plan.seed)
    training = new_training(order.kind, checkpoint.model, target, order.shape, ids, order.start)
    place = order.work / order.kind
    if order.restart:
        shutil.rmtree(place, ignore_errors=True)
    reports.stage(f"training on {sum(not span.held_out for span in store.spans)} dialogues")
    progress = train(training.task, store, order.plan, place, reports.step)
    reports.stage("measuring acceptance on the held-out dialogues")
    held_out = [span for span in store.spans if span.held_out]
    acceptance = evaluate(training.task, store, held_out, order.plan.tokens_per_step)
    _write(order, training, target, dialogues, progress, acceptance)
    return acceptance


def _tapped_layers(order: Order, target: DraftTarget) -> tuple[int, ...]:
    """Those the kind needs, or those that are in the store already: it serves every kind."""
    kind: Kind = "eagle3" if (order.work / _WITH_TAPS).is_dir() else order.kind
    return layer_ids(kind, target)


def _text_and_features(
    checkpoint: Checkpoint, order: Order, setup: Setup, prompts: Sequence[str], reports: Reports
) -> tuple[list[Dialogue], FeatureStore]:
    codec = PromptCodec.of(checkpoint)
    encoded = [ids for ids in map(codec.encode, prompts) if len(ids) + order.answer_tokens <= _LONGEST]
    if not encoded:
        raise TrainingRefused(
            f"{order.prompts}: every prompt is longer than {_LONGEST - order.answer_tokens} tokens; give shorter ones"
        )
    if left_out := len(prompts) - len(encoded):
        reports.stage(f"left out {left_out} prompts of more than {_LONGEST - order.answer_tokens} tokens")
    order.work.mkdir(parents=True, exist_ok=True)
    model = fast_copy(checkpoint.model)
    reports.stage(f"answers to {len(encoded)} prompts")
    dialogues = answer_prompts(
        model,
        encoded,
        order.work / ANSWERS,
        end_ids=checkpoint.eos_token_ids,
        answer_tokens=order.answer_tokens,
        seed=order.plan.seed,
        progress=reports.answers,
    )
    if not any(dialogue.held_out for dialogue in dialogues):
        raise TrainingRefused(
            f"{order.prompts}: found {len(dialogues)} prompts, none of which is among the 1 in 40 held out to measure "
            "acceptance; give more prompts"
        )
    reports.stage(f"features of {sum(len(dialogue.ids) for dialogue in dialogues)} tokens")
    store = FeatureStore(order.work / (_WITH_TAPS if setup.layer_ids else _FEATURES), setup)
    add_features(store, model, dialogues)
    return dialogues, store


def _write(
    order: Order,
    training: Training,
    target: DraftTarget,
    dialogues: Sequence[Dialogue],
    progress: Progress,
    acceptance: list[float],
) -> None:
    training.save(order.out, {})
    write_card(
        order.out,
        Facts(
            kind=order.kind,
            target=target.name,
            command=order.command,
            prompts=order.prompts.name,
            dialogues=len(dialogues),
            answer_tokens=sum(len(dialogue.answer_ids) for dialogue in dialogues),
            held_out=sum(dialogue.held_out for dialogue in dialogues),
            tokens_trained=progress.tokens,
            minutes=progress.seconds / 60,
            machine=f"{torch.get_num_threads()} of {os.cpu_count()} cores ({platform.machine()})",
            parameters=sum(
                parameter.numel() for parameter in training.task.parameters() if parameter.requires_grad
            ),
            acceptance=acceptance,
        ),
    )
