"""What goes into a graph and comes out: one output with the features that a draft reads, and nothing that is not read.

Features are made and hidden states dropped before any fusion, so that a graph without a draft on its features fuses as
if it never had hidden states; inputs that no node reads any more are dropped last.
"""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from specexport.graph.plan import FeatureSpec
from specexport.passes import GraphPass, PassReport, has_idle_node, lacks_outputs
from specexport.passes.graph_builder import Builder

FEATURES = "features"
HIDDEN_PREFIX = "hidden."
_FLOAT = ir.DataType.FLOAT


class MakeFeatures(GraphPass):
    """features [B, W, F] = float32(projection @ concat(taps)), the product in the graph's own precision."""

    name = "make-features"

    def __init__(self, spec: FeatureSpec) -> None:
        self._spec = spec

    def requires(self, model: ir.Model) -> str | None:
        return lacks_outputs(model, *self._spec.taps)

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        found = next((value for value in model.graph.outputs if value.name == FEATURES), None)
        if found is None or found.shape is None or len(found.shape) != 3 or found.dtype != _FLOAT:
            return f"{FEATURES} is not an output [B, W, F] of float32"
        return None

    def __call__(self, model: ir.Model) -> PassReport:
        graph = model.graph
        outputs = {value.name: value for value in graph.outputs}
        build = Builder(graph, FEATURES)
        taps = [outputs[name] for name in self._spec.taps]
        result = build.concat(taps, axis=-1)
        size = sum(_width(tap) for tap in taps)
        projection = self._spec.projection
        if projection is not None:
            size = projection.shape[0]
            assert taps[0].dtype is not None
            columns = np.ascontiguousarray(projection.T).astype(taps[0].dtype.numpy())
            result = build.add("MatMul", [result, _weight(graph, columns)])
        features = build.add("Cast", [result], _FLOAT, to=int(_FLOAT))
        features.name, features.shape = FEATURES, ir.Shape(["B", "W", size])
        graph.outputs.append(features)
        return PassReport(self.name, 1)


class DropHiddenStates(GraphPass):
    """No output is a hidden state, and no node served only one."""

    name = "drop-hidden-states"

    def __call__(self, model: ir.Model) -> PassReport:
        dropped = [value for value in model.graph.outputs if (value.name or "").startswith(HIDDEN_PREFIX)]
        for value in dropped:
            model.graph.outputs.remove(value)
        RemoveUnusedNodesPass()(model)
        return PassReport(self.name, len(dropped), () if dropped else ("the graph has no hidden states",))

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        left = [value.name for value in model.graph.outputs if (value.name or "").startswith(HIDDEN_PREFIX)]
        return f"{left[0]} is an output" if left else has_idle_node(model)


def _weight(graph: ir.Graph, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> ir.Value:
    name = f"{FEATURES}.projection"
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def _width(tap: ir.Value) -> int:
    assert tap.shape is not None and isinstance(tap.shape[-1], int), "hidden sizes are static"
    return tap.shape[-1]


class DropUnusedInputs(GraphPass):
    """Every graph input is read by a node."""

    name = "drop-unused-inputs"

    def __call__(self, model: ir.Model) -> PassReport:
        RemoveUnusedNodesPass()(model)
        unused = [value for value in model.graph.inputs if not value.uses()]
        for value in unused:
            model.graph.inputs.remove(value)
        return PassReport(self.name, len(unused), () if unused else ("every input is read",))

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        left = next((value for value in model.graph.inputs if not value.uses()), None)
        return has_idle_node(model) if left is None else f"no node reads the input {left.name}"
