"""Graph inputs that no node reads any more are removed, so that a runtime need not feed them."""

import onnx_ir as ir
from onnx_ir.passes.common import DeduplicateHashedInitializersPass, RemoveUnusedNodesPass

from specexport.passes import GraphPass, PassReport
from specexport.passes.contracts import has_idle_node

_COMPARED = 256  # numbers of a weight


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


class MergeEqualWeights(GraphPass):
    """No two weights have the same content."""

    name = "merge-equal-weights"

    def __call__(self, model: ir.Model) -> PassReport:
        before = len(model.graph.initializers)
        DeduplicateHashedInitializersPass()(model)
        changed = before - len(model.graph.initializers)
        return PassReport(self.name, changed, () if changed else ("no two weights are equal",))

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        """Look at small weights only: comparing all of a large model again takes seconds."""
        known: dict[object, str | None] = {}
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.size > _COMPARED or value.is_graph_output():
                continue
            content = (tensor.dtype, tuple(tensor.shape), tensor.tobytes())
            if content in known:
                return f"{known[content]} and {value.name} are equal"
            known[content] = value.name
        return None
