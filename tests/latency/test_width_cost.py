"""Ratios of one run with wide margins: a window of six rows over integer weights shares their reading, and integer
weights are no slower to read than fp32 ones. Absolute times are not tested here."""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray

from specexport.graph.plan import Activations, LinearPlan, WeightFormat
from specexport.passes.graph_builder import Builder
from specexport.passes.quantized_linear import multiply, store_weights

SIZE, LAYERS, WIDTH, REPEATS = 768, 12, 6, 200


def stack_of_layers(directory: Path, plan: LinearPlan | None) -> onnxruntime.InferenceSession:
    """`LAYERS` square layers one after the other, more weights than a core's own cache holds."""
    rows = ir.Value(name="rows", shape=ir.Shape([1, "W", SIZE]), type=ir.TensorType(ir.DataType.FLOAT))
    graph = ir.Graph([rows], [], nodes=[], opset_imports={"": 24, "com.microsoft": 1}, name="stack")
    build, draw, value = Builder(graph), np.random.default_rng(0), rows
    for _ in range(LAYERS):
        weights = draw.standard_normal((SIZE, SIZE)).astype(np.float32) / SIZE**0.5
        if plan is None:
            value = build.add("MatMul", [value, build.constant(np.ascontiguousarray(weights.T))])
        else:
            value = multiply(build, value, store_weights(build, weights, plan, 32))
    value.name = "product"
    graph.outputs.append(value)
    directory.mkdir()
    ir.save(ir.Model(graph, ir_version=11), directory / "graph.onnx", external_data="graph.weights")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        directory / "graph.onnx", settings, providers=["CPUExecutionProvider"]
    )


def best_times(*calls: Callable[[], object]) -> list[float]:
    """The fastest of `REPEATS` calls of each, in turns."""
    for call in calls:
        call()
    best = [float("inf")] * len(calls)
    for _ in range(REPEATS):
        for number, call in enumerate(calls):
            began = perf_counter()
            call()
            best[number] = min(best[number], perf_counter() - began)
    return best


def running(session: onnxruntime.InferenceSession, width: int) -> Callable[[], object]:
    rows: NDArray[np.float32] = np.random.default_rng(1).standard_normal((1, width, SIZE)).astype(np.float32)
    return lambda: session.run(["product"], {"rows": rows})


@pytest.mark.parametrize(
    ("weights", "activations", "most"),
    [("int8", "blocks", 4.7), ("int8", "rows", 3.0), ("int4", "blocks", 5.0)],
)
def test_six_rows_cost_less_than_six_steps(
    tmp_path: Path, weights: WeightFormat, activations: Activations, most: float
) -> None:
    session = stack_of_layers(tmp_path / "stack", LinearPlan(weights, activations))
    one, six = best_times(running(session, 1), running(session, WIDTH))
    assert six / one < most, f"a window of {WIDTH} rows costs {six / one:.1f} steps"


@pytest.mark.parametrize("activations", ["blocks", "fine"])
def test_a_step_over_integer_weights_is_no_slower_than_over_fp32(
    tmp_path: Path, activations: Activations
) -> None:
    integer = stack_of_layers(tmp_path / "integer", LinearPlan("int8", activations))
    plain = stack_of_layers(tmp_path / "plain", None)
    fast, slow = best_times(running(integer, 1), running(plain, 1))
    assert fast / slow < 1.3, f"int8 {activations} takes {fast / slow:.2f} of fp32"
