"""Attention over a cache that is only read, and new rows that are not in it yet: one softmax over both.

Owns the match of the canonical pattern (two `TensorScatter` and one `Attention`) and its split form. Scores are
normalised in float32. The heads of a group become rows, so no key is repeated.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from specexport.export.adapter import FULL_WINDOW, WINDOW_PROPERTY
from specexport.passes.graph_builder import Builder

SPLIT_PROPERTY = "specexport.split_attention"
"""On the last node of an attention written as primitive operators: the name of the node it was."""

_FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class SplitAttention:
    """What one `Attention` node reads, and the sizes that do not depend on the run."""

    query: ir.Value  # [B, heads, w, head_dim]
    past_key: ir.Value  # [B, kv_heads, capacity, head_dim]
    past_value: ir.Value
    mask: ir.Value  # [B, 1, w, capacity] bool
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    capacity: int
    scale: float
    softcap: float

    def emit(
        self,
        build: Builder,
        query: ir.Value,
        mask: ir.Value,
        lengths: ir.Value,
        *,
        keys: ir.Value,
        values: ir.Value,
        new_mask: ir.Value,
    ) -> ir.Value:
        """[B, heads, w, value_dim] of `query` over the first `lengths` [B] cache rows and new rows [B, kv_heads, n, D].

        `mask` is the canonical one for this query, of which only the cached columns count; `new_mask` is [B, 1, w, n].
        """
        groups = self.heads // self.kv_heads
        assert query.dtype is not None
        factor = build.constant(np.array(self.scale, query.dtype.numpy()))
        rows = build.add("Mul", [query, factor])
        rows = build.add("Reshape", [rows, build.constant(np.array([0, self.kv_heads, -1, self.head_dim]))])
        cached = build.add("And", [mask, self._committed(build, lengths)])
        scores = build.add(
            "Concat",
            [
                self._scores(build, rows, self.past_key, build.concat([cached] * groups, axis=2)),
                self._scores(build, rows, keys, build.concat([new_mask] * groups, axis=2)),
            ],
            axis=3,
        )
        weights = build.add("Cast", [build.add("Softmax", [scores], axis=-1)], query.dtype, to=_dtype(query))
        sizes = build.add("Concat", [build.constant(np.array([self.capacity])), build.size(keys, 2)], axis=0)
        old, new = build.add_split(weights, sizes, axis=3, parts=2)
        mixed = build.add(
            "Add", [build.add("MatMul", [old, self.past_value]), build.add("MatMul", [new, values])]
        )
        return build.add("Reshape", [mixed, build.constant(np.array([0, self.heads, -1, self.value_dim]))])

    def _committed(self, build: Builder, lengths: ir.Value) -> ir.Value:
        """[B, 1, 1, capacity]: rows that were in the cache before this graph ran."""
        columns = build.constant(np.arange(self.capacity)[None, None, None, :])
        ends = build.add("Unsqueeze", [lengths, build.constant(np.array([1, 2, 3]))])
        return build.add("Less", [columns, ends], ir.DataType.BOOL)

    def _scores(self, build: Builder, rows: ir.Value, keys: ir.Value, mask: ir.Value) -> ir.Value:
        """[B, kv_heads, rows, columns] in float32, hidden columns at the lowest finite number."""
        columns = build.add("Transpose", [keys], perm=(0, 1, 3, 2))
        scores = build.add("Cast", [build.add("MatMul", [rows, columns])], _FLOAT, to=int(_FLOAT))
        if self.softcap:
            cap = build.constant(np.array(self.softcap, np.float32))
            scores = build.add("Mul", [build.add("Tanh", [build.add("Div", [scores, cap])]), cap])
        lowest = build.constant(np.array(np.finfo(np.float32).min, np.float32))
        return build.add("Where", [mask, scores, lowest], _FLOAT)


def match_attention(node: ir.Node) -> SplitAttention | str:
    """Return what the node reads, or the reason why it cannot be split."""
    query, key, value, mask = node.inputs[:4] if len(node.inputs) >= 4 else (None,) * 4
    writes = [v.producer() if v is not None else None for v in (key, value)]
    if query is None or mask is None or any(w is None or w.op_type != "TensorScatter" for w in writes):
        return "key or value is not a cache written by TensorScatter"
    if node.metadata_props.get(WINDOW_PROPERTY, str(FULL_WINDOW)) != str(FULL_WINDOW):
        return "the layer has a sliding window, which the new rows would need too"
    past_key, past_value = (w.inputs[0] for w in writes if w is not None)
    shapes = [v.shape for v in (query, past_key, past_value) if v is not None and v.shape is not None]
    if past_key is None or past_value is None or len(shapes) != 3:
        return "a shape is unknown"
    sizes = [shape[axis] for shape in shapes for axis in (1, 3)] + [shapes[1][2]]
    heads, head_dim, kv_heads, _, _, value_dim, capacity = (s if isinstance(s, int) else -1 for s in sizes)
    if -1 in (heads, head_dim, kv_heads, value_dim, capacity):
        return "head counts, head sizes or the capacity are not static"
    return SplitAttention(
        query, past_key, past_value, mask, heads, kv_heads, head_dim, value_dim, capacity,
        node.attributes.get_float("scale", head_dim**-0.5), node.attributes.get_float("softcap", 0.0),
    )  # fmt: skip


def _dtype(value: ir.Value) -> int:
    assert value.dtype is not None
    return int(value.dtype)
