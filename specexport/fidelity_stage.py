"""The fidelity stage of a build: measured once for the graphs and the text, kept in the cache, held to the limits."""

from dataclasses import fields

from specexport.check_prompts import encode_text
from specexport.code_digest import code_digest
from specexport.compiled_graph import CompiledGraph
from specexport.errors import FidelityError
from specexport.fidelity import FidelityReport, measure_fidelity
from specexport.host_graph import on_host
from specexport.measured import measured_once
from specexport.recipe import Fidelity
from specexport.sources.cache import entry_digest


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
