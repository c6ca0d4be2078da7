"""Which nodes become operators of `specruntime_kernels`, what they read, and what is said of those that do not."""

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from specexport.context import quiet
from specexport.graph.plan import GraphPlan, LinearPlan, WeightPlan, WindowPlan
from specexport.passes import run_passes
from specexport.passes.window_operators import stock_reasons
from tests.specexport.export.exported import CANONICAL, ExportedArchitectures, lowering

EXACT = ("llama", "qwen2", "qwen3", "gemma2", "gpt2", "mistral", "phi3", "olmo2", "cohere")


def windowed(exported: ExportedArchitectures, model_type: str, **plan: Any) -> ir.Model:
    model = ir.load(exported[model_type].path(CANONICAL))
    with quiet():
        run_passes(model, lowering(GraphPlan(window=WindowPlan(plan.pop("cache", "fp32")), **plan)))
    return model


def nodes_of(model: ir.Model, op_type: str) -> list[ir.Node]:
    return [node for node in model.graph if (node.op_type, node.domain) == (op_type, "specruntime")]


def activations(model: ir.Model) -> Counter[str]:
    return Counter(node.attributes["activation"].as_string() for node in nodes_of(model, "WindowMatMul"))


@pytest.mark.parametrize("model_type", EXACT)
def test_every_product_and_attention_is_an_operator(exported: ExportedArchitectures, model_type: str) -> None:
    model = windowed(exported, model_type)
    assert stock_reasons(model) == ()
    operators = Counter(node.op_type for node in model.graph)
    assert not {"MatMul", "FusedMatMul", "Gemm", "GroupQueryAttention", "TensorScatter"} & operators.keys()
    assert len(nodes_of(model, "WindowEmbedding")) == 1
    assert model.opset_imports["specruntime"] == 1
    table = nodes_of(model, "WindowEmbedding")[0].inputs[1]
    head = nodes_of(model, "WindowMatMul")[-1]
    tied = exported[model_type].model.config.tie_word_embeddings
    assert (head.inputs[1] is table) == tied, "embedding and head read the same bytes where they are tied"


def test_a_llama_layer_is_seven_operators(exported: ExportedArchitectures) -> None:
    """Packed projections, attention, output; norm; gate and up with SiLU, down; norm."""
    operators = Counter(node.op_type for node in windowed(exported, "llama").graph)
    assert (operators["WindowMatMul"], operators["WindowAttention"]) == (4 * 2 + 1, 2)
    assert not {"Split", "Sigmoid", "Mul", "MatMul", "Gather"} & operators.keys()


@pytest.mark.parametrize(
    ("model_type", "name"), [("llama", "silu"), ("gemma2", "gelu_tanh"), ("glm", "silu")]
)
def test_gate_and_up_are_one_product(exported: ExportedArchitectures, model_type: str, name: str) -> None:
    model = windowed(exported, model_type)
    gated = [n for n in nodes_of(model, "WindowMatMul") if n.attributes["activation"].as_string() == name]
    assert len(gated) == len(nodes_of(model, "WindowAttention"))
    for node in gated:
        shape, outputs = node.outputs[0].shape, node.attributes["N"].as_int()
        assert shape is not None and shape[-1] == outputs // 2


def test_biases_are_part_of_the_product(exported: ExportedArchitectures) -> None:
    products = nodes_of(windowed(exported, "gpt2"), "WindowMatMul")
    biased = [node for node in products if len(node.inputs) == 3]
    assert len(biased) == len(products) - 1, "all but the head"
    for node in biased:
        bias = node.inputs[2]
        assert bias is not None and bias.shape is not None
        assert list(bias.shape) == [node.attributes["N"].as_int()]


def test_a_sliding_window_and_a_soft_cap_are_attributes(exported: ExportedArchitectures) -> None:
    for trees in (False, True):
        attentions = nodes_of(windowed(exported, "gemma2", trees=trees), "WindowAttention")
        windows = {node.attributes.get_int("local_window_size", -1) for node in attentions}
        assert len(windows) == 2 and -1 in windows
        assert all(node.attributes.get_float("softcap", 0.0) > 0 for node in attentions)


def test_trees_are_seen_by_mask_and_positions(exported: ExportedArchitectures) -> None:
    model = windowed(exported, "llama", trees=True)
    names = {value.name for value in model.graph.inputs}
    assert {"position_ids", "window_mask", "query_lengths", "cache_length"} <= names
    for node in nodes_of(model, "WindowAttention"):
        assert [value.name if value is not None else None for value in node.inputs[9:11]] == [
            "position_ids",
            "window_mask",
        ]
    assert "Range" not in {node.op_type for node in model.graph}


def test_rows_of_an_int8_cache_hold_their_scale(exported: ExportedArchitectures) -> None:
    plain, model = windowed(exported, "llama"), windowed(exported, "llama", cache="int8")
    sizes = {value.name: value.shape for value in plain.graph.inputs}
    for value in (*model.graph.inputs, *model.graph.outputs):
        if (value.name or "").startswith(("past_", "present_")):
            assert value.dtype == ir.DataType.INT8 and value.shape is not None
            before = sizes[(value.name or "").replace("present", "past")]
            assert before is not None and list(value.shape) == [*before[:-1], int(before[-1]) + 4]  # type: ignore[arg-type]
    assert {n.attributes["cache"].as_string() for n in nodes_of(model, "WindowAttention")} == {"int8"}


@pytest.mark.parametrize("rows", ["blocks", "fine", "rows"])
def test_layers_head_and_table_have_the_planned_formats(exported: ExportedArchitectures, rows: Any) -> None:
    layers = LinearPlan("int8" if rows == "rows" else "int4", rows)
    model = windowed(exported, "qwen2", weights=WeightPlan(layers, LinearPlan("int4", "fine"), block=16))
    (table,) = nodes_of(model, "WindowEmbedding")
    for node in nodes_of(model, "WindowMatMul"):
        head = node.inputs[1] is table.inputs[1]
        expected = ("int4", "fine") if head else (layers.format, rows)
        assert (node.attributes["format"].as_string(), node.attributes["rows"].as_string()) == expected
        assert node.inputs[1] is not None and node.inputs[1].dtype == ir.DataType.UINT8
    assert table.attributes["format"].as_string() == "int4"


def test_weights_that_bf16_holds_are_stored_so(exported: ExportedArchitectures) -> None:
    model = ir.load(exported["llama"].path(CANONICAL))
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.dtype == ir.DataType.FLOAT and len(tensor.shape) == 2:
            rounded = (tensor.numpy().view(np.uint32) & 0xFFFF0000).view(np.float32)
            value.const_value = ir.tensor(rounded, name=value.name)
    with quiet():
        run_passes(model, lowering(GraphPlan(window=WindowPlan())))
    assert {n.attributes["format"].as_string() for n in nodes_of(model, "WindowMatMul")} == {"bf16"}
    assert {n.attributes["rows"].as_string() for n in nodes_of(model, "WindowMatMul")} == {"float"}


@pytest.mark.parametrize("model_type", ["gpt_oss", "mixtral"])
def test_what_stays_is_named(exported: ExportedArchitectures, model_type: str) -> None:
    reasons = stock_reasons(windowed(exported, model_type))
    assert any("MatMul is not a product of rows with a constant fp32 matrix" in reason for reason in reasons)
