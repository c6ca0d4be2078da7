"""The fidelity stage of a build: measured once for the graphs and the text, kept in the cache, held to the limits."""

from dataclasses import fields

from specexport.canonical_graph import CanonicalGraph
from specexport.check_prompts import open_codec
from specexport.compiled_graph import CompiledGraph
from specexport.digests import code_digest
from specexport.errors import CheckpointUnsupported, FidelityError
from specexport.fidelity import FidelityReport, measure_fidelity
from specexport.measured import measured_once
from specexport.recipe import Fidelity
from specexport.sources.cache import entry_digest


def check_fidelity(
    graph: CompiledGraph, twin: CompiledGraph, text: Fidelity, *, force: bool = False
) -> FidelityReport:
    """Fidelity of a compiled graph to its fp32 `twin` on the recipe's text.

    Raises `CheckpointUnsupported` for a checkpoint without tokenizer or a text of less than two tokens.
    """
    ids = _encode(text, graph.canonical)
    parts = {
        "compared": [entry_digest(graph.directory), entry_digest(twin.directory)],
        "ids": ids,
        "code": code_digest("fidelity.py", "fidelity_stage.py"),
    }
    pair = (graph.spec, graph.directory), (twin.spec, twin.directory)
    record = measured_once("fidelity", parts, lambda: measure_fidelity(*pair, ids), force=force)
    return FidelityReport(**{key.name: record[key.name] for key in fields(FidelityReport)})


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
                f"({report.line()}): choose weights.activations fine, int8 instead of int4, or move the limit"
            )


def _encode(text: Fidelity, target: CanonicalGraph) -> list[int]:
    codec = open_codec(target)
    if codec is None:
        raise CheckpointUnsupported(
            f"fidelity.text: found text, but {target.name} has no tokenizer; leave fidelity out"
        )
    ids = codec.encode(text.text)[: text.tokens]
    if len(ids) < 2:
        raise CheckpointUnsupported(
            f"fidelity.text: found {len(ids)} tokens, expected at least 2; write more"
        )
    return ids
