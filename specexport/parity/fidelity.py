"""Measures what a format of weights costs: a graph against the same graph over the checkpoint's own weights, on running
text, position by position.

That reference has passed the parity check, so it stands for the checkpoint. Every token of the text is predicted from
the true ones before it; nothing is sampled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specexport.cache.code_digest import code_digest
from specexport.cache.entries import entry_digest, measured_once
from specexport.checkpoints.fitting import encode_text
from specexport.context import BuildContext
from specexport.errors import FidelityError
from specexport.graph.compiled import CompiledGraph
from specexport.graph.files import STEP
from specexport.graph.plan import LinearPlan
from specexport.parity.host import kernels_digest, on_host, opened_context
from specexport.passes.quantize_weights import ROUNDED, QuantizeWeights
from specexport.recipe.schema import Fidelity, Recipe
from specruntime.engines.windows import Feeder
from specruntime.manifest.schema import GraphSpec, Profile

_WINDOW = 64  # rows whose logits are held at once


@dataclass(frozen=True)
class FidelityReport:
    """`tokens` positions; `kl` is the mean divergence of the graph's distribution from the checkpoint's, in nats;
    perplexities are of the text's own next tokens."""

    tokens: int
    top1_agreement: float
    kl: float
    perplexity: float
    reference_perplexity: float

    @property
    def perplexity_ratio(self) -> float:
        return self.perplexity / self.reference_perplexity

    def line(self) -> str:
        """For people."""
        return (
            f"against the checkpoint's weights on {self.tokens} tokens of text: same first choice at "
            f"{100 * self.top1_agreement:.2f} %, KL {self.kl:.4g}, perplexity {self.perplexity:.3f} instead of "
            f"{self.reference_perplexity:.3f}"
        )


def measure_fidelity(
    graph: tuple[GraphSpec, Path], reference: tuple[GraphSpec, Path], ids: Sequence[int]
) -> FidelityReport:
    """`graph` and `reference`: entry and the directory its file lies in. `ids`: the text, at least two tokens.

    A text longer than the cache is cut into pieces that each begin with an empty one.
    """
    sums = np.zeros(4)  # equal first choices, KL, negative log-likelihoods of graph and reference
    count = predicted = 0
    for (found, _), (expected, targets) in zip(_logprobs(graph, ids), _logprobs(reference, ids), strict=True):
        sums[0] += (found.argmax(axis=-1) == expected.argmax(axis=-1)).sum()
        sums[1] += (np.exp(expected) * (expected - found)).sum()
        rows = np.arange(len(targets))
        sums[2] -= found[rows, targets].sum()
        sums[3] -= expected[rows, targets].sum()
        count, predicted = count + len(found), predicted + len(targets)
    return FidelityReport(
        tokens=count,
        top1_agreement=float(sums[0] / count),
        kl=float(sums[1] / count),
        perplexity=float(np.exp(sums[2] / max(predicted, 1))),
        reference_perplexity=float(np.exp(sums[3] / max(predicted, 1))),
    )


