"""`specexport train`, from recipe and prompts to a draft on disk: the order of the work, and nothing else."""

import os
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import PretrainedConfig

from specexport.checkpoints.loading import Checkpoint, known_config, known_tokenizer, load_checkpoint
from specexport.draft_models import DraftTarget, draft_target
from specexport.draft_models.files import CONFIG_NAME, WEIGHTS_NAME
from specexport.errors import TrainingRefused
from specexport.recipe.schema import Recipe
from specexport.training.answers import AnswerProgress, Dialogue, answer_prompts, is_held_out
from specexport.training.decoding import require_decodable
from specexport.training.features import FeatureStore, Setup, Span, add_features, stored_setup
from specexport.training.kinds import (
    DEFAULT_VOCABULARY,
    Kind,
    Shape,
    Started,
    Training,
    load_start,
    most_frequent,
    new_training,
    require_trainable,
    tapped_layers,
)
from specexport.training.loop import Progress, TrainingPlan, evaluate, train
from specexport.training.prompt_codec import PromptCodec
from specexport.training.prompts_file import Conversation, read_training_text
from specexport.training.target import fast_copy, require_plain_logits

CARD_NAME = "README.md"


@dataclass(frozen=True)
class Facts:
    """The results of one training run. `acceptance`: by drafted token, the share of chains accepted up to it."""

    kind: str
    target: str
    command: str
    prompts: str
    dialogues: int
    answer_tokens: int
    held_out: int
    tokens_trained: int
    minutes: float
    machine: str
    parameters: int
    acceptance: Sequence[float]

    @property
    def accepted_length(self) -> float:
        """Mean tokens of a round that drafts as many in a chain: those accepted, and the target's own."""
        return 1 + sum(self.acceptance)


def write_card(directory: Path, facts: Facts) -> None:
    size = (directory / WEIGHTS_NAME).stat().st_size / 1e6
    shares = "".join(f"| {place} | {share:.3f} |\n" for place, share in enumerate(facts.acceptance, 1))
    text = f"""# {directory.name}

A draft of kind `{facts.kind}` for {facts.target}: {facts.parameters / 1e6:.1f} million weights of its own,
`{WEIGHTS_NAME}` ({size:.1f} MB, fp16) and `{CONFIG_NAME}`.

- **Data**: {facts.dialogues} prompts ({facts.prompts}) and the target's own answers to them, {facts.answer_tokens}
  tokens; {facts.held_out} of the dialogues were held out.
- **Command**: `{facts.command}`
- **Training**: {facts.tokens_trained} tokens in {facts.minutes:.0f} minutes on {facts.machine}.
- **Licence**: that of the target and of the prompts.

Acceptance on the held-out dialogues, greedy, a chain of {len(facts.acceptance)} drafted tokens, counted in PyTorch
on the target's own answers: {facts.accepted_length:.2f} tokens a round.

| drafted token | accepted up to it |
|---|---|
{shares}"""
    (directory / CARD_NAME).write_text(text, encoding="utf-8")


ANSWERS = "answers.jsonl"
_TARGET = "target.txt"
_FEATURES, _WITH_TAPS = "features", "features-taps"
_Text = tuple[Sequence[str], Sequence[Conversation]]
_LONGEST = 1024  # tokens of a dialogue; longer prompts are left out


@dataclass(frozen=True)
class Order:
    """What is wanted. `work` keeps answers and features for every kind, and this kind's checkpoint."""

    kind: Kind
    prompts: Path
    out: Path
    work: Path
    shape: Shape
    plan: TrainingPlan
    answer_tokens: int = 224
    start: Path | None = None
    restart: bool = False
    command: str = "specexport train"


@dataclass(frozen=True)
class Reports:
    """Called as work goes on: `stage` with what begins, `answers` by the decoder of answers, `step` by the
    loop."""

    stage: Callable[[str], None] = lambda text: None
    answers: Callable[[AnswerProgress], None] = lambda progress: None
    step: Callable[[Progress, float], None] = lambda progress, done: None


def train_draft(recipe: Recipe, order: Order, reports: Reports) -> list[float]:
    """Write the draft to `order.out`; -> by drafted token, the held-out share of chains accepted up to it.

    What an interrupted run has done is not done again. Raises `TrainingRefused`, or what loading a checkpoint raises.
    """
    text = read_training_text(order.prompts)
    if order.out.exists() and not order.out.is_dir():
        raise TrainingRefused(f"--out: {order.out} is a file, expected a directory or a new name")
    _require_trainable(recipe, order, text, reports)
    reports.stage("loading the target into PyTorch")
    checkpoint = load_checkpoint(recipe.target, "fp32")
    target = draft_target(checkpoint.model, name=checkpoint.name, vocab_size=checkpoint.vocab_size)
    # What does not fit is refused before the hours that answers may take.
    require_plain_logits(checkpoint.model)
    started = load_start(order.kind, target, order.shape, order.start)
    setup = Setup(checkpoint.source_digest, target.hidden_size, _tapped_layers(order, target, started))
    dialogues, store, spans = _text_and_features(checkpoint, order, setup, text, reports)
    ids = most_frequent(
        dialogues,
        order.shape.vocabulary or DEFAULT_VOCABULARY,
        always=checkpoint.eos_token_ids,
        vocab_size=checkpoint.vocab_size,
        padded_vocab_size=target.padded_vocab_size,
    )
    torch.manual_seed(order.plan.seed)
    training = new_training(order.kind, checkpoint.model, target, order.shape, ids, started, reports.stage)
    place = order.work / order.kind
    if order.restart:
        shutil.rmtree(place, ignore_errors=True)
    reports.stage(f"training on {sum(not span.held_out for span in spans)} dialogues")
    progress = train(training.task, store, spans, _plan(order), place, reports.step)
    reports.stage("measuring acceptance on the held-out dialogues")
    held_out = [span for span in spans if span.held_out]
    # Answers that were given are not known to be the target's greedy ones; where there are no others they must do.
    greedy = [span for span in held_out if span.greedy]
    acceptance = evaluate(training.task, store, greedy or held_out)
    _write(order, training, target, dialogues, progress, acceptance)
    return acceptance


