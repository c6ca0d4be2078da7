"""Which layers of a target draft best for it on the user's own answers: layers are dropped while the rest agrees.

Greedy: each sweep tries every layer that is left, drops the few whose absence costs the least agreement, and
predicts the speed-up of the rest. Runs the checkpoint in PyTorch on answers the target gave before, all positions at
once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specexport.errors import CheckpointUnsupported
from specexport.export.support import find_residual_stream
from specexport.trees import chain_of, expected_tokens
from specexport.tune.probing import Answered
from specruntime import clock

Advance = Callable[[str], None]

_MOST_POSITIONS = 1024  # answer tokens that agreement is taken over
_SWEEPS = 10  # in which all layers would be gone
_LONGEST_CHAIN = 8


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """Layers that draft, and what is expected of them."""

    layers: tuple[int, ...]
    k: int
    agreement: float  # share of the answers' tokens that these layers alone would have named
    speedup: float  # predicted, against plain decoding

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def search_layers(
    model: PreTrainedModel,
    answers: Sequence[Answered],
    *,
    minutes: float,
    verify_ratio: float = 1.0,
    advance: Advance = lambda step: None,
) -> LayerChoice:
    """Return the choice of highest predicted speed among those met within `minutes`, one sweep at least.

    `verify_ratio`: time of a window that judges drafts over that of a plain step. Raises `CheckpointUnsupported` for a
    model whose layers cannot be identified.
    """
    stream = find_residual_stream(model)
    if isinstance(stream, str):
        raise CheckpointUnsupported(stream)
    layers, deadline = stream.layers, clock.now() + 60 * minutes
    texts = list(_within(answers))
    kept = tuple(range(len(layers)))
    best: LayerChoice | None = None
    while len(kept) > 1 and (best is None or clock.now() < deadline):
        advance(f"dropping of {len(kept)} layers")
        without: dict[int, float] = {}
        for layer in kept:
            without[layer] = _agreement(model, layers, tuple(n for n in kept if n != layer), texts)
            if best is not None and clock.now() > deadline:
                return best
        drops = min(max(1, len(layers) // _SWEEPS), len(kept) - 1)
        gone = sorted(kept, key=lambda layer: without[layer], reverse=True)[:drops]
        kept = tuple(layer for layer in kept if layer not in gone)
        agreement = _agreement(model, layers, kept, texts)
        k, speedup = best_length(agreement, _step_share(model, layers, len(kept)), verify_ratio)
        found = LayerChoice(kept, k, agreement, speedup)
        best = found if best is None or found.speedup > best.speedup else best
    assert best is not None, "a decoder has two layers or more"
    return best


def _within(answers: Sequence[Answered]) -> Iterator[Answered]:
    """As many answers as there is time for."""
    left = _MOST_POSITIONS
    for answer in answers:
        if left > 0 and len(answer.ids) > answer.start:
            yield answer
            left -= len(answer.ids) - answer.start


def _agreement(
    model: PreTrainedModel, layers: Sequence[nn.Module], kept: Sequence[int], answers: Sequence[Answered]
) -> float:
    """Share of answer tokens that the kept layers alone name, each after the answer's own tokens before it."""
    agreed = total = 0
    with _only(layers, kept), torch.inference_mode():
        for answer in answers:
            ids = torch.tensor([answer.ids])
            logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]  # [length, vocab]
            named = logits[answer.start - 1 : -1].argmax(-1)
            agreed += int((named == ids[0, answer.start :]).sum())
            total += len(named)
    return agreed / total if total else 0.0


@contextmanager
def _only(layers: Sequence[nn.Module], kept: Sequence[int]) -> Iterator[None]:
    """Let the layers that are not `kept` hand on what enters them, in the block."""
    skipped = [layer for number, layer in enumerate(layers) if number not in set(kept)]
    before = [layer.forward for layer in skipped]

    def hand_on(hidden_states: Tensor, *args: object, **options: object) -> Tensor:
        return hidden_states

    for layer in skipped:
        layer.forward = hand_on
    try:
        yield
    finally:
        for layer, forward in zip(skipped, before, strict=True):
            layer.forward = forward


def _step_share(model: PreTrainedModel, layers: Sequence[nn.Module], kept: int) -> float:
    """Return the share that a step of `kept` layers takes of one of all: its time goes into reading their
    weights and the LM head's.
    """
    head = model.get_output_embeddings()
    assert head is not None, "a checkpoint without an LM head is refused when it is loaded"
    layer = sum(p.numel() for module in layers for p in module.parameters()) / len(layers)
    rest = sum(p.numel() for p in head.parameters())
    return float((kept * layer + rest) / (len(layers) * layer + rest))


def best_length(agreement: float, share: float, verify_ratio: float) -> tuple[int, float]:
    """(k, predicted speed-up): a chain of k drafts at `share` of a plain step each."""
    speeds = {
        k: expected_tokens(chain_of(k), [[agreement]] * k) / (k * share + verify_ratio)
        for k in range(1, _LONGEST_CHAIN + 1)
    }
    k = max(speeds, key=lambda k: speeds[k])
    return k, speeds[k]
