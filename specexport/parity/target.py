"""Is the exported graph the checkpoint? Logits and KV rows of a compiled graph against eager PyTorch.

The graph sees the reference's token sequence, driven through its own profiles by the runtime's own feeder, so what is
compared is what will run. Where logits differ, the first KV row that differs names the layer.
"""

from dataclasses import dataclass, fields, replace
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from specexport.cache.code_digest import code_digest
from specexport.cache.entries import entry_digest, measured_once
from specexport.draft_kinds.kind import DraftKind
from specexport.errors import ParityError
from specexport.graph.canonical import ParityReference, load_reference
from specexport.graph.compiled import CompiledGraph
from specexport.graph.plan import FeatureSpec
from specexport.parity.draft import DraftParityReport
from specexport.parity.host import kernels_digest, measure_on_host
from specexport.parity.path import kept_reference, path_difference
from specruntime.engines.protocol import Context, Window
from specruntime.engines.windows import Feeder, stage


@dataclass(frozen=True)
class ParityReport:
    """Largest absolute differences from PyTorch. `layer_difference[n]` is over the key and value rows of layer n.

    `widened`: the graph is bfloat16, and its float32 reference was compared (see `WidenBfloat16`).
    `feature_difference`: of the features that a draft reads, in units of the largest of them: hidden states have
    outliers of any size. `draft_difference`: of the logits of a draft path (`specexport.parity.path`).
    """

    logit_difference: float
    layer_difference: tuple[float, ...]
    tokens: int
    widths: tuple[int, ...]
    widened: bool = False
    feature_difference: float | None = None
    draft_difference: float | None = None

    def first_layer(self, tolerance: float) -> int | None:
        """Return the first layer whose KV rows differ by more than `tolerance`; None when it arises after the
        last one.
        """
        return next(
            (n for n, difference in enumerate(self.layer_difference) if not difference <= tolerance), None
        )


def check_parity(graph: CompiledGraph, *, force: bool = False) -> ParityReport:
    """Parity of a compiled graph at its profiles, measured once for the bytes compared and cached with the graphs."""
    parts = {
        "graph": graph.key,
        "kernels": kernels_digest(graph),
        "compared": [entry_digest(graph.directory), entry_digest(graph.canonical.directory)],
        "profiles": [(profile.width, profile.rows) for profile in graph.spec.profiles],
        "code": code_digest(__name__),
    }
    record = measured_once("parity", parts, lambda: _run_parity(graph), force=force)
    lists = {"layer_difference": tuple(record["layer_difference"]), "widths": tuple(record["widths"])}
    return ParityReport(**{key.name: record[key.name] for key in fields(ParityReport)} | lists)


def check_draft_parity(graph: CompiledGraph, draft: DraftKind, *, force: bool = False) -> DraftParityReport:
    """Parity with its own module of a compiled draft at its profiles, measured once as `check_parity` does."""
    directory = graph.canonical.directory
    parts = {
        "graph": graph.key,
        "kernels": kernels_digest(graph),
        "compared": [entry_digest(graph.directory), entry_digest(directory)],
        "profiles": [profile.model_dump() for profile in graph.spec.profiles],
        "code": code_digest(__name__, type(draft).__module__),
    }

    def measure() -> DraftParityReport:
        report, widened = measure_on_host(graph, lambda context: draft.compare(context, directory))
        return replace(report, widened=widened)

    record = measured_once("parity", parts, measure, force=force)
    record |= {key: tuple(record[key]) for key in ("layer_difference", "widths")}
    return DraftParityReport(**record)


def _run_parity(graph: CompiledGraph) -> ParityReport:
    plan, canonical = graph.plan, graph.canonical
    reference = load_reference(canonical.directory)
    if plan.kept_layers:
        reference = kept_reference(canonical, plan.kept_layers, reference)

    def measure(context: Context) -> ParityReport:
        report = measure_parity(context, reference, plan.features)
        if not plan.draft_layers:
            return report
        difference = path_difference(context, canonical, plan.draft_layers, reference)
        return replace(report, draft_difference=difference)

    report, widened = measure_on_host(graph, measure)
    return replace(report, widened=widened)


