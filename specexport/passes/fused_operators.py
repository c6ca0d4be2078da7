"""Norms, rotary embeddings, activations and sibling projections fused by transformers' own ONNX Runtime fusions."""

import onnx_ir as ir
from transformers.exporters.onnxruntime_fusions import fuse_for_onnxruntime

from specexport.export.rewrite_rules import forget_graph
from specexport.passes import PassReport


class FuseOperators:
    name = "fuse-operators"
    requires = "the canonical graph as traced"
    ensures = "com.microsoft norms, rotary embeddings and packed projections where their patterns match"

    def __init__(self, provider: str) -> None:
        self._provider = provider

    def __call__(self, model: ir.Model) -> PassReport:
        before = len(model.graph)
        fuse_for_onnxruntime(model, self._provider)
        forget_graph()
        model.opset_imports.setdefault("com.microsoft", 1)
        changed = before - len(model.graph)
        return PassReport(self.name, changed, () if changed else ("no operator matched a fusion",))
