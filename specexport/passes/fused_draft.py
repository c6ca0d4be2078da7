"""k greedy draft steps as one graph: the canonical graph copied k times, each copy fed the argmax of the one before.

The first copy takes a window of W tokens (two while drafting, so that catching up after full acceptance needs no launch
of its own; more for a prompt), the others one token. The cache is only read inside: new key and value rows stay small
tensors, attention is one softmax over [cache rows | new rows], and each cache is written once, at the end, with
W + k - 1 rows. What a chunk of a prompt drafts is thrown away: its rows lie behind the committed ones and are written
over.

Same inputs as the canonical graph, with one row in `logits_rows`: the last valid one, where drafting starts. `top_ids`
are the [B, k] drafted ids and `logits` [B, 1, vocab] those of the first.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from specexport.passes import GraphPass, PassReport, first_of, lacks_inputs, lacks_outputs, nodes_of
from specexport.passes.graph_builder import Builder
from specexport.passes.window_attention import SPLIT_PROPERTY, SplitAttention, match_attention


@dataclass
class _Step:
    """One copy of the graph: what it reads in place of the graph inputs, and its new rows by cache."""

    inputs: dict[str, ir.Value]
    new_mask: ir.Value  # [B, 1, w, new rows so far] which new rows a query sees
    values: dict[ir.Value, ir.Value] = field(default_factory=dict)  # canonical value -> this copy's


class FuseDraftSteps(GraphPass):
    """k steps in one graph, each cache read in place and written once."""

    name = "fuse-draft-steps"

    def __init__(self, k: int) -> None:
        assert k >= 1
        self._k = k

    def requires(self, model: ir.Model) -> str | None:
        return first_of(
            lacks_inputs(model, "input_ids", "position_ids", "cache_length", "logits_rows", "window_mask"),
            lacks_outputs(model, "logits", "top_ids"),
        )

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        if not report.changed:
            return None
        caches = sum((value.name or "").startswith("present_") for value in model.graph.outputs)
        if (written := sum(1 for _ in nodes_of(model, "TensorScatter"))) != caches:
            return f"{caches} caches are written {written} times"
        drafted = next(value.shape for value in model.graph.outputs if value.name == "top_ids")
        return None if drafted is not None and drafted[1] == self._k else f"top_ids is {drafted}"

    def __call__(self, model: ir.Model) -> PassReport:
        graph = model.graph
        matches = {node: match_attention(node) for node in graph if node.op_type == "Attention"}
        reasons = tuple(f"{node.name}: {found}" for node, found in matches.items() if isinstance(found, str))
        scatters = [node for node in graph if node.op_type == "TensorScatter"]
        if reasons or not matches or len(scatters) != 2 * len(matches):
            return PassReport(self.name, 0, reasons or ("not every KV cache is read by one Attention node",))
        body = list(graph)
        copier = _Copier(graph, body, {n: m for n, m in matches.items() if not isinstance(m, str)})
        copier.run(self._k)
        graph.remove(body, safe=False)
        return PassReport(self.name, self._k)


class _Copier:
    """Builds the copies behind the canonical nodes, which are removed afterwards."""

    def __init__(
        self, graph: ir.Graph, body: list[ir.Node], attention: dict[ir.Node, SplitAttention]
    ) -> None:
        self._graph, self._body, self._attention = graph, body, attention
        self._build = Builder(graph)
        self._inputs = {value.name: value for value in graph.inputs if value.name is not None}
        self._new_rows: dict[ir.Value, list[ir.Value]] = {}  # past cache -> rows of each step

    def run(self, k: int) -> None:
        names = {value.name: value for value in self._graph.outputs}
        tokens: list[ir.Value] = []
        logits: ir.Value | None = None
        for depth in range(k):
            step = self._first() if depth == 0 else self._next(depth, tokens[-1])
            self._copy(step)
            tokens.append(step.values[names["top_ids"]])
            logits = logits or step.values[names["logits"]]
        assert logits is not None
        self._finish(names, logits, tokens)

    def _first(self) -> _Step:
        inputs = dict(self._inputs)
        return _Step(inputs, self._build.unsqueeze(inputs["window_mask"], 1))

    def _next(self, depth: int, token: ir.Value) -> _Step:
        """Return a width-1 window of the token drafted last, `depth` positions after the row that drafting started
        from.
        """
        build, given = self._build, self._inputs
        start = build.add("GatherElements", [given["position_ids"], given["logits_rows"]], axis=1)  # [B, 1]
        position = build.add("Add", [start, build.constant(np.array([[depth]]))])
        zeros = build.add("Sub", [position, position])
        seen = build.unsqueeze(
            build.add("Equal", [position, position], ir.DataType.BOOL), 2
        )  # [B, 1, 1] true
        inputs = {
            **given,
            "input_ids": token,
            "position_ids": position,
            "logits_rows": zeros,
            "window_mask": seen,
        }
        mask = build.add("Concat", [self._ancestors(), *[seen] * depth], axis=2)  # [B, 1, W + depth]
        return _Step(inputs, build.unsqueeze(mask, 1))

    def _ancestors(self) -> ir.Value:
        """[B, 1, W]: the window rows that the row drafting starts from may see, itself included."""
        build, mask = self._build, self._inputs["window_mask"]
        rows = build.unsqueeze(self._inputs["logits_rows"], 2)  # [B, 1, 1]
        sizes = build.add("Concat", [build.constant(np.array([1, 1])), build.size(mask, 2)], axis=0)
        return build.add("GatherElements", [mask, build.add("Expand", [rows, sizes])], axis=1)

    def _copy(self, step: _Step) -> None:
        for value in self._graph.inputs:
            step.values[value] = step.inputs[value.name or ""]
        for node in self._body:
            if node.op_type == "TensorScatter":
                past, rows = _present(node.inputs[:2])
                self._new_rows.setdefault(past, []).append(step.values.get(rows, rows))
            elif node in self._attention:
                step.values[node.outputs[0]] = self._attend(node, step)
            else:
                copied = self._build.copy(node, step.values)
                step.values.update(zip(node.outputs, copied, strict=True))

    def _attend(self, node: ir.Node, step: _Step) -> ir.Value:
        split = self._attention[node]
        query, mask = (step.values.get(value, value) for value in (split.query, split.mask))
        keys, values = (
            self._build.concat(self._new_rows[past], axis=2) for past in (split.past_key, split.past_value)
        )
        lengths = self._inputs["cache_length"]
        result = split.emit(
            self._build, query, mask, lengths, keys=keys, values=values, new_mask=step.new_mask
        )
        producer = result.producer()
        assert producer is not None
        producer.metadata_props[SPLIT_PROPERTY] = f"{node.name}, step {len(self._new_rows[split.past_key])}"
        return result

    def _finish(self, names: dict[str | None, ir.Value], logits: ir.Value, tokens: list[ir.Value]) -> None:
        build = self._build
        results = {"logits": logits, "top_ids": build.concat(tokens, axis=1)}
        for node in self._body:
            if node.op_type == "TensorScatter":
                past, _ = _present(node.inputs[:2])
                rows = build.concat(self._new_rows[past], axis=2)
                written = build.add(
                    "TensorScatter",
                    [past, rows, self._inputs["cache_length"]],
                    axis=node.attributes.get_int("axis", -2),
                )
                results[node.outputs[0].name or ""] = written
        padded = names["logits"].shape
        assert padded is not None
        shapes = {"logits": ir.Shape(["B", 1, padded[2]]), "top_ids": ir.Shape(["B", len(tokens)])}
        for index, output in enumerate(self._graph.outputs):
            name, result = output.name or "", results[output.name or ""]
            assert output.dtype is not None
            output.name = f"{name}_canonical"
            result.name, result.shape, result.dtype = name, shapes.get(name, output.shape), output.dtype
            self._graph.outputs[index] = result


def _present(values: Iterable[ir.Value | None]) -> list[ir.Value]:
    found = [value for value in values if value is not None]
    assert found, "TensorScatter has a cache and rows"
    return found
