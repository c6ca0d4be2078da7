"""The fidelity stage of a build: measured once for the graphs and the text, kept in the cache, held to the limits."""

from dataclasses import fields

from specexport.check_prompts import encode_text
from specexport.code_digest import code_digest
from specexport.compiled_graph import CompiledGraph
from specexport.errors import FidelityError
from specexport.fidelity import FidelityReport, measure_fidelity
from specexport.host_graph import on_host
from specexport.measured import measured_once
from specexport.passes.quantize_weights import ROUNDED, QuantizeWeights
from specexport.recipe import Fidelity
from specexport.sources.cache import entry_digest
from specexport.weight_plan import LinearPlan


def check_fidelity(
    graph: CompiledGraph, twin: CompiledGraph, text: Fidelity, *, force: bool = False
) -> FidelityReport:
    """Fidelity of a compiled graph to its `twin` over the checkpoint's own weights, on the recipe's text.

    Raises `CheckpointUnsupported` for a checkpoint without tokenizer or a text of less than two tokens.
    """
    ids = encode_text("fidelity", text, graph.canonical)
    parts = {
        "compared": [entry_digest(graph.directory), entry_digest(twin.directory)],
        "ids": ids,
        "code": code_digest(__name__),
    }

    def measure() -> FidelityReport:
        with on_host(graph) as found, on_host(twin) as expected:
            return measure_fidelity(found, expected, ids)

    record = measured_once("fidelity", parts, measure, force=force)
    return FidelityReport(**{key.name: record[key.name] for key in fields(FidelityReport)})


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
    """What a format costs where that is much or unknown, each with the next better format, one line each."""
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
    """Raises `FidelityError` with the limit and what was found."""
    checks = (
        ("top1_agreement", "at least", limits.top1_agreement, report.top1_agreement, False),
        ("kl", "at most", limits.kl, report.kl, True),
        ("perplexity_ratio", "at most", limits.perplexity_ratio, report.perplexity_ratio, True),
    )
    for key, word, limit, found, upper in checks:
        if limit is not None and not (found <= limit if upper else found >= limit):
            raise FidelityError(
                f"fidelity.{key}: {weights} weights reach {found:.4g}, the recipe expects {word} {limit:.4g} "
                f"({report.line()}): {_CURES.get(weights, _INTEGER_CURE)}, or move the limit"
            )
