"""Weights that two paths of a graph share stay one tensor: fusions pack them anew for each path."""

import onnx_ir as ir
from onnx_ir.passes.common import DeduplicateHashedInitializersPass

from specexport.passes import PassReport


class MergeEqualWeights:
    name = "merge-equal-weights"
    requires = "nothing"
    ensures = "no two initializers of the same content"

    def __call__(self, model: ir.Model) -> PassReport:
        before = len(model.graph.initializers)
        DeduplicateHashedInitializersPass()(model)
        changed = before - len(model.graph.initializers)
        return PassReport(self.name, changed, () if changed else ("no two weights are equal",))
