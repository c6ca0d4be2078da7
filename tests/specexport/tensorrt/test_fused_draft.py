"""The fused draft compiles: its caches are written once each, in place, at the end."""

from pathlib import Path

import onnx_ir as ir
import pytest

from specexport.passes import run_passes
from specexport.passes.fused_draft import FuseDraftSteps
from specexport.tensorrt.compile import CompileRequest, compile_engine
from specexport.tensorrt.lowering import tensorrt_passes
from specexport.tensorrt.options import TensorRTBackend
from specexport.tensorrt.profiles import WindowShape
from tests.specexport.tensorrt.tiny_graphs import tiny_graph


def test_fused_draft_compiles_with_one_update_per_cache(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    model = tiny_graph("llama")
    run_passes(model, (FuseDraftSteps(4), *tensorrt_passes(1)))
    ir.save(model, tmp_path / "graph.onnx")
    windows = (WindowShape(2, 1), WindowShape(16, 1))
    request = CompileRequest(TensorRTBackend(kind="tensorrt_rtx"), windows, windows[0])
    report = compile_engine(tmp_path / "graph.onnx", tmp_path / "graph.engine", request).report
    names = ("key.0", "value.0", "key.1", "value.1")
    assert report.aliases == tuple((f"past_{name}", f"present_{name}") for name in names)
    assert len(report.kv_cache_updates) == len(names)


def test_a_graph_that_cannot_be_fused_is_left_as_it_was() -> None:
    model = tiny_graph("gemma2")
    before = [node.op_type for node in model.graph]
    (report,) = run_passes(model, (FuseDraftSteps(3),))
    assert report.changed == 0 and "sliding window" in report.reasons[0]
    assert [node.op_type for node in model.graph] == before