def measure_parity(
    context: Context, reference: ParityReference, features: FeatureSpec | None = None
) -> ParityReport:
    """Half of the reference's tokens are prefilled, the rest judged width by width.

    `features`: what the graph's output of that name must be.
    """
    if context.spec.drafted > 1:
        return _measure_fused(context, reference)
    feeder = Feeder(context)
    expected = _expected_features(reference, features) if features is not None else None
    judged = _FeatureRows(expected)
    ids, tokens = reference.ids, len(reference.ids)
    start = max(1, tokens // 2)
    prefilled = feeder.feed(ids[:start], 0, each=judged.compare)
    worst = _difference(feeder.logits(prefilled), reference.logits[start - 1 : start])
    widths = _judged_widths(context)
    for width in cycle(widths):
        if start >= tokens:
            break
        count = min(width, tokens - start, feeder.judged_limit(start))
        rows = feeder.judge(ids[start : start + count], start)
        worst = max(worst, _difference(feeder.logits(rows), reference.logits[start : start + count]))
        judged.compare(rows.window, start, count)
        start += count
    layers = _layer_differences(context, reference, tokens)
    return ParityReport(worst, layers, tokens, widths, feature_difference=judged.worst)


def _expected_features(reference: ParityReference, features: FeatureSpec) -> NDArray[np.float32]:
    """[T, F] by the hidden states of PyTorch."""
    hidden = np.concatenate([reference.hidden[tap] for tap in features.taps], axis=-1)
    projection = features.projection
    return hidden if projection is None else hidden @ projection.astype(np.float32).T


@dataclass
class _FeatureRows:
    """The largest difference of features so far, in units of the largest feature; None without features."""

    expected: NDArray[np.float32] | None  # [T, F]
    worst: float | None = None

    def compare(self, window: Window, start: int, count: int) -> None:
        """Compare the first `count` rows of a window that has run at cache offset `start`."""
        if self.expected is None:
            return
        assert window.features is not None, "the plan asked for features"
        found, expected = window.features[0, :count], self.expected[start : start + count]
        difference = _difference(found, expected) / max(float(np.abs(self.expected).max()), 1e-30)
        self.worst = max(self.worst or 0.0, difference)


def _measure_fused(context: Context, reference: ParityReference) -> ParityReport:
    """Measure a fused draft: it has the logits of its first step only, and repeats that step on its own argmax."""
    spec = context.spec
    window = context.window(min(spec.profiles, key=lambda profile: profile.width).name)
    width = window.profile.width
    tokens = min(len(reference.ids), spec.capacity - spec.drafted) // width * width
    worst = 0.0
    for start in range(0, tokens, width):
        stage(window, reference.ids[start : start + width], start)
        context.run(window)
        last = start + width - 1
        logits = context.logits(window)[0, :, : spec.vocab_size]
        worst = max(worst, _difference(logits, reference.logits[last : last + 1]))
    return ParityReport(worst, _layer_differences(context, reference, tokens), tokens, (width,))


def require_parity(report: ParityReport, tolerance: float, graph: str) -> None:
    """Raise `ParityError` naming the layer at which the difference starts, or the draft output that differs."""
    if not report.logit_difference <= tolerance:
        begins = _name_place(report.first_layer(tolerance))
        raise ParityError(
            f"the {graph} graph differs from PyTorch by {report.logit_difference:.3g} on a logit, the recipe allows "
            f"{tolerance:.3g}; the difference starts {begins}: raise the tolerance only if that is the precision you "
            "expect, otherwise report the architecture",
            key="parity.tolerance",
        )
    for difference, what in (
        (report.feature_difference, "on a feature, in units of the largest one"),
        (report.draft_difference, "on a logit of its draft path"),
    ):
        if difference is not None and not difference <= tolerance:
            raise ParityError(
                f"the {graph} graph differs from PyTorch by {difference:.3g} {what}, the recipe allows "
                f"{tolerance:.3g}: raise the tolerance only if that is the precision you expect, otherwise report the "
                "architecture",
                key="parity.tolerance",
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


def _judged_widths(context: Context) -> tuple[int, ...]:
    return tuple(sorted({p.width for p in context.spec.profiles if p.rows == p.width}, reverse=True))


def _difference(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    difference = np.abs(found - expected).max()
    return float(difference) if np.isfinite(difference) else float("inf")


def _layer_differences(context: Context, reference: ParityReference, tokens: int) -> tuple[float, ...]:
    rows = context.cache()
    worst = []
    for layer, (key, value) in enumerate(zip(reference.keys, reference.values, strict=True)):
        pairs = ((f"past_key.{layer}", key), (f"past_value.{layer}", value))
        differences = [
            _difference(rows[name][0, :, :tokens].astype(np.float32), expected[:, :tokens])
            for name, expected in pairs
        ]
        worst.append(max(differences))
    return tuple(worst)
