"""Graph inputs that no node reads any more are removed, so that a runtime need not feed them."""

import onnx_ir as ir
from onnx_ir.passes.common import DeduplicateHashedInitializersPass, RemoveUnusedNodesPass

from specexport.passes import PassReport


class DropUnusedInputs:
    name = "drop-unused-inputs"
    requires = "nothing"
    ensures = "every graph input is read by a node"

    def __call__(self, model: ir.Model) -> PassReport:
        RemoveUnusedNodesPass()(model)
        unused = [value for value in model.graph.inputs if not value.uses()]
        for value in unused:
            model.graph.inputs.remove(value)
        return PassReport(self.name, len(unused), () if unused else ("every input is read",))


class MergeEqualWeights:
    name = "merge-equal-weights"
    requires = "nothing"
    ensures = "no two initializers of the same content"

    def __call__(self, model: ir.Model) -> PassReport:
        before = len(model.graph.initializers)
        DeduplicateHashedInitializersPass()(model)
        changed = before - len(model.graph.initializers)
        return PassReport(self.name, changed, () if changed else ("no two weights are equal",))
