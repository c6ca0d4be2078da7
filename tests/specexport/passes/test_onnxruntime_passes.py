"""What the pass list for ONNX Runtime leaves behind, and that a pass which does nothing says why."""

import gc
from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from specexport.graph.files import GRAPH_NAME, save_graph
from specexport.passes import PassReport, run_passes
from specexport.passes.attention_rotary import RotateInAttention
from specexport.passes.group_query_attention import FlattenHeads, PackAttentionInputs
from specexport.passes.interface import DropUnusedInputs
from tests.specexport.export.comparison import Graph, Shape, chain_step, fill_cache
from tests.specexport.export.exported import CANONICAL, ONNXRUNTIME, Exported, ExportedArchitectures, lowering

SHAPE = Shape(fills=(20, 3), valid=(6, 2), width=6)


def lowered(found: Exported) -> ir.Model:
    return ir.load(found.path(ONNXRUNTIME))


def report_of(found: Exported, name: str) -> PassReport:
    return next(report for report in found.reports if report.name == name)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gpt2", "gpt_oss", "phi3"])
def test_a_pass_that_did_nothing_says_why(exported: ExportedArchitectures, model_type: str) -> None:
    for report in exported[model_type].reports:
        assert report.changed or report.reasons, f"{report.name} on {model_type}"


def test_a_llama_layer_is_ten_operators(exported: ExportedArchitectures) -> None:
    """Projections, attention and output; norm; gate and up, split, activation, two products, down; norm."""
    operators = Counter(node.op_type for node in lowered(exported["llama"]).graph)
    per_layer = {
        "MatMul": 4 * 2 + 1,  # and the LM head
        "GroupQueryAttention": 2,
        "SkipSimplifiedLayerNormalization": 2 * 2,
        "Split": 2,
        "Sigmoid": 2,  # with one Mul it becomes QuickGelu when ONNX Runtime loads the graph
        "Mul": 2 * 2,
        "RotaryEmbedding": 0,
        "Cos": 0,
    }
    assert {name: operators[name] for name in per_layer} == per_layer
    assert "position_ids" not in {value.name for value in lowered(exported["llama"]).graph.inputs}


def test_rotating_inside_attention_changes_no_bit(exported: ExportedArchitectures, tmp_path: Path) -> None:
    found = exported["llama"]
    logits = []
    folding = (RotateInAttention, PackAttentionInputs)
    for index, left_out in enumerate(((), folding)):
        model = ir.load(found.path(CANONICAL))
        run_passes(model, [p for p in lowering() if not isinstance(p, left_out)])
        (tmp_path / str(index)).mkdir()
        save_graph(model, tmp_path / str(index))
        graph = Graph(tmp_path / str(index) / GRAPH_NAME)
        cache = graph.empty_cache(len(SHAPE.fills), 0.0)
        fill_cache(cache, found.references, SHAPE.fills)
        found_logits, _ = graph.run(chain_step(found.references, SHAPE), cache)
        logits.append([found_logits[row, :valid] for row, valid in enumerate(SHAPE.valid)])
    for with_folding, without in zip(*logits, strict=True):
        np.testing.assert_array_equal(with_folding, without)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("gpt2", "query and key do not come from a RotaryEmbedding operator"),
        ("mistral", "head size 24 is not a multiple of 16"),
        ("gpt_oss", "no GroupQueryAttention"),
    ],
)
def test_attention_that_is_not_rotated_inside_says_why(
    exported: ExportedArchitectures, model_type: str, reason: str
) -> None:
    report = report_of(exported[model_type], RotateInAttention.name)
    assert report.changed == 0
    assert reason in report.reasons[0]


def test_a_rotary_table_that_depends_on_tokens_is_left_in_the_graph(exported: ExportedArchitectures) -> None:
    """Positions taken from the ids of the window: no table can hold that."""
    model = ir.load(exported["llama"].path(CANONICAL))
    inputs = {value.name: value for value in model.graph.inputs}
    inputs["position_ids"].replace_all_uses_with(inputs["input_ids"])
    reports = run_passes(model, lowering())
    report = next(report for report in reports if report.name == RotateInAttention.name)
    assert report.changed == 0
    assert "depends on input_ids, not on positions alone" in report.reasons[0]


def test_projections_that_biases_part_say_why_they_are_not_packed(exported: ExportedArchitectures) -> None:
    report = report_of(exported["qwen2"], PackAttentionInputs.name)
    assert report.changed == 0
    assert "not the parts of one Split" in report.reasons[0]


@pytest.mark.parametrize("variant", [CANONICAL, ONNXRUNTIME])
@pytest.mark.parametrize("model_type", ["qwen2", "gemma2", "gpt2"])
def test_a_tied_embedding_is_stored_once(
    exported: ExportedArchitectures, model_type: str, variant: str
) -> None:
    found = exported[model_type]
    table = tuple(found.model.get_parameter_or_buffer("lm_head.weight").shape)
    model = ir.load(found.path(variant))
    shapes = [
        tuple(value.const_value.shape) for value in model.graph.initializers.values() if value.const_value
    ]
    assert sum(shape in (table, table[::-1]) for shape in shapes) == 1


def test_inverse_transposes_vanish_and_others_stay() -> None:
    x = ir.Value(name="x", shape=ir.Shape([1, 2, 3, 4]), type=ir.TensorType(ir.DataType.FLOAT))
    there = ir.node("Transpose", [x], attributes={"perm": [0, 2, 1, 3]})
    back = ir.node("Transpose", there.outputs, attributes={"perm": [0, 2, 1, 3]})
    other = ir.node("Transpose", there.outputs, attributes={"perm": [0, 1, 3, 2]})
    total = ir.node("Shape", back.outputs)
    graph = ir.Graph(
        [x], [other.outputs[0], total.outputs[0]], nodes=[there, back, other, total], opset_imports={"": 24}
    )
    report = FlattenHeads()(ir.Model(graph, ir_version=10))
    assert report.changed == 1
    assert total.inputs[0] is x
    assert other.inputs[0] is there.outputs[0]


def test_inputs_that_nothing_reads_are_dropped() -> None:
    read, unread = ir.Value(name="read"), ir.Value(name="unread")
    node = ir.node("Identity", [read])
    graph = ir.Graph([read, unread], node.outputs, nodes=[node], opset_imports={"": 24})
    model = ir.Model(graph, ir_version=10)
    assert DropUnusedInputs()(model).changed == 1
    assert [value.name for value in model.graph.inputs] == ["read"]
    assert DropUnusedInputs()(model).reasons == ("every input is read",)


def test_no_rewrite_rule_keeps_the_weights_of_a_graph(exported: ExportedArchitectures) -> None:
    """onnxscript's rules would hold the last graph until the end of the process."""
    model = ir.load(exported["llama"].path(CANONICAL))
    run_passes(model, lowering())
    weights = {id(value) for value in model.graph.initializers.values()}
    del model
    gc.collect()
    kept = [value for value in gc.get_objects() if isinstance(value, ir.Value) and id(value) in weights]
    assert len(kept) <= 2, [value.name for value in kept]
