"""Runs what the exporter traces in eager PyTorch: the operators that it puts into the graph by name are computed here.

A model under the exporter's hooks decodes windows over a cache of fixed capacity, as its graph does, without the
seconds that a trace takes. `operators` lists how it calls PyTorch's operators, which is what a trace translates.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from specexport.export import CacheLayout
from specexport.export.adapter import adapted
from specexport.export.trace import WindowForward, example_window
from tests.specexport.export.comparison import POISON

PREFILL, VERIFY = 16, 5
LARGEST_AXIS = 4


def scatter(inputs: Sequence[Tensor], attributes: dict[str, Any]) -> Tensor:
    """ONNX `TensorScatter`: the rows of each sequence from its length on."""
    past, rows, lengths = inputs
    assert attributes == {"axis": -2}
    written = past.clone()
    for row, length in enumerate(lengths.tolist()):
        written[row, :, length : length + rows.shape[2]] = rows[row]
    return written


def attend(inputs: Sequence[Tensor], attributes: dict[str, Any]) -> Tensor:
    """ONNX `Attention` with a boolean mask: scaled, soft-capped, masked, in this order."""
    query, key, value, mask = inputs
    assert attributes.keys() <= {"is_causal", "scale", "softcap"} and not attributes["is_causal"]
    scale, cap = attributes.get("scale", query.shape[-1] ** -0.5), attributes.get("softcap", 0.0)
    groups = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(groups, 1).transpose(2, 3) * scale
    scores = torch.tanh(scores / cap) * cap if cap else scores
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    attended: Tensor = weights @ value.repeat_interleave(groups, 1)
    return attended


NAMED = {"TensorScatter": scatter, "Attention": attend}


class _Recorder(TorchDispatchMode):
    """Notes each operator with its arguments: tensors by type and rank, numbers other than axes by their kind."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[str] = []
        self.paused = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self.paused:
            self.calls.append(f"{func} {_shown(args)} {_shown(kwargs or {})}")
        return func(*args, **(kwargs or {}))

    def compute(self, name: str, inputs: Sequence[Tensor], attributes: dict[str, Any]) -> Tensor:
        self.calls.append(f"{name} {sorted(attributes)}")
        self.paused = True
        try:
            return NAMED[name](inputs, attributes)
        finally:
            self.paused = False


def _shown(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return f"{argument.dtype}[{argument.ndim}]"
    if isinstance(argument, dict):
        return {name: _shown(each) for name, each in argument.items()}
    if isinstance(argument, (list, tuple)):
        return [_shown(each) for each in argument]
    if isinstance(argument, float) or (type(argument) is int and abs(argument) > LARGEST_AXIS):
        return type(argument).__name__
    return argument


@contextmanager
def _computed(recorder: _Recorder | None = None) -> Iterator[None]:
    """PyTorch's symbolic operators give what ONNX defines; without this they give zeros."""

    def symbolic(name: str, inputs: Sequence[Tensor], attributes: dict[str, Any], **options: Any) -> Tensor:
        compute = NAMED[name] if recorder is None else lambda *given: recorder.compute(name, *given)
        return compute(inputs, attributes)

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(torch.onnx.ops, "symbolic", symbolic)
        yield


def operators(model: PreTrainedModel, layout: CacheLayout, *, capacity: int, vocab_size: int) -> set[str]:
    """How the model calls operators in one window: each call, and each two in a row by their names."""
    recorder = _Recorder()
    forward = WindowForward(model, None, capacity, vocab_size)
    window = example_window(layout, capacity, model.dtype)
    with adapted(model), _computed(recorder), recorder:
        forward(*window)
    names = [call.split()[0] for call in recorder.calls]
    pairs = pairwise(names)
    return {*recorder.calls, *(f"{first}, then {second}" for first, second in pairs)}


class EagerWindows:
    """One sequence over a cache whose unused rows hold +-1e4."""

    def __init__(
        self, model: PreTrainedModel, layout: CacheLayout, *, capacity: int, vocab_size: int
    ) -> None:
        self._model = model
        self._forward = WindowForward(model, None, capacity, vocab_size)
        shapes = [layout.shape(layer, capacity) for layer in range(layout.layers)]
        self._past = [torch.full((1, *shape), POISON) for shape in shapes for _ in range(2)]
        for rows in self._past:
            rows[..., ::2] *= -1

    def run(self, ids: Sequence[int], length: int, width: int) -> list[int]:
        """The most likely token after each of `ids`, a window of `width` after `length` tokens."""
        count, rows = len(ids), torch.arange(width)
        window = torch.zeros(width, dtype=torch.long)
        window[:count] = torch.tensor(ids)
        mask = torch.ones(width, width, dtype=torch.bool).tril()
        found = self._forward(
            window[None],
            length + rows[None],
            torch.tensor([length]),
            mask[None],
            rows[None, :count],
            self._past,
        )
        self._past = list(found[2 : 2 + len(self._past)])
        top: list[int] = found[1][0].tolist()
        return top

    def decode(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """Greedy: the prompt in windows with padding at the end, a step per token, and all of it verified again."""
        with adapted(self._model), _computed():
            for start in range(0, len(prompt), PREFILL):
                last = self.run(prompt[start : start + PREFILL], start, PREFILL)[-1]
            answer = [last]
            while len(answer) < tokens:
                answer += self.run(answer[-1:], len(prompt) + len(answer) - 1, 1)
            for start in range(0, tokens - 1, VERIFY):
                judged = answer[start : min(start + VERIFY, tokens - 1)]
                found = self.run(judged, len(prompt) + start, VERIFY)
                assert found == answer[start + 1 : start + 1 + len(judged)], (
                    f"the window at {start} decides otherwise"
                )
        return answer
