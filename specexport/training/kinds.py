"""What differs between the kinds of draft that can be trained."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from specexport.draft_models import (
    DraftTarget,
    Eagle3Draft,
    MedusaHeads,
    TappedFeatures,
    default_layer_ids,
    load_eagle,
    load_medusa,
    save_draft,
)
from specexport.draft_models.pruned import PartialHead, PrunedForCausalLM, load_pruned, save_pruned
from specexport.errors import TrainingRefused
from specexport.training.answers import Dialogue
from specexport.training.objectives import Eagle3Task, MedusaTask, SmallModelTask, Task, Teacher, new_medusa
from specexport.training.warm_start import change_vocabulary, new_eagle3, new_small_model, require_layers

Kind = Literal["medusa", "eagle3", "model"]
KINDS: tuple[Kind, ...] = get_args(Kind)
DEFAULT_VOCABULARY = 8192
DEFAULT_DEPTH = 4
FEWEST_LAYERS = 6
"""The fewest layers of a target for EAGLE-3: with fewer, the published choice does not give three different layers."""
LEARNING_RATES: dict[Kind, float] = {"medusa": 1e-3, "eagle3": 8e-4, "model": 8e-4}


@dataclass(frozen=True)
class Shape:
    """`depth`: number of tokens the draft learns to predict; None: the heads that it starts from, else `DEFAULT_DEPTH`.

    `vocabulary`: how many ids it can say, or learns from where it can say all; None: those of the draft it starts from,
    else `DEFAULT_VOCABULARY`. `layers`: of the target, for kind model only.
    """

    depth: int | None = None
    vocabulary: int | None = None
    layers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Training:
    """A draft to be trained: the task for the loop, and how to write what came of it."""

    task: Task
    save: Callable[[Path, dict[str, Any]], None]


Started = MedusaHeads | Eagle3Draft | PrunedForCausalLM


def require_trainable(kind: Kind, config: PretrainedConfig, shape: Shape) -> None:
    """Raise `TrainingRefused` where no new draft of `shape` can be made for a target of `config`.

    For what the config alone decides, before the target's weights are read.
    """
    layers = int(config.num_hidden_layers)
    if kind == "model":
        require_layers(config, shape.layers or default_layers(layers))
    tapped_layers(kind, layers)


def load_start(kind: Kind, target: DraftTarget, shape: Shape, start: Path | None) -> Started | None:
    """Return the draft in `start`; None: a new one is trained.

    Raises `TrainingRefused` where `shape` does not fit it or the target, and what loading raises.
    """
    if start is None:
        return None
    if kind == "eagle3":
        eagle = load_eagle(start, "eagle3", target, str(start))
        assert isinstance(eagle, Eagle3Draft), "of the kind that was asked for"
        return eagle
    if kind == "model":
        return load_pruned(start, target, str(start))
    heads = load_medusa(start, target, str(start))
    if heads.config.own_head:
        raise TrainingRefused(
            f"--start: found heads with LM heads of their own in {start}, expected heads that share the target's; "
            "train new ones without --start"
        )
    if shape.depth not in (None, heads.config.heads):
        raise TrainingRefused(
            f"--depth: found {shape.depth}, expected {heads.config.heads}, the heads in {start}"
        )
    return heads


def tapped_layers(kind: Kind, layers: int, started: Started | None = None) -> TappedFeatures | None:
    """Which hidden states of a target of `layers` layers the kind learns from; None: the last one alone.

    Raises `TrainingRefused` where the target has too few layers.
    """
    if isinstance(started, Eagle3Draft):
        return started.config.tapped
    if kind != "eagle3":
        return None
    if layers < FEWEST_LAYERS:
        raise TrainingRefused(
            f"--kind eagle3: found a target of {layers} layers, expected at least {FEWEST_LAYERS} to tap three of "
            "them; train another kind"
        )
    return TappedFeatures(default_layer_ids(layers), "the published choice")


def new_training(
    kind: Kind,
    model: PreTrainedModel,
    target: DraftTarget,
    shape: Shape,
    ids: Tensor,
    started: Started | None,
    say: Callable[[str], None] = lambda text: None,
) -> Training:
    """Return a new draft of `shape` that says `ids`, or `started`, trained further.

    `started` says `ids` as well where `shape` asks for a vocabulary, and else what it said before. `say` gets what of
    the target a new draft cannot begin as.
    """
    keeps_ids = started is not None and shape.vocabulary is None
    depth = shape.depth or DEFAULT_DEPTH
    teacher = partial(Teacher, target.head.weight, bias=target.head.bias)
    if kind == "medusa":
        heads = started if isinstance(started, MedusaHeads) else new_medusa(target, depth)
        _freeze_but(heads, lambda name: name.startswith("medusa_head"))
        task: Task = MedusaTask(heads, teacher(ids), teacher(torch.arange(target.vocab_size)))
        return Training(task, lambda place, extra: save_draft(heads, place, extra=extra))
    if kind == "eagle3":
        eagle = (
            started
            if isinstance(started, Eagle3Draft)
            else new_eagle3(model, target, tapped_layers(kind, target.layers), ids, say)
        )
        if not keeps_ids:
            change_vocabulary(eagle, target, ids)
        _freeze_but(eagle, lambda name: name != "embed_tokens.weight")
        task = Eagle3Task(eagle, teacher(eagle.target_ids), depth)
        return Training(task, lambda place, extra: save_draft(eagle, place, extra=extra))
    layers = shape.layers or default_layers(target.layers)
    small = started if isinstance(started, PrunedForCausalLM) else new_small_model(model, target, layers, ids)
    if not keeps_ids:
        small.lm_head = PartialHead(target.head, ids)
    _freeze_but(small, lambda name: not name.startswith(("lm_head.", "model.embed_tokens.")))
    task = SmallModelTask(small, teacher(small.lm_head.draft_ids), depth)
    return Training(task, lambda place, extra: save_pruned(small, target, place, extra=extra))


def default_layers(layers: int) -> tuple[int, ...]:
    """Return the first two and the last: what reads the text and what writes it."""
    if layers < 3:
        raise TrainingRefused(
            f"--kind model: found a target of {layers} layers, expected at least 3 to prune; give --layers"
        )
    return (0, 1, layers - 1)


def _freeze_but(module: nn.Module, learned: Callable[[str], bool]) -> None:
    """Weights that are learned are kept in float32, whatever the target's type."""
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(learned(name))
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.float32)


def most_frequent(
    dialogues: list[Dialogue], size: int, *, always: tuple[int, ...], vocab_size: int, padded_vocab_size: int
) -> Tensor:
    """[size] int64 ascending: `always`, then by how often answers hold an id, prompts counting a quarter.

    Ids that nothing holds fill up from the lowest, which tokenizers give to what is frequent. Held-out dialogues do
    not count.
    """
    counts = torch.zeros(padded_vocab_size, dtype=torch.float64)
    for dialogue in dialogues:
        if not dialogue.held_out:
            for ids, weight in ((dialogue.answer_ids, 1.0), (dialogue.prompt_ids, 0.25)):
                counts += weight * torch.bincount(torch.tensor(ids), minlength=padded_vocab_size)
    counts[list(always)] = float("inf")
    counts[vocab_size:] = -1.0
    order = torch.sort(counts, descending=True, stable=True).indices
    return order[: min(size, vocab_size)].sort().values
