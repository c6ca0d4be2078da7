"""The rewrite into GroupQueryAttention: all attention nodes or none, and a reason where none."""

from collections import Counter
from pathlib import Path

import onnx_ir as ir
import pytest

from specexport.export.adapter import WINDOW_PROPERTY
from specexport.graph.files import GRAPH_NAME, save_graph
from specexport.passes import PassReport, run_passes
from specexport.passes.group_query_attention import GroupQueryAttention
from tests.specexport.export.comparison import Graph, Shape, compare_chain
from tests.specexport.export.exported import CANONICAL, ONNXRUNTIME, Exported, ExportedArchitectures, lowering

SHAPE = Shape(fills=(20, 3), valid=(6, 2), width=6)


def canonical(found: Exported) -> ir.Model:
    return ir.load(found.path(CANONICAL))


def attention_nodes(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "Attention"]


def report_of(reports: tuple[PassReport, ...], name: str) -> PassReport:
    return next(report for report in reports if report.name == name)


def test_no_cache_write_and_no_mask_remain(exported: ExportedArchitectures) -> None:
    model = ir.load(exported["llama"].path(ONNXRUNTIME))
    operators = Counter(node.op_type for node in model.graph)
    assert operators["GroupQueryAttention"] == 2
    assert operators["Attention"] == operators["TensorScatter"] == 0
    inputs = {value.name for value in model.graph.inputs}
    assert "window_mask" not in inputs and "query_lengths" in inputs


def test_sliding_windows_are_per_layer(exported: ExportedArchitectures) -> None:
    """qwen2's first layer is full, its second one slides."""
    model = ir.load(exported["qwen2"].path(ONNXRUNTIME))
    windows = [
        node.attributes.get_int("local_window_size", -1)
        for node in model.graph
        if node.op_type == "GroupQueryAttention"
    ]
    assert windows == [-1, exported["qwen2"].architecture.sizes["sliding_window"]]


def test_a_graph_with_one_node_that_does_not_match_is_left_whole_and_right(
    exported: ExportedArchitectures, tmp_path: Path
) -> None:
    found = exported["qwen2"]
    model = canonical(found)
    attention_nodes(model)[1].metadata_props.pop(WINDOW_PROPERTY)
    reports = run_passes(model, lowering())
    report = report_of(reports, GroupQueryAttention.name)
    assert report.changed == 0
    assert f"carries no '{WINDOW_PROPERTY}'" in report.reasons[0]
    assert "all attention nodes must match" in report.reasons[-1]
    save_graph(model, tmp_path)
    graph = Graph(tmp_path / GRAPH_NAME)
    assert "window_mask" in graph.inputs
    assert compare_chain(graph, found.references, SHAPE).worst < 1e-4


@pytest.mark.parametrize(
    ("axis", "size", "reason"),
    [
        (1, None, "head counts or head sizes are not static"),
        (3, 20, "query, key and value heads differ in size"),
    ],
)
def test_shapes_the_kernel_does_not_take_are_named(
    exported: ExportedArchitectures, axis: int, size: int | None, reason: str
) -> None:
    model = canonical(exported["llama"])
    for node in attention_nodes(model):
        query = node.inputs[0]
        assert query is not None and query.shape is not None
        dims = list(query.shape)
        dims[axis] = ir.SymbolicDim("heads") if size is None else size
        query.shape = ir.Shape(dims)
    report = GroupQueryAttention()(model)
    assert report.changed == 0
    assert reason in report.reasons[0]


def test_a_head_size_the_kernel_does_not_take_is_named(exported: ExportedArchitectures) -> None:
    model = canonical(exported["llama"])
    for node in attention_nodes(model):
        for value in node.inputs[:3]:
            assert value is not None and value.shape is not None
            value.shape = ir.Shape([*value.shape[:3], 20])
    assert "head size 20 is not a multiple of 8" in GroupQueryAttention()(model).reasons[0]


def test_a_graph_without_attention_operators_says_so(exported: ExportedArchitectures) -> None:
    """Attention with sinks is written out in elementary operators."""
    report = report_of(exported["gpt_oss"].reports, GroupQueryAttention.name)
    assert (report.changed, report.reasons) == (0, ("no Attention node in the graph",))
