"""Traces a decoder into the canonical ONNX graph: window in, logits, hidden states and the same KV memory out.

Owns the names and symbolic shapes of the canonical graph, and the only call of the tracer, with what it needs around
it. Knows nothing of backends: passes derive their variants.
"""

import gc
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import onnx_ir as ir
import torch
from onnxscript.rewriter.pattern import PatternMatcher
from torch import Tensor, nn
from transformers import PreTrainedModel

from specexport.context import without_collection
from specexport.errors import CheckpointUnsupported, shorten_reason
from specexport.export.adapter import ScatterCache, WindowInputs, adapted, window_inputs
from specexport.export.support import (
    CacheLayout,
    ResidualStream,
    find_residual_stream,
    hidden_names,
    watching,
)

_EXAMPLE_BATCH, _EXAMPLE_WIDTH, _EXAMPLE_ROWS = 2, 5, 3
_NO_OPERATOR = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)'")
_CALL = re.compile(
    r"The following call raised this error:\s+File \"([^\"]+)\", line (\d+), in (\S+)\s+(\S[^\n]*)"
)
OPSET = 24
_SEEN: WeakSet[PatternMatcher] = WeakSet()


@dataclass(frozen=True)
class TracedGraph:
    """A canonical graph and what its shapes mean.

    `stream` is the reason where the layers of the model could not be identified: the graph has no `hidden.*` outputs
    then.
    """

    model: ir.Model
    layout: CacheLayout
    capacity: int
    vocab_size: int
    padded_vocab_size: int
    stream: ResidualStream | str


class WindowForward(nn.Module):
    """The signature of the canonical graph (one flat list of KV tensors: key.0, value.0, key.1, ...)."""

    def __init__(
        self, model: PreTrainedModel, stream: ResidualStream | None, capacity: int, vocab_size: int
    ) -> None:
        super().__init__()
        self.model = model
        self._stream = stream
        self._capacity = capacity
        self._vocab_size = vocab_size

    def forward(
        self,
        input_ids: Tensor,  # [B, W]
        position_ids: Tensor,  # [B, W]
        cache_length: Tensor,  # [B]
        window_mask: Tensor,  # [B, W, W]
        logits_rows: Tensor,  # [B, R]
        past: list[Tensor],  # 2 x layers of [B, kv_heads, capacity, head_dim]
    ) -> tuple[Tensor, ...]:
        cache = ScatterCache(past[0::2], past[1::2], cache_length)
        inputs = WindowInputs(position_ids, cache_length, window_mask, logits_rows, self._capacity)
        watched = watching(self.model, self._stream) if self._stream is not None else nullcontext()
        with window_inputs(inputs), watched as states:
            output = self.model(input_ids=input_ids, position_ids=position_ids, cache=cache, use_cache=True)
        logits = output.logits.float()  # [B, R, padded_vocab]
        top_ids = torch.argmax(logits[..., : self._vocab_size], dim=-1)
        present: list[Tensor] = []
        for layer, pair in enumerate(cache.present):
            if pair is None:
                raise CheckpointUnsupported(
                    f"layer {layer} never writes its KV cache; expected one write per layer"
                )
            present.extend(pair)
        hidden = states.by_name().values() if states is not None else ()  # [B, W, hidden] each
        return (logits, top_ids, *present, *hidden)


def run_window(model: PreTrainedModel, layout: CacheLayout, *, capacity: int = 32) -> None:
    """Run what `trace_graph` traces once, eagerly, on the device and in the tensor mode of `model`.

    Raises `CheckpointUnsupported` for what the hooks refuse, and whatever else the model's own code raises.
    """
    forward = WindowForward(model, None, capacity, int(model.get_output_embeddings().weight.shape[0]))
    with adapted(model), torch.no_grad():
        forward(*example_window(layout, capacity, model.dtype))


def trace_graph(
    model: PreTrainedModel, layout: CacheLayout, *, capacity: int, vocab_size: int
) -> TracedGraph:
    """Export `model` with symbolic batch, width and logit rows, and a cache of `capacity` rows.

    `vocab_size` is the number of real tokens: `top_ids` never names a padded one. Raises `CheckpointUnsupported` when
    the model does something the graph cannot carry.
    """
    names = [f"{kind}.{layer}" for layer in range(layout.layers) for kind in ("key", "value")]
    stream = find_residual_stream(model)
    known = None if isinstance(stream, str) else stream
    wrapper = WindowForward(model, known, capacity, vocab_size)
    batch, width, rows = (torch.export.Dim(symbol) for symbol in ("B", "W", "R"))
    shapes: dict[str, Any] = {
        "input_ids": {0: batch, 1: width},
        "position_ids": {0: batch, 1: width},
        "cache_length": {0: batch},
        "window_mask": {0: batch, 1: width, 2: width},
        "logits_rows": {0: batch, 1: rows},
        "past": [{0: batch} for _ in names],
    }
    hidden = hidden_names(layout.layers) if known is not None else ()
    with adapted(model):
        traced = export_module(
            wrapper,
            example_window(layout, capacity, model.dtype),
            shapes,
            [*list(shapes)[:-1], *(f"past_{name}" for name in names)],
            ["logits", "top_ids", *(f"present_{name}" for name in names), *hidden],
            called=model.config.model_type,
        )
    _require_symbolic(traced.graph, model.config.model_type)
    padded = model.get_output_embeddings().weight.shape[0]
    return TracedGraph(traced, layout, capacity, vocab_size, int(padded), stream)


