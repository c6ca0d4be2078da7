"""What a format of weights costs: a graph against its twin over the checkpoint's own weights, on running text, position
by position.

The twin has passed the parity check, so it stands for the checkpoint. Every token of the text is predicted from the
true ones before it; nothing is sampled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specruntime.engines import EngineOptions, open_engine
from specruntime.manifest import GraphSpec, Profile
from specruntime.windows import Feeder

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
    for (found, _), (expected, targets) in zip(_laws(graph, ids), _laws(reference, ids), strict=True):
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


def _laws(
    graph: tuple[GraphSpec, Path], ids: Sequence[int]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """Log-probabilities [n, vocab] of successive rows, and the tokens [n or n - 1] that followed them."""
    spec, root = graph
    width = min(_WINDOW, spec.capacity - 1)
    windows = (Profile(name="step", width=1, rows=1), Profile(name="text", width=width, rows=width))
    outputs = spec.profiles[0].outputs
    judged = spec.for_one().model_copy(
        update={"profiles": tuple(w.model_copy(update={"outputs": outputs}) for w in windows)}
    )
    engine = open_engine(judged, root, EngineOptions())
    try:
        context = engine.new_context()
        try:
            yield from _judged(Feeder(context), np.asarray(ids, np.int64), width)
        finally:
            context.close()
    finally:
        engine.close()


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
