"""The batch becomes a number: the recipe fixes it, and TensorRT specialises on what it knows."""

import onnx_ir as ir

from specexport.passes import PassReport


class FixBatch:
    """Replaces the symbol `B` by `batch` in the shape of every value."""

    name = "fix-batch"
    requires = "the batch written as the symbol B, as traced"
    ensures = "the batch is a number in every shape"

    def __init__(self, batch: int) -> None:
        self._batch = batch

    def __call__(self, model: ir.Model) -> PassReport:
        changed = sum(self._fix(value) for value in _values(model.graph))
        reasons = () if changed else ("no shape has the symbol B: the batch is fixed already",)
        return PassReport(self.name, changed, reasons)

    def _fix(self, value: ir.Value) -> bool:
        if value.shape is None or not any(_is_batch(dimension) for dimension in value.shape):
            return False
        value.shape = ir.Shape(
            [self._batch if _is_batch(dimension) else dimension for dimension in value.shape]
        )
        return True


def _is_batch(dimension: object) -> bool:
    return isinstance(dimension, ir.SymbolicDim) and dimension.value == "B"


def _values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *(output for node in graph for output in node.outputs)]
