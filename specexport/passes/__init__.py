"""Ordered graph passes: the canonical graph in, one backend's variant out.

A pass changes a graph in place and reports how often it fired, and why not where it did not. Knows nothing of files.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from specexport.errors import PassError


@dataclass(frozen=True)
class PassReport:
    """What one pass did: `changed` rewrites, and a reason for each place it had to leave alone."""

    name: str
    changed: int
    reasons: tuple[str, ...] = ()


class GraphPass(Protocol):
    """One rewrite, and what must hold around it. `run_passes` calls all three."""

    name: str

    def requires(self, model: ir.Model) -> str | None:
        """Return what the graph lacks for this pass; None where it lacks nothing."""
        return None

    def __call__(self, model: ir.Model) -> PassReport:
        """Rewrite the graph in place."""
        ...

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        """Return what the pass promises and the graph does not keep; None where it keeps all. `report` is what
        it did.
        """
        return None


def run_passes(model: ir.Model, passes: Iterable[GraphPass]) -> tuple[PassReport, ...]:
    """Run `passes` on `model` in order, in place.

    Raises `PassError` where the graph is not what a pass requires, or not what it ensures.
    """
    return tuple(_run(model, graph_pass) for graph_pass in passes)


def _run(model: ir.Model, graph_pass: GraphPass) -> PassReport:
    if (lack := graph_pass.requires(model)) is not None:
        raise PassError(f"the pass {graph_pass.name} cannot run: {lack}; report the model and the backend")
    report = graph_pass(model)
    if (broken := graph_pass.ensures(model, report)) is not None:
        raise PassError(
            f"the pass {graph_pass.name} left a graph that it should not: {broken}; report the model and the backend"
        )
    return report