def _logprobs(
    graph: tuple[GraphSpec, Path], ids: Sequence[int]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Log-probabilities [n, vocab] of successive rows, and the tokens [n or n - 1] that followed them."""
    spec, root = graph
    width = min(_WINDOW, spec.capacity - 1)
    windows = (STEP, Profile(name="text", width=width, rows=width))
    first = spec.profiles[0]
    judged = spec.for_one().model_copy(
        update={
            "profiles": tuple(w.model_copy(update={"outputs": first.outputs}) for w in windows),
            "outputs": tuple(tensor for tensor in spec.outputs if first.computes(tensor.name)),
            "aliases": tuple(pair for pair in spec.aliases if first.computes(pair.output)),
        }
    )
    with opened_context(judged, root) as context:
        yield from _judged(Feeder(context), np.asarray(ids, np.int64), width)


def _judged(
    feeder: Feeder, ids: NDArray[np.int64], width: int
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    piece = feeder.capacity // width * width
    for begin in range(0, len(ids), piece):
        text = ids[begin : begin + piece]
        for start in range(0, len(text), width):
            rows = feeder.judge(text[start : start + width], start)
            yield _log_softmax(feeder.logits(rows)), text[start + 1 : start + width + 1]


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


def check_fidelity(
    graph: CompiledGraph, reference: CompiledGraph, text: Fidelity, *, force: bool = False
) -> FidelityReport:
    """Fidelity of a compiled graph to `reference`, the same graph over the checkpoint's own weights, on the recipe's
    text.

    Raises `CheckpointUnsupported` for a checkpoint without tokenizer or a text of less than two tokens.
    """
    ids = encode_text("fidelity", text, graph.canonical)
    parts = {
        "kernels": kernels_digest(graph),
        "compared": [entry_digest(graph.directory), entry_digest(reference.directory)],
        "ids": ids,
        "code": code_digest(__name__),
    }

    def measure() -> FidelityReport:
        with on_host(graph) as found, on_host(reference) as expected:
            return measure_fidelity((found.spec, found.directory), (expected.spec, expected.directory), ids)

    record = measured_once("fidelity", parts, measure, force=force)
    return FidelityReport(**{key.name: record[key.name] for key in fields(FidelityReport)})


def judge_fidelity(
    recipe: Recipe, graph: CompiledGraph, twin: CompiledGraph, context: BuildContext
) -> FidelityReport | None:
    """Fidelity on the recipe's text; None without one.

    Raises `FidelityError` where a limit of the recipe is not kept.
    """
    if recipe.fidelity is None:
        return None
    context.announce("comparing the weights with the checkpoint's on the recipe's text")
    report = check_fidelity(graph, twin, recipe.fidelity, force=context.force)
    context.announce(report.line())
    require_fidelity(report, recipe.fidelity, recipe.shown_precision)
    return report


_CURES = {
    "fp8": "leave weights out",
    "int4-awq": "choose fp8, a smaller weights.block",
    "nvfp4": "choose fp8",
}
_INTEGER_CURE = "choose weights.activations fine, int8 instead of int4"


_LITTLE_AGREEMENT = 0.95
"""Below it more than one token in twenty is another one. Weights on the checkpoint's own grid, and 8 bits with a scale
for each block, stay above it; what fell below cost 4 % of perplexity and more (docs/weights.md)."""


def weight_warnings(graph: CompiledGraph, report: FidelityReport | None) -> tuple[str, ...]:
    """Return what a format costs where that is much or unknown, each with the next better format, one line each."""
    plan = graph.plan.weights
    if plan is None:
        return ()
    lines = [
        reason for found in graph.passes if found.name == QuantizeWeights.name for reason in found.reasons
    ]
    rounded = any(ROUNDED in line for line in lines)
    better = f"the next better format: {_next_better(plan.linear, rounded)}"
    if report is not None and report.top1_agreement < _LITTLE_AGREEMENT:
        return (
            f"{plan.linear.format} weights choose another token than the checkpoint at "
            f"{100 * (1 - report.top1_agreement):.1f} % of positions, with {report.perplexity_ratio:.2f} times its "
            f"perplexity; {better}",
        )
    if report is None and rounded and plan.linear.format == "int4":
        return (
            "weights are rounded to 4 bits, and what that costs is not measured: give the recipe a fidelity text; "
            f"{better}",
        )
    return ()


def _next_better(plan: LinearPlan, rounded: bool) -> str:
    """int4, int4 with finer rows, int8, int8 with finer rows, fp32; finer rows do not help weights that are rounded."""
    if plan.format == "int4":
        return "weights.format int8" if rounded or plan.activations == "fine" else "weights.activations fine"
    if plan.activations == "rows":
        return "weights.activations blocks"
    return "weights.activations fine" if plan.activations == "blocks" else "leave weights out (fp32)"


def require_fidelity(report: FidelityReport, limits: Fidelity, weights: str) -> None:
    """Raise `FidelityError` with the limit and what was found."""
    checks = (
        ("top1_agreement", "at least", limits.top1_agreement, report.top1_agreement, False),
        ("kl", "at most", limits.kl, report.kl, True),
        ("perplexity_ratio", "at most", limits.perplexity_ratio, report.perplexity_ratio, True),
    )
    for key, word, limit, found, upper in checks:
        if limit is not None and not (found <= limit if upper else found >= limit):
            raise FidelityError(
                f"{weights} weights reach {found:.4g}, the recipe expects {word} {limit:.4g} "
                f"({report.line()}): {_CURES.get(weights, _INTEGER_CURE)}, or move the limit",
                key=f"fidelity.{key}",
            )