def _require_trainable(recipe: Recipe, order: Order, text: _Text, reports: Reports) -> None:
    """Raise `TrainingRefused` for what the target's config and tokenizer decide, before its weights are read."""
    config = known_config(recipe.target)
    if config is None:
        return
    if order.start is None:
        require_trainable(order.kind, config, order.shape)
    codec = PromptCodec.open(recipe.name, known_tokenizer(recipe.target))
    _encode(codec, config, order, text, end_ids=())
    # A cap on the logits is refused with its own cure, once the weights show it.
    if text[0] and not getattr(config, "final_logit_softcapping", None):
        untried = require_decodable(config, trust_remote_code=recipe.target.trust_remote_code)
        if untried is not None:
            reports.stage(f"the target's attention was not tried before its weights are read: {untried}")


def _plan(order: Order) -> TrainingPlan:
    """With what a checkpoint must have been trained from to be continued."""
    shape = order.shape
    start = None if order.start is None else str(order.start.resolve())
    layers = None if shape.layers is None else list(shape.layers)
    draft = {"start": start, "depth": shape.depth, "vocabulary": shape.vocabulary, "layers": layers}
    return replace(order.plan, draft=draft)


def _tapped_layers(order: Order, target: DraftTarget, started: Started | None) -> tuple[int, ...]:
    """Those the draft reads, or those that are in the store already: it serves every kind."""
    if order.kind != "eagle3" and (setup := stored_setup(order.work / _WITH_TAPS)) is not None:
        return setup.layer_ids
    tapped = tapped_layers(order.kind, target.layers, started)
    return tapped.entering if tapped is not None else ()


def _text_and_features(
    checkpoint: Checkpoint,
    order: Order,
    setup: Setup,
    text: _Text,
    reports: Reports,
) -> tuple[list[Dialogue], FeatureStore, list[Span]]:
    ends = checkpoint.eos_token_ids
    config = checkpoint.model.config
    encoded, given = _encode(PromptCodec.of(checkpoint), config, order, text, end_ids=ends)
    if left_out := sum(map(len, text)) - len(encoded) - len(given):
        reports.stage(f"left out {left_out} prompts of more than {_longest_prompt(config, order)} tokens")
    order.work.mkdir(parents=True, exist_ok=True)
    _claim_answers(order.work, setup.target)
    model = fast_copy(checkpoint.model)
    dialogues = given
    if encoded:
        reports.stage(f"answers to {len(encoded)} prompts")
        dialogues = given + answer_prompts(
            model,
            encoded,
            order.work / ANSWERS,
            end_ids=ends,
            answer_tokens=order.answer_tokens,
            seed=order.plan.seed,
            progress=reports.answers,
        )
    reports.stage(f"features of {sum(len(dialogue.ids) for dialogue in dialogues)} tokens")
    store = FeatureStore(order.work / (_WITH_TAPS if setup.layer_ids else _FEATURES), setup)
    return dialogues, store, add_features(store, model, dialogues)


def _encode(
    codec: PromptCodec, config: PretrainedConfig, order: Order, text: _Text, *, end_ids: Sequence[int]
) -> tuple[list[tuple[int, ...]], list[Dialogue]]:
    """Ids of the prompts and the conversations as dialogues, without those too long to leave room for an answer.

    Raises `TrainingRefused` for a conversation that has no form in ids, and for text of which nothing can be used.
    """
    longest = _longest_prompt(config, order)
    prompts, conversations = text
    encoded = [ids for ids in map(codec.encode, prompts) if len(ids) <= longest]
    given = [
        Dialogue(prompt, answer[: order.answer_tokens], greedy=False)
        for prompt, answer in (codec.encode_answered(found, end_ids) for found in conversations)
        if len(prompt) <= longest
    ]
    kept = [*encoded, *(dialogue.prompt_ids for dialogue in given)]
    if not kept:
        raise TrainingRefused(
            f"{order.prompts}: every prompt is longer than {longest} tokens; give shorter ones"
        )
    if not any(is_held_out(ids) for ids in kept):
        raise TrainingRefused(
            f"{order.prompts}: found {len(kept)} prompts, none of which is among the 1 in 40 held out to measure "
            "acceptance; give more prompts"
        )
    return encoded, given


def _longest_prompt(config: PretrainedConfig, order: Order) -> int:
    """Tokens of a prompt that leave room for the answer."""
    positions = int(getattr(config, "max_position_embeddings", 0) or _LONGEST)
    longest = min(positions, _LONGEST) - order.answer_tokens
    if longest < 1:
        raise TrainingRefused(
            f"--answer-tokens: found {order.answer_tokens}, expected less than {min(positions, _LONGEST)}, the most "
            "tokens of a dialogue"
        )
    return longest


def _claim_answers(work: Path, target: str) -> None:
    """Raise `TrainingRefused` where the answers in `work` are another target's; `target` is its source digest."""
    path = work / _TARGET
    if not path.is_file():
        path.write_text(target)
    elif (found := path.read_text()) != target:
        raise TrainingRefused(
            f"{work}: holds answers of another target ({found[:12]}), expected {target[:12]}; choose another --work "
            "directory"
        )


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
