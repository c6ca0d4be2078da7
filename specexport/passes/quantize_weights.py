"""Linear layers, the LM head and the embedding table over integer weights.

Owns which layer becomes what. A table that is both embedding and LM head is stored once. Runs behind the fusions, so
that packed projections are one layer.
"""

import onnx_ir as ir

from specexport.errors import CheckpointUnsupported
from specexport.graph.plan import LinearPlan, WeightPlan
from specexport.passes import GraphPass, PassReport
from specexport.passes.graph_builder import Builder
from specexport.passes.linear_layers import (
    LOGITS,
    LinearLayer,
    constant_products,
    is_table_lookup,
    linear_layer,
    products_behind,
    replace_output,
)
from specexport.passes.quantized_linear import StoredWeights, look_up, multiply, store_weights

_PREFIX = "quantized"
ROUNDED = "rounded to the nearest integer of a new grid"


class QuantizeWeights(GraphPass):
    """The planned layers read integer weights; every scale of an activation belongs to one row."""

    name = "quantize-weights"

    def requires(self, model: ir.Model) -> str | None:
        for node in constant_products(model.graph):
            if (matrix := node.inputs[1]) is not None and matrix.dtype != ir.DataType.FLOAT:
                return f"the weights of {node.name} are {matrix.dtype}, expected fp32"
        return None

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        """No layer of the graph before the pass is left whose plan is integer weights."""
        heads = set(products_behind(model.graph, LOGITS))
        for node in model.graph:
            plan = self._plan.lm_head if node in heads else self._plan.linear
            made = (node.name or "").startswith(_PREFIX)
            if plan.format != "fp32" and not made and linear_layer(node) is not None:
                return f"{node.name} reads fp32 weights"
        return None

    def __init__(self, plan: WeightPlan) -> None:
        self._plan = plan

    def __call__(self, model: ir.Model) -> PassReport:
        graph = model.graph
        build = Builder(graph, _PREFIX)
        stored: dict[ir.Value, StoredWeights] = {}
        reasons: list[str] = []
        layers = [found for node in graph if (found := linear_layer(node)) is not None]
        heads = {layer.weights for layer in layers if layer.node in set(products_behind(graph, LOGITS))}
        tables = [node for node in graph if is_table_lookup(node)]
        looked_up = {node.inputs[0] for node in tables}
        changed = 0
        for layer in layers:
            plan = self._plan.lm_head if layer.weights in heads else self._plan.linear
            if plan.format == "fp32":
                reasons.append(f"{layer.node.name}: the recipe keeps it in fp32")
                continue
            if layer.weights not in stored:
                self._require_whole_blocks(layer, plan)
                stored[layer.weights] = store_weights(
                    build, layer.matrix(), plan, self._plan.block, minima=layer.weights not in looked_up
                )
            rows = layer.node.inputs[0]
            assert rows is not None
            replace_output(layer.node, multiply(build, rows, stored[layer.weights]))
            changed += 1
        for node in tables:
            changed += self._quantise_table(build, node, stored)
        graph.sort()
        model.opset_imports.setdefault("com.microsoft", 1)
        return PassReport(self.name, changed, (*reasons, *_describe(stored)))

    def _require_whole_blocks(self, layer: LinearLayer, plan: LinearPlan) -> None:
        """Check the block: the second plane of a row is cut into blocks; a block that is not full has none."""
        size = layer.size
        if plan.activations == "fine" and size % self._plan.block:
            fitting = [str(block) for block in (16, 32, 64, 128) if size % block == 0]
            cure = (
                f"choose block {' or '.join(fitting)}, or activations blocks" if fitting else "choose blocks"
            )
            raise CheckpointUnsupported(
                f"found {self._plan.block} with activations fine, expected one that divides {size}, the "
                f"inputs of {layer.node.name}; {cure}",
                key="weights.block",
            )

    def _quantise_table(self, build: Builder, node: ir.Node, stored: dict[ir.Value, StoredWeights]) -> bool:
        table, ids = node.inputs
        assert table is not None and ids is not None and table.const_value is not None
        plan = self._plan.lm_head
        if plan.format == "fp32" or int(table.shape[1]) % self._plan.block:  # type: ignore[index, arg-type]
            return False
        known = stored.get(table)
        if known is None or known.blocks is None or known.blocks.bits != 8:
            matrix = table.const_value.numpy()
            known = store_weights(build, matrix, LinearPlan("int8"), self._plan.block, minima=False)
            stored[table] = known
        replace_output(node, look_up(build, ids, known))
        return True


def _describe(stored: dict[ir.Value, StoredWeights]) -> tuple[str, ...]:
    """How many matrices kept the checkpoint's numbers."""
    if not stored:
        return ("no linear layer over constant fp32 weights",)
    rounded = sum(weights.rounded for weights in stored.values())
    kept = sum(weights.exact == 1.0 for weights in stored.values())
    moved = len(stored) - kept - rounded
    line = f"{kept} of {len(stored)} weight matrices keep every number of the checkpoint"
    if moved:
        line += f", {moved} the distances in each block, moved together by some thousandths of a step"
    return (f"{line}, {rounded} are {ROUNDED}" if rounded else line,)
