"""Ordered graph passes: the canonical graph in, one backend's variant out.

A pass changes a graph in place and reports how often it fired, and why not where it did not. Knows nothing of files.
Below them are predicates over a graph, for what passes require and ensure: each returns what is wrong, or None.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from specexport.errors import PassError

FUSED_DOMAIN = "com.microsoft"


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


def nodes_of(model: ir.Model, op_type: str, domain: str = "") -> Iterator[ir.Node]:
    """Return the nodes of one operator."""
    return (node for node in model.graph if (node.op_type, node.domain) == (op_type, domain))


def first_of(*findings: str | None) -> str | None:
    """Return the first thing that is wrong."""
    return next((finding for finding in findings if finding is not None), None)


def lacks_inputs(model: ir.Model, *names: str) -> str | None:
    """Say which of `names` is not an input of the graph; None: all are."""
    return _lacks("input", names, model.graph.inputs)


def lacks_outputs(model: ir.Model, *names: str) -> str | None:
    """Say which of `names` is not an output of the graph; None: all are."""
    return _lacks("output", names, model.graph.outputs)


def has_node(model: ir.Model, op_type: str, domain: str = "") -> str | None:
    """Say which node of an operator that should not be there is; None: it has none."""
    found = next(nodes_of(model, op_type, domain), None)
    return None if found is None else f"{op_type} {found.name} is in the graph"


def has_idle_node(model: ir.Model) -> str | None:
    """Say which node has results that nothing reads; None: none has."""
    found = next((node for node in model.graph if not any(map(_is_read, node.outputs))), None)
    return None if found is None else f"nothing reads the results of {found.name}"


def has_value(model: ir.Model, of: Callable[[ir.Value], bool], what: str) -> str | None:
    """Say which value of the graph is of a kind that should not be there, named `what`; None: it has none."""
    found = next((value for value in _values(model.graph) if of(value)), None)
    return None if found is None else f"{found.name} is {what}"


def _is_read(value: ir.Value) -> bool:
    return value.is_graph_output() or bool(value.uses())


def _lacks(what: str, names: tuple[str, ...], values: Iterable[ir.Value]) -> str | None:
    known = {value.name for value in values}
    missing = next((name for name in names if name not in known), None)
    return None if missing is None else f"the graph has no {what} {missing}"


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs
