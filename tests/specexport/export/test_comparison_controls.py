"""Negative controls: graphs that are wrong in one place must fail the comparison that right ones pass."""

from pathlib import Path

import onnx_ir as ir
import pytest

from specexport.graph.files import GRAPH_NAME, save_graph
from tests.specexport.export.comparison import CAPACITY, Graph, Shape, compare_chain, random_ids, run_eager
from tests.specexport.export.exported import ONNXRUNTIME, Exported, ExportedArchitectures, random_model

SHAPE = Shape(fills=(20,), valid=(6,), width=6)


@pytest.mark.parametrize("error", [-1, 1])
@pytest.mark.parametrize("variant", ["canonical", "onnxruntime"])
def test_a_sliding_window_off_by_one_is_seen(
    exported: ExportedArchitectures, variant: str, error: int
) -> None:
    """The reference with a window of 6 or 8 rows against graphs with 7."""
    found = exported["mistral"]
    sizes = dict(found.architecture.sizes)
    wrong = random_model("mistral", sizes | {"sliding_window": sizes["sliding_window"] + error})
    references = [run_eager(wrong, random_ids(0, CAPACITY))]
    assert compare_chain(found.graph(variant), references, SHAPE).logits > 1e-2


def test_a_kernel_window_off_by_one_is_seen(exported: ExportedArchitectures, tmp_path: Path) -> None:
    def widen(node: ir.Node) -> None:
        window = node.attributes.get_int("local_window_size", 0)
        node.attributes["local_window_size"] = ir.AttrInt64("local_window_size", window + 1)

    graph = _edited(exported["mistral"], tmp_path, widen)
    assert compare_chain(graph, exported["mistral"].references, SHAPE).logits > 1e-3


@pytest.mark.parametrize("attribute", ["softcap", "scale"])
def test_a_lost_attention_attribute_is_seen(
    exported: ExportedArchitectures, tmp_path: Path, attribute: str
) -> None:
    graph = _edited(exported["gemma2"], tmp_path, lambda node: node.attributes.pop(attribute))
    assert compare_chain(graph, exported["gemma2"].references, SHAPE).logits > 1e-3


def _edited(found: Exported, directory: Path, edit: object) -> Graph:
    """ONNX Runtime's variant with `edit` applied to every attention node."""
    model = ir.load(found.path(ONNXRUNTIME))
    for node in model.graph:
        if node.op_type == "GroupQueryAttention":
            edit(node)  # type: ignore[operator]
    save_graph(model, directory)
    return Graph(directory / GRAPH_NAME)
