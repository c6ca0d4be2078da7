"""`GroupQueryAttention` serves trees: what a window row may see travels as a bias, computed once a run.

The kernel is causal by row and its own sliding window counts rows; in a tree a row sees its ancestors only, and a
sliding window counts positions. Both become part of `attention_bias` [B, 1, W, total], 0 where a row may look and the
lowest number where it may not. Ancestors come before their descendants, so the kernel's own rule hides nothing more.
"""

import numpy as np
import onnx_ir as ir

from specexport.export.adapter import FULL_WINDOW
from specexport.passes import FUSED_DOMAIN, GraphPass, PassReport, lacks_inputs, nodes_of
from specexport.passes.graph_builder import Builder

BIAS = 10
"""Index of `attention_bias` among the inputs of the operator."""
_TOTAL = 6
_BOOL, _INT64 = ir.DataType.BOOL, ir.DataType.INT64


class TreeBias(GraphPass):
    """Windows may be trees: window_mask and position_ids decide what a row sees."""

    name = "tree-bias"

    def requires(self, model: ir.Model) -> str | None:
        attends = next(nodes_of(model, "GroupQueryAttention", FUSED_DOMAIN), None) is not None
        return lacks_inputs(model, "window_mask", "position_ids", "cache_length") if attends else None

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        for node in nodes_of(model, "GroupQueryAttention", FUSED_DOMAIN):
            if len(node.inputs) <= BIAS or node.inputs[BIAS] is None:
                return f"{node.name} has no bias"
            if "local_window_size" in node.attributes:
                return f"{node.name} counts its window in rows"
        return None

    def __call__(self, model: ir.Model) -> PassReport:
        graph = model.graph
        nodes = [n for n in graph if n.op_type == "GroupQueryAttention" and n.domain == "com.microsoft"]
        if not nodes:
            return PassReport(
                self.name, 0, ("no GroupQueryAttention: Attention reads the window mask itself",)
            )
        total = nodes[0].inputs[_TOTAL]
        assert total is not None
        window = _Visibility(graph, total)
        biases: dict[tuple[int, ir.DataType | None], ir.Value] = {}
        for node in nodes:
            query = node.inputs[0]
            assert query is not None
            key = (node.attributes.get_int("local_window_size", FULL_WINDOW), query.dtype)
            if key not in biases:
                biases[key] = window.bias(*key)
            node.replace_input_with(BIAS, biases[key])
            node.attributes.pop("local_window_size", None)
        graph.sort()
        return PassReport(self.name, len(nodes))


class _Visibility:
    """Which of the `total` rows in use each window row may see. T stands for `total`."""

    def __init__(self, graph: ir.Graph, total: ir.Value) -> None:
        inputs = {value.name: value for value in graph.inputs}
        self._build = build = Builder(graph, "tree")
        self._positions = inputs["position_ids"]
        mask = inputs["window_mask"]
        zero, one = (build.constant(np.array(number)) for number in (0, 1))
        end = build.add("Cast", [total], _INT64, to=int(_INT64))
        self._rows = build.add("Range", [zero, end, one])  # [T]
        node = build.add(
            "Sub", [self._rows, build.unsqueeze(inputs["cache_length"], 1)]
        )  # [B, T] window row held
        width = build.size(mask, 2)
        committed = build.add("Less", [node, zero], _BOOL)
        self._in_window = build.add(
            "And", [build.add("Not", [committed]), build.add("Less", [node, width], _BOOL)]
        )
        last = build.add("Sub", [width, one])
        self._node = build.add("Min", [build.add("Max", [node, zero]), last])
        every_row = build.add(
            "Concat", [build.size(mask, 0), build.size(mask, 1), build.size(self._rows, 0)], axis=0
        )
        index = build.add("Expand", [build.unsqueeze(self._node, 1), every_row])
        ancestor = build.add("GatherElements", [mask, index], axis=2)  # [B, W, T]
        in_window = build.add("And", [build.unsqueeze(self._in_window, 1), ancestor])
        self._visible = build.add("Or", [build.unsqueeze(committed, 1), in_window])

    def bias(self, window: int, dtype: ir.DataType | None) -> ir.Value:
        """[B, 1, W, T] for layers that look back `window` positions."""
        build = self._build
        visible = self._visible
        if window != FULL_WINDOW:
            held = build.add("GatherElements", [self._positions, self._node], axis=1)
            positions = build.add("Where", [self._in_window, held, self._rows], _INT64)  # [B, T]
            distance = build.add("Sub", [build.unsqueeze(self._positions, 2), build.unsqueeze(positions, 1)])
            near = build.add("Less", [distance, build.constant(np.array(window))], _BOOL)
            visible = build.add("And", [visible, near])
        assert dtype is not None
        number = dtype.numpy()
        # Finite: a padding row that sees nothing must not write NaN into the cache.
        lowest = np.finfo(number).min if dtype != ir.DataType.BFLOAT16 else np.finfo(np.float32).min
        limits = [build.constant(np.array(value, number)) for value in (0.0, lowest)]
        return build.add("Where", [build.unsqueeze(visible, 1), *limits], dtype)
