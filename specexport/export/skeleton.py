"""The model of a config without its weights: shapes and operations, no numbers.

Owns what a config alone says of a checkpoint: whether its attention fits a graph, its KV cache, the size of its
weights. Nothing here reads a weight or takes memory for one, so that a refusal comes before either. What depends on
values is left to the trace.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.pytorch_utils import Conv1D

from specexport.checkpoints.refusals import require_attention
from specexport.errors import CheckpointUnsupported, reason_of
from specexport.export.support import CacheLayout, check_supported, freeze_rope
from specexport.export.trace import run_window

_CAPACITY = 32
_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


@dataclass(frozen=True)
class Skeleton:
    """What a config says of its model. `layout` is None where finding it takes values, for the reason in `untried`.

    `weight_elements` counts each tensor once, however many places use it; `linear_elements` are those of the linear
    layers but the LM head, which has `head_elements`, also where they are the embedding table's. `linear_inputs` and
    `head_inputs` are the lengths of the rows that these layers read, each once.
    """

    model_type: str
    layout: CacheLayout | None
    rope: str | None
    weight_elements: int
    linear_elements: int
    head_elements: int
    head_rows: int
    linear_inputs: tuple[int, ...] = ()
    head_inputs: tuple[int, ...] = ()
    untried: str | None = None


def check_config(
    config: PretrainedConfig, *, capacity: int = _CAPACITY, trust_remote_code: bool = False
) -> Skeleton:
    """Return the model of `config`, tried in the form in which it will be traced, for a cache of `capacity` rows.

    Raises `CheckpointUnsupported` for what no graph can carry, with the words of the build that meets it later.
    """
    with weightless(config, trust_remote_code=trust_remote_code) as model:
        layout, rope, untried = None, None, None
        try:
            require_attention(model.config, type(model))
            rope = freeze_rope(model, capacity)  # first: a scaling that changes with the length reads values
            layout = check_supported(model)
            run_window(model, layout)
        except CheckpointUnsupported as refusal:
            if not isinstance(refusal.__context__, _VALUES):
                raise _named(config, refusal) from None
            untried = reason_of(refusal)
        except Exception as error:  # whatever a model's own code raises without values: the trace judges that
            untried = reason_of(error)
        return _described(model, layout, rope, untried)


def _named(config: PretrainedConfig, refusal: CheckpointUnsupported) -> CheckpointUnsupported:
    """Return the refusal as the trace words it: the hooks name no architecture, the checks before them do."""
    words = str(refusal)
    kind = config.model_type
    return refusal if words.startswith(kind) else CheckpointUnsupported(f"{kind}: {words}")


@contextmanager
def weightless(config: PretrainedConfig, *, trust_remote_code: bool = False) -> Iterator[PreTrainedModel]:
    """Yield the model of `config` in a block in which operations have shapes and no values.

    Raises `CheckpointUnsupported` for a config of which no model can be made.
    """
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        yield _make(config, trust_remote_code)


def _make(config: PretrainedConfig, trust_remote_code: bool) -> PreTrainedModel:
    try:
        with no_init_weights():
            made = AutoModelForCausalLM.from_config(deepcopy(config), trust_remote_code=trust_remote_code)
        model: PreTrainedModel = made.eval()
        model.tie_weights()
    except Exception as error:  # each architecture fails in its own way on sizes that do not fit together
        raise CheckpointUnsupported(
            f"{config.model_type}: no model can be made of its config: {reason_of(error)}; check its sizes"
        ) from None
    if model._can_set_experts_implementation():
        model.set_experts_implementation("batched_mm")  # as traced; others choose experts by value
    return model


def _described(
    model: PreTrainedModel, layout: CacheLayout | None, rope: str | None, untried: str | None
) -> Skeleton:
    head = model.get_output_embeddings()
    rows: torch.Tensor = (head if head is not None else model.get_input_embeddings()).weight  # type: ignore[assignment]
    linear = [m for m in model.modules() if isinstance(m, (torch.nn.Linear, Conv1D)) and m is not head]
    return Skeleton(
        model.config.model_type,
        layout,
        rope,
        sum(parameter.numel() for parameter in model.parameters()),
        sum(layer.weight.numel() for layer in linear),
        int(rows.numel()),
        int(rows.shape[0]),
        tuple(sorted({int(m.weight.shape[0 if isinstance(m, Conv1D) else 1]) for m in linear})),
        (int(rows.shape[1]),),
        untried,
    )
