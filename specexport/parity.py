"""Is the exported graph the checkpoint? Logits and KV rows of a compiled graph against eager PyTorch.

Both see the same random token sequence; the graph is driven through its own profiles by the runtime's own feeder, so
what is compared is what will run. Where logits differ, the first KV row that differs names the layer.
"""

from dataclasses import dataclass
from itertools import cycle

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from specexport.errors import ParityError
from specruntime.engine import Context
from specruntime.windows import Feeder

_SEED = 20240601


@dataclass(frozen=True)
class ParityReport:
    """Largest absolute differences from PyTorch. `layer_difference[n]` is over the key and value rows of layer n."""

    logit_difference: float
    layer_difference: tuple[float, ...]
    tokens: int
    widths: tuple[int, ...]

    def first_layer(self, tolerance: float) -> int | None:
        """The first layer whose KV rows differ by more than `tolerance`; None when it arises after the last one."""
        return next(
            (n for n, difference in enumerate(self.layer_difference) if not difference <= tolerance), None
        )


def measure_parity(context: Context, model: PreTrainedModel, tokens: int) -> ParityReport:
    """Compares `tokens` positions (at most the capacity): half prefilled, the rest judged width by width."""
    feeder = Feeder(context)
    tokens = min(tokens, feeder.capacity)
    ids = np.random.default_rng(_SEED).integers(0, feeder.vocab_size, tokens)
    reference, cache = _run_pytorch(model, ids, feeder.vocab_size)
    start = max(1, tokens // 2)
    worst = _difference(feeder.logits(feeder.feed(ids[:start], 0)), reference[start - 1 : start])
    widths = _judged_widths(context)
    for width in cycle(widths):
        if start >= tokens:
            break
        count = min(width, tokens - start, feeder.judged_limit(start))
        logits = feeder.logits(feeder.judge(ids[start : start + count], start))
        worst = max(worst, _difference(logits, reference[start : start + count]))
        start += count
    return ParityReport(worst, _layer_differences(context, cache, tokens), tokens, widths)


def require_parity(report: ParityReport, tolerance: float, graph: str) -> None:
    """Raises `ParityError` naming the layer at which the difference starts."""
    if report.logit_difference <= tolerance:
        return
    begins = _name_place(report.first_layer(tolerance))
    raise ParityError(
        f"the {graph} graph differs from PyTorch by {report.logit_difference:.3g} on a logit, the recipe allows "
        f"parity.tolerance {tolerance:.3g}; the difference starts {begins}: raise the tolerance only if that is the "
        "precision you expect, otherwise report the architecture"
    )


def _name_place(layer: int | None) -> str:
    """Where a difference begins, given the first layer whose KV rows show it."""
    if layer is None:
        return (
            "after the last layer's keys and values (its attention, its MLP, the final norm or the LM head)"
        )
    if layer == 0:
        return "in layer 0 (embedding, norm or rotary positions)"
    return f"in layer {layer - 1} behind its keys and values, or in the keys and values of layer {layer}"


def _run_pytorch(
    model: PreTrainedModel, ids: NDArray[np.int64], vocab_size: int
) -> tuple[NDArray[np.float32], DynamicCache]:
    cache = DynamicCache()
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(ids)[None], past_key_values=cache, use_cache=True).logits
    return logits[0, :, :vocab_size].float().numpy(), cache


def _judged_widths(context: Context) -> tuple[int, ...]:
    return tuple(sorted({p.width for p in context.spec.profiles if p.rows == p.width}, reverse=True))


def _difference(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    difference = np.abs(found - expected).max()
    return float(difference) if np.isfinite(difference) else float("inf")


def _layer_differences(context: Context, cache: DynamicCache, tokens: int) -> tuple[float, ...]:
    rows = context.cache()
    worst = []
    for index, layer in enumerate(cache.layers):
        assert isinstance(layer, DynamicLayer) and layer.keys is not None and layer.values is not None
        pairs = ((f"past_key.{index}", layer.keys), (f"past_value.{index}", layer.values))
        worst.append(
            max(
                _difference(rows[name][0, :, :tokens].astype(np.float32), expected[0].float().numpy())
                for name, expected in pairs
            )
        )
    return tuple(worst)
