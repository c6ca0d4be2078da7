"""What differs between the kinds of draft that can be trained."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specexport.draft_models import DraftTarget, Eagle3Draft, load_eagle, load_medusa, save_draft
from specexport.draft_models.pruned import PartialHead, load_pruned, save_pruned
from specexport.errors import TrainingRefused
from specexport.training.eagle3 import Eagle3Task
from specexport.training.features import default_layer_ids
from specexport.training.medusa import MedusaTask, new_medusa
from specexport.training.objective import Task, Teacher
from specexport.training.small_model import SmallModelTask
from specexport.training.warm_start import change_vocabulary, new_eagle3, new_small_model

Kind = Literal["medusa", "eagle3", "model"]
KINDS: tuple[Kind, ...] = get_args(Kind)
DEFAULT_VOCABULARY = 8192
LEARNING_RATES: dict[Kind, float] = {"medusa": 1e-3, "eagle3": 8e-4, "model": 8e-4}


@dataclass(frozen=True)
class Shape:
    """`depth`: tokens in a row the draft learns to foretell. `layers`: of the target, for kind model only.

    `vocabulary`: how many ids it can say; None: those of the draft it starts from, else `DEFAULT_VOCABULARY`.
    """

    depth: int
    vocabulary: int | None = None
    layers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Training:
    """A draft to be trained: the task for the loop, and how to write what came of it."""

    task: Task
    save: Callable[[Path, dict[str, Any]], None]


def layer_ids(kind: Kind, target: DraftTarget) -> tuple[int, ...]:
    """The layers of the target whose input the kind learns from."""
    return default_layer_ids(target.layers) if kind == "eagle3" else ()


def new_training(
    kind: Kind, model: PreTrainedModel, target: DraftTarget, shape: Shape, ids: Tensor, start: Path | None
) -> Training:
    """A new draft of `shape` that says `ids`, or the one in `start`, trained further.

    That one says `ids` as well where `shape` asks for a vocabulary, and else what it said before.
    """
    keeps_ids = start is not None and shape.vocabulary is None
    if kind == "medusa":
        heads = load_medusa(start, target, str(start)) if start else new_medusa(target, shape.depth)
        _freeze_but(heads, lambda name: name.startswith("medusa_head"))
        task: Task = MedusaTask(heads, Teacher(target.head.weight, ids))
        return Training(task, lambda place, extra: save_draft(heads, place, extra=extra))
    if kind == "eagle3":
        found = load_eagle(start, "eagle3", target, str(start)) if start else None
        eagle = (
            found
            if isinstance(found, Eagle3Draft)
            else new_eagle3(model, target, layer_ids(kind, target), ids)
        )
        if not keeps_ids:
            change_vocabulary(eagle, target, ids)
        _freeze_but(eagle, lambda name: name != "embed_tokens.weight")
        task = Eagle3Task(eagle, Teacher(target.head.weight, eagle.target_ids), shape.depth)
        return Training(task, lambda place, extra: save_draft(eagle, place, extra=extra))
    small = load_pruned(start, target, str(start)) if start else None
    small = small or new_small_model(model, target, shape.layers or default_layers(target), ids)
    if not keeps_ids:
        small.lm_head = PartialHead(target.head, ids)
    _freeze_but(small, lambda name: not name.startswith(("lm_head.", "model.embed_tokens.")))
    task = SmallModelTask(small, Teacher(target.head.weight, small.lm_head.draft_ids), shape.depth)
    return Training(task, lambda place, extra: save_pruned(small, target, place, extra=extra))


def default_layers(target: DraftTarget) -> tuple[int, ...]:
    """The first two and the last: what reads the text and what writes it."""
    if target.layers < 3:
        raise TrainingRefused(
            f"--kind model: found a target of {target.layers} layers, expected at least 3 to prune; give --layers"
        )
    return (0, 1, target.layers - 1)


def _freeze_but(module: nn.Module, learned: Callable[[str], bool]) -> None:
    """Weights that are learned are kept in float32, whatever the target's type."""
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(learned(name))
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.float32)
