"""Lowering for TensorRT keeps what the graph computes, and each pass says why it did not fire."""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray

from specexport.passes import PassReport, run_passes
from specexport.tensorrt.lowering import split_attention_names, tensorrt_passes
from tests.specexport.tensorrt.tiny_graphs import CAPACITY, tiny_graph

WIDTH, COMMITTED = 6, 9
# Two children of node 0, and grandchildren of the first.
TREE = np.array(
    [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 0, 1, 0, 0, 1],
    ],
    bool,
)
DEPTH = np.array([0, 1, 1, 2, 2, 2])


def _reports(model: ir.Model) -> dict[str, PassReport]:
    return {report.name: report for report in run_passes(model, tensorrt_passes(1))}


def _run(model: ir.Model, mask: NDArray[np.bool_]) -> list[NDArray[np.float32]]:
    """Every output for one window over random weights and a random cache."""
    session = ort.InferenceSession(
        ir.serde.serialize_model(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    random = np.random.default_rng(3)
    feeds: dict[str, NDArray[np.generic]] = {
        "input_ids": random.integers(0, 250, (1, WIDTH)),
        "position_ids": (DEPTH + COMMITTED)[None],
        "cache_length": np.array([COMMITTED]),
        "window_mask": mask[None],
        "logits_rows": np.arange(WIDTH)[None],
    }
    for value in session.get_inputs():
        if value.name.startswith("past_"):
            shape = [size if isinstance(size, int) else 1 for size in value.shape]
            feeds[value.name] = random.standard_normal(shape).astype(np.float32)
    return session.run(None, feeds)  # type: ignore[no-any-return]


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
@pytest.mark.parametrize("mask", [np.tri(WIDTH, dtype=bool), TREE], ids=["chain", "tree"])
def test_lowered_graph_computes_the_canonical_graph(architecture: str, mask: NDArray[np.bool_]) -> None:
    canonical = tiny_graph(architecture, torch.float32)
    expected = _run(canonical, mask)
    run_passes(canonical, tensorrt_passes(1))
    for found, wanted in zip(_run(canonical, mask), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5)


def test_grouped_heads_fire_once_per_layer_and_keep_the_bindings() -> None:
    model = tiny_graph("llama")
    names = [value.name for value in (*model.graph.inputs, *model.graph.outputs)]
    reports = _reports(model)
    fired = ("fold-scale", "group-queries", "anchor-mask", "flatten-key")
    assert [reports[name].changed for name in fired] == [2, 2, 2, 2]
    assert names == [value.name for value in (*model.graph.inputs, *model.graph.outputs)]
    shapes = {value.name: value.shape for value in model.graph.inputs}
    assert shapes["past_key.0"] == ir.Shape([1, 2, CAPACITY, 32])


def test_a_pass_that_does_not_fire_says_why() -> None:
    model = tiny_graph("gpt2")
    reports = _reports(model)
    assert reports["group-queries"].changed == 0
    assert "each query head has its own key head" in reports["group-queries"].reasons[0]
    again = _reports(model)
    assert again["fix-batch"].reasons == ("no shape has the symbol B: the batch is fixed already",)
    assert "the scale is 1 already" in again["fold-scale"].reasons[0]
    assert "the mask comes from an Or already" in again["anchor-mask"].reasons[0]
    assert "the key is not what TensorScatter wrote" in again["flatten-key"].reasons[0]


def test_softcap_attention_is_split_and_named() -> None:
    model = tiny_graph("gemma2")
    attention = tuple(node.name for node in model.graph if node.op_type == "Attention")
    assert _reports(model)["split-softcap"].changed == 2
    assert split_attention_names(model) == attention
    assert not any(node.op_type == "Attention" for node in model.graph)


def test_a_graph_without_attention_is_reported() -> None:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 24}, name="empty")
    reports = _reports(ir.Model(graph, ir_version=10))
    assert reports["fold-scale"].reasons == ("the graph has no Attention node",)
