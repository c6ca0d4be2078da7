"""Predicates over a graph, for what passes require and ensure: each returns what is wrong, or None."""

from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

FUSED_DOMAIN = "com.microsoft"


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