def _require_symbolic(graph: ir.Graph, model_type: str) -> None:
    """Check the shapes: the tracer fixes a dimension without a word where the model computes with its example's
    size.
    """
    expected = {"input_ids": ("B", "W"), "cache_length": ("B",), "logits_rows": ("B", "R")}
    for value in graph.inputs:
        dims = expected.get(value.name or "", ())
        found = tuple(str(dim) for dim in value.shape or ())
        if dims and found != dims:
            raise CheckpointUnsupported(
                f"{model_type} fixes {value.name} to [{', '.join(found)}] in its own code; expected a model that takes "
                f"any [{', '.join(dims)}]"
            )


def example_window(
    layout: CacheLayout, capacity: int, dtype: torch.dtype
) -> tuple[Tensor | list[Tensor], ...]:
    batch, width, rows = _EXAMPLE_BATCH, _EXAMPLE_WIDTH, _EXAMPLE_ROWS
    shapes = [layout.shape(layer, capacity) for layer in range(layout.layers)]
    past = [torch.zeros(batch, *shape, dtype=dtype) for shape in shapes for _ in range(2)]
    return (
        torch.zeros(batch, width, dtype=torch.long),
        torch.arange(width).repeat(batch, 1),
        torch.full((batch,), 3),
        torch.tril(torch.ones(width, width, dtype=torch.bool)).repeat(batch, 1, 1),
        torch.arange(rows).repeat(batch, 1),
        past,
    )


def known_matchers() -> WeakSet[PatternMatcher]:
    """Every pattern matcher of the process, those that have been seen once and were frozen (`gc.freeze`) included."""
    kinds = {PatternMatcher, *PatternMatcher.__subclasses__()}
    _SEEN.update(matcher for matcher in gc.get_objects() if type(matcher) in kinds)
    return _SEEN


def forget_graph() -> None:
    """Put every pattern matcher of the process back to the state of a new one."""
    for matcher in known_matchers():
        fresh = type(matcher)(matcher.pattern)
        vars(matcher).clear()
        vars(matcher).update(vars(fresh))


def unsupported(model_type: str, error: Exception) -> CheckpointUnsupported:
    """Return what to raise instead of `error`, which the tracer raised: a refusal of ours inside it, or its
    root cause.
    """
    chain = _chain(error)
    ours = next((cause for cause in chain if isinstance(cause, CheckpointUnsupported)), None)
    if ours is not None:
        return CheckpointUnsupported(f"{model_type}: {ours}")
    return CheckpointUnsupported(
        f"{model_type} cannot be exported: {_reason(chain)}; expected operations that ONNX has and no decision that "
        "depends on the values of tensors: docs/architectures.md lists what is known to work"
    )


def _chain(error: BaseException) -> list[BaseException]:
    """`error` and its causes, the root last."""
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.append(following)
        following = following.__cause__ or following.__context__
    return chain


def _reason(chain: list[BaseException]) -> str:
    for cause in reversed(chain):
        if missing := _NO_OPERATOR.search(str(cause)):
            return f"the operation {missing[1]} has no ONNX form"
    root = chain[-1]
    first = next(iter(str(root).strip().splitlines()), "") or type(root).__name__
    place = _CALL.search(str(root))
    where = f" in {place[3]}, `{place[4].strip()}`" if place else ""
    return f"{shorten_reason(first)}{where}"


def export_module(
    module: nn.Module,
    example: tuple[Tensor | list[Tensor], ...],
    shapes: dict[str, Any],
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    called: str,
) -> ir.Model:
    """Return the graph of `module` in eval mode; `shapes` are the symbolic dimensions of its arguments.

    Raises `CheckpointUnsupported`, which names it as `called`, when it does something that no graph can carry.
    """
    with without_collection(), torch.no_grad():
        try:
            program = torch.onnx.export(
                module.eval(),
                example,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=shapes,
                input_names=list(inputs),
                output_names=list(outputs),
                verbose=False,
            )
        except (
            Exception
        ) as error:  # the tracer and the converter raise many classes, all of them about this module
            raise unsupported(called, error) from None
    forget_graph()
    assert program is not None, "torch.onnx.export returns None only when it writes a file"
    return program.model
