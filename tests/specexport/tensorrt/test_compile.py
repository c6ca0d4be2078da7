"""Real compiles with tensorrt_rtx, which needs no GPU to build: what went in comes out bound, aliased and fused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from specexport.context import Progress
from specexport.graph.plan import FeatureSpec, GraphPlan
from specexport.passes import run_passes
from specexport.tensorrt.compile import (
    LAYERS_NAME,
    CompiledEngine,
    CompileFailed,
    CompileRequest,
    OperatorUnsupported,
    WorkspaceTooSmall,
    compile_engine,
)
from specexport.tensorrt.lowering import split_attention_names, tensorrt_passes
from specexport.tensorrt.options import TensorRTBackend
from specexport.tensorrt.profiles import WindowShape
from tests.specexport.tensorrt.tiny_graphs import tiny_graph

pytest.importorskip("tensorrt_rtx")

STEP, CHAIN, TREE, PREFILL = WindowShape(1, 1), WindowShape(6, 6), WindowShape(13, 13), WindowShape(32, 1)
CACHES = ("key.0", "value.0", "key.1", "value.1")


def _compile(
    directory: Path,
    model: ir.Model,
    verify: WindowShape = CHAIN,
    progress: Progress | None = None,
    batches: tuple[int, ...] = (1,),
    **options: object,
) -> CompiledEngine:
    run_passes(model, tensorrt_passes(batches[-1]))
    source = directory / "graph.onnx"
    ir.save(model, source, external_data="graph.weights")
    backend = TensorRTBackend.model_validate({"kind": "tensorrt_rtx", **options})
    shared = (replace(window, batch=size) for window in (STEP, verify) for size in batches)
    windows = (*shared, PREFILL)
    optimum = replace(verify, batch=batches[-1])
    request = CompileRequest(backend, windows, optimum, split_attention_names(model))
    return compile_engine(source, directory / "graph.engine", request, progress)


@pytest.mark.parametrize("profiles", ["shared", "per_width"])
def test_one_engine_holds_every_batch_size(tmp_path: Path, profiles: str) -> None:
    report = _compile(tmp_path, tiny_graph(), batches=(1, 2, 4), profiles=profiles).report
    assert report.aliases == tuple((f"past_{name}", f"present_{name}") for name in CACHES)
    assert len(report.kv_cache_updates) == len(CACHES)
    assert len(report.fused_attention) == 2 and report.unfused_attention == ()
    bounds = [profile["window_mask"] for profile in report.profiles]
    verify = bounds[0] if profiles == "shared" else bounds[1]
    assert (verify.minimum[0], verify.optimum[0], verify.maximum[0]) == (1, 4, 4)
    assert profiles == "shared" or bounds[-1].maximum == (1, 32, 32), "prompts are fed one at a time"


@pytest.mark.parametrize("verify", [CHAIN, TREE], ids=["chain", "tree"])
def test_engine_binds_aliases_and_fuses(tmp_path: Path, verify: WindowShape) -> None:
    report = _compile(tmp_path, tiny_graph(), verify).report
    assert {b.name: b.shape for b in report.inputs}["window_mask"] == (1, -1, -1)
    assert {b.name: b.dtype for b in report.outputs}["logits"] == "FLOAT"
    assert report.aliases == tuple((f"past_{name}", f"present_{name}") for name in CACHES)
    assert len(report.kv_cache_updates) == len(CACHES)
    assert len(report.fused_attention) == 2 and report.unfused_attention == ()
    # What the attention kernel reads is laid out again at each step; the writes themselves copy nothing.
    assert len(report.cache_copies) == len(CACHES) and not any(
        "Move_" in n and "Resh" not in n for n in report.cache_copies
    )
    (profile,) = report.profiles
    assert profile["window_mask"].model_dump() == {
        "minimum": (1, 1, 1),
        "optimum": (1, verify.width, verify.width),
        "maximum": (1, 32, 32),
    }
    assert profile["logits_rows"].maximum == (1, verify.rows)
    assert (tmp_path / "graph.engine").stat().st_size == report.engine_bytes > report.weights_bytes > 0


def test_features_of_trees_compile(tmp_path: Path) -> None:
    projection = np.ones((64, 2 * 128), np.float32)
    plan = GraphPlan(trees=True, features=FeatureSpec(("hidden.0", "hidden.norm"), projection))
    report = _compile(tmp_path, tiny_graph(plan=plan), TREE).report
    (features,) = [binding for binding in report.outputs if binding.name == "features"]
    assert (features.shape, features.dtype) == ((1, -1, 64), "FLOAT")
    assert len(report.kv_cache_updates) == len(CACHES) and len(report.fused_attention) == 2


def test_a_draft_of_kept_layers_is_an_engine_of_its_own(tmp_path: Path) -> None:
    whole = _compile(tmp_path, tiny_graph()).report
    kept = _compile(tmp_path, tiny_graph(plan=GraphPlan(kept_layers=(1,)))).report
    assert kept.aliases == (("past_key.0", "present_key.0"), ("past_value.0", "present_value.0"))
    assert len(kept.fused_attention) == 1
    assert kept.weights_bytes < whole.weights_bytes


@pytest.mark.parametrize("architecture", ["gpt2", "gemma3_text"])
def test_architectures_without_groups_or_with_sliding_windows_fuse(tmp_path: Path, architecture: str) -> None:
    report = _compile(tmp_path, tiny_graph(architecture)).report
    assert len(report.fused_attention) == 2 and report.unfused_attention == ()


def test_softcap_attention_compiles_and_is_named_as_not_fused(tmp_path: Path) -> None:
    report = _compile(tmp_path, tiny_graph("gemma2")).report
    assert report.fused_attention == () and len(report.unfused_attention) == 2
    assert report.warnings()[0].startswith("attention did not fuse: node_")


def test_fp32_compiles_only_decomposed(tmp_path: Path) -> None:
    with pytest.raises(
        CompileFailed, match=r"expected fp16 or bf16, or set backend\.decomposable_attention: true"
    ):
        _compile(tmp_path, tiny_graph("llama", torch.float32))
    report = _compile(tmp_path, tiny_graph("llama", torch.float32), decomposable_attention=True).report
    assert len(report.unfused_attention) == 2


def test_static_profiles_cost_a_copy_of_the_weights(tmp_path: Path) -> None:
    shared = _compile(tmp_path, tiny_graph()).report
    separate = _compile(tmp_path, tiny_graph(), profiles="per_width").report
    assert len(separate.profiles) == 3
    assert separate.profiles[1]["input_ids"].minimum == separate.profiles[1]["input_ids"].maximum == (1, 6)
    assert separate.weights_bytes > shared.weights_bytes


def test_compute_capabilities_are_recorded(tmp_path: Path) -> None:
    compiled = _compile(tmp_path, tiny_graph(), compute_capabilities=["SM86", "SM120"])
    assert compiled.compute_capabilities == ("SM86", "SM120")


def test_progress_runs_from_nothing_to_all_and_its_error_ends_the_build(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    _compile(tmp_path, tiny_graph(), progress=lambda phase, done, total: seen.append((done, total)))
    assert seen[0][0] == 0 and seen[-1][0] == seen[-1][1]

    def interrupt(phase: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    (tmp_path / "graph.engine").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        _compile(tmp_path, tiny_graph(), progress=interrupt)
    assert (tmp_path / "graph.engine").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.engine", "graph.onnx", "graph.weights"]


def test_layer_report_lists_every_compiled_layer(tmp_path: Path) -> None:
    report = _compile(tmp_path, tiny_graph(), layer_report=True).report
    layers = json.loads((tmp_path / LAYERS_NAME).read_text())
    assert len(layers) == report.compiled_layers
    assert {node for layer in layers for node in layer["onnx_nodes"]} >= set(report.fused_attention)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # tensorrt_rtx keeps the calls and ignores them
def test_timing_cache_is_written_and_read_back(tmp_path: Path) -> None:
    model = tiny_graph()
    run_passes(model, tensorrt_passes(1))
    ir.save(model, tmp_path / "graph.onnx")
    backend = TensorRTBackend(kind="tensorrt_rtx").model_copy(
        update={"timing_cache": True}
    )  # past the refusal
    timings = tmp_path / "timings.cache"
    request = CompileRequest(backend, (STEP, CHAIN, PREFILL), CHAIN, timing_cache=timings)
    for _ in range(2):
        compile_engine(tmp_path / "graph.onnx", tmp_path / "graph.engine", request)
        assert timings.is_file()


def test_small_workspace_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceTooSmall, match=r"backend\.workspace_mib: found 1: no kernel fits"):
        _compile(tmp_path, tiny_graph(), workspace_mib=1)


def test_operator_that_does_not_parse_is_named(tmp_path: Path) -> None:
    model = tiny_graph()
    logits = next(value for value in model.graph.outputs if value.name == "logits")
    producer = logits.producer()
    assert producer is not None
    foreign = ir.node("Whiten", [producer.inputs[0]], domain="com.example", name="node_whiten")
    foreign.outputs[0].type, foreign.outputs[0].shape = (
        ir.TensorType(ir.DataType.FLOAT16),
        producer.outputs[0].shape,
    )
    model.graph.insert_before(producer, foreign)
    producer.replace_input_with(0, foreign.outputs[0])
    model.opset_imports["com.example"] = 1
    with pytest.raises(OperatorUnsupported, match=r"cannot parse node 'node_whiten' \(Whiten\)"):
        _compile(tmp_path, model)


def test_weights_outside_the_onnx_file_are_found(tmp_path: Path) -> None:
    compiled = _compile(tmp_path, tiny_graph())
    weights = sum(
        np.prod(value.shape.numpy()) * 2 for value in tiny_graph().graph.initializers.values() if value.shape
    )
    assert compiled.report.weights_bytes >= 0.9 * weights
    assert compiled.peak_memory_bytes > 0 and compiled.seconds > 0
