"""Weights of an engine in fewer bits: ModelOpt's numbers reach the graph, rows stay apart, real engines hold them."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from specexport.backends import backend_of
from specexport.cache.entries import CACHE_VARIABLE
from specexport.checkpoints.loading import load_checkpoint
from specexport.errors import CheckpointUnsupported, FidelityError
from specexport.graph.canonical import CanonicalGraph, export_canonical
from specexport.graph.compiled import CompiledGraph, compile_graph
from specexport.graph.files import GRAPH_NAME, target_profiles
from specexport.parity.fidelity import check_fidelity, require_fidelity
from specexport.passes import run_passes
from specexport.passes.host_numbers import EmulateFourBits
from specexport.recipe.schema import RandomSource, Target
from specexport.recipe.weights import EngineWeights, Fidelity, RunningText
from specexport.tensorrt import machine
from specexport.tensorrt.build_engine import compile_tensorrt, read_report
from specexport.tensorrt.machine import check_machine, require_modelopt
from specexport.tensorrt.options import TensorRTBackend
from specexport.tensorrt.weights.build_weights import store_engine_weights
from specexport.tensorrt.weights.quantise import quantise_linear
from specexport.tensorrt.weights.store import (
    Fp8Linear,
    Int4Linear,
    Linear,
    Nvfp4Linear,
    StoreEngineWeights,
    stored_layers,
)
from specruntime.errors import BackendIncompatible, BackendMissing
from specruntime.manifest.tensorrt import TensorRTEngine
from tests.specexport.conftest import TINY_SIZES, random_target

pytest.importorskip("tensorrt_rtx")
pytest.importorskip("modelopt")

FORMATS = ("fp8", "int4-awq", "nvfp4")
BACKEND = TensorRTBackend(kind="tensorrt_rtx")
HALF = np.dtype(np.float16)
TEXT = "the quick brown fox jumps over the lazy dog. " * 8
SIZES: dict[str, dict[str, int]] = {
    "llama": {**TINY_SIZES, "hidden_size": 128, "intermediate_size": 256},
    "gpt2": {"vocab_size": 272, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 128},
}


def weights(kind: str, **keys: Any) -> EngineWeights:
    return EngineWeights(format=kind, calibration=RunningText(text=TEXT, tokens=200), **keys)


def sample(outputs: int = 48, size: int = 128) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A matrix [N, K] and rows [n, K] with a few large columns, as activations have."""
    draw = np.random.default_rng(5)
    rows = draw.normal(size=(64, size)).astype(np.float32)
    rows[:, ::17] *= 30
    return draw.normal(size=(outputs, size)).astype(np.float32) * 0.1, rows


def product_error(layer: Linear, matrix: NDArray[np.float32], rows: NDArray[np.float32]) -> float:
    """Of the product of exact rows with the stored weights, relative."""
    factors = layer.factors.astype(np.float32) if isinstance(layer, Int4Linear) else np.float32(1)
    expected = rows @ matrix.T
    return float(
        np.linalg.norm((rows * factors) @ layer.dequantised().T - expected) / np.linalg.norm(expected)
    )


# Numbers


def test_fp8_weights_are_those_modelopt_computes_with() -> None:
    import modelopt.torch.quantization as mtq

    matrix, rows = sample()
    layer = torch.nn.Linear(128, 48, bias=False)
    layer.weight = torch.nn.Parameter(torch.from_numpy(matrix.copy()))
    module = mtq.quantize(
        torch.nn.Sequential(layer), mtq.FP8_DEFAULT_CFG, lambda model: model(torch.from_numpy(rows))
    )[0]
    found = quantise_linear(matrix, rows, weights("fp8"), np.dtype(np.float32))
    assert isinstance(found, Fp8Linear)
    expected = module.weight_quantizer(module.weight).detach().numpy()
    np.testing.assert_allclose(found.dequantised(), expected, rtol=1e-6)
    assert found.input_scale == pytest.approx(np.abs(rows).max() / 448)


def test_nvfp4_weights_lie_on_the_nearest_value_under_their_scales() -> None:
    matrix, rows = sample()
    found = quantise_linear(matrix, rows, weights("nvfp4"), HALF)
    assert isinstance(found, Nvfp4Linear)
    assert found.scale == pytest.approx(np.abs(matrix).max() / (6 * 448))
    step = np.repeat(found.block_scales.astype(np.float32), 16, axis=1) * found.scale
    nearest = np.clip(matrix / step, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32) * step
    np.testing.assert_allclose(found.dequantised(), nearest, atol=1e-7)


@pytest.mark.parametrize("block", [32, 64, 128])
def test_awq_spends_its_levels_where_the_rows_are_large(block: int) -> None:
    matrix, rows = sample()
    found = quantise_linear(matrix, rows, weights("int4-awq", block=block), HALF)
    assert isinstance(found, Int4Linear) and found.scales.shape == (48, 128 // block)
    assert found.factors.std() > 0
    blocks = matrix.reshape(48, -1, block)
    step = np.abs(blocks).max(axis=-1, keepdims=True) / 7
    plain = (np.clip(np.rint(blocks / step), -8, 7) * step).reshape(matrix.shape)
    rounded = np.linalg.norm(rows @ (plain - matrix).T) / np.linalg.norm(rows @ matrix.T)
    assert product_error(found, matrix, rows) < 0.8 * rounded


@pytest.mark.parametrize(("kind", "limit"), [("fp8", 0.04), ("int4-awq", 0.14), ("nvfp4", 0.12)])
def test_a_layer_without_any_input_is_stored_without_dividing_by_zero(kind: str, limit: float) -> None:
    matrix, rows = sample()
    found = quantise_linear(matrix, np.zeros_like(rows), weights(kind), HALF)
    assert np.isfinite(found.dequantised()).all()
    assert product_error(found, matrix, rows) < limit


# Graphs


def product_graph(matrix: NDArray[np.float32]) -> ir.Model:
    """rows [1, W, K] float16 times `matrix` [N, K]."""
    size = matrix.shape[1]
    rows = ir.Value(name="rows", type=ir.TensorType(ir.DataType.FLOAT16), shape=ir.Shape([1, "W", size]))
    constant = ir.tensor(np.ascontiguousarray(matrix.T).astype(np.float16), name="matrix")
    stored = ir.Value(
        name="matrix",
        type=ir.TensorType(constant.dtype),
        shape=ir.Shape([size, len(matrix)]),
        const_value=constant,
    )
    node = ir.node("MatMul", [rows, stored], name="product")
    output = node.outputs[0]
    output.name, output.type = "product", ir.TensorType(ir.DataType.FLOAT16)
    output.shape = ir.Shape([1, "W", len(matrix)])
    graph = ir.Graph(
        [rows], [output], nodes=[node], initializers=[stored], opset_imports={"": 24}, name="product"
    )
    return ir.Model(graph, ir_version=10)


def run_product(layer: Linear, matrix: NDArray[np.float32], rows: NDArray[np.float32]) -> NDArray[np.float32]:
    model = product_graph(matrix)
    report, _ = run_passes(
        model, (StoreEngineWeights({"product": layer}, "made for a test"), EmulateFourBits())
    )
    assert report.changed == 1
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    RemoveUnusedNodesPass()(model)
    session = onnxruntime.InferenceSession(
        ir.serde.serialize_model(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"rows": rows[None].astype(np.float16)})
    return np.asarray(found[0], np.float32)


def rounded_rows(layer: Linear, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the format makes of float16 rows, in numpy."""
    wide = rows.astype(np.float16).astype(np.float32)
    if isinstance(layer, Int4Linear):
        return (wide.astype(np.float16) * layer.factors).astype(np.float32)
    if isinstance(layer, Fp8Linear):
        scale = layer.input_scale.astype(np.float32)
        levels = np.clip(wide / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        return np.asarray(levels.astype(np.float32) * scale, np.float32)
    blocks = wide.reshape(-1, 16)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    scales = np.clip(largest / (6 * layer.input_scale), 2.0**-9, 448).astype(ml_dtypes.float8_e4m3fn)
    step = scales.astype(np.float32) * layer.input_scale
    levels = np.clip(blocks / step, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    return np.asarray(levels * step, np.float32).reshape(wide.shape)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_product_is_that_of_the_stored_numbers(kind: str) -> None:
    matrix, rows = sample()
    layer = quantise_linear(matrix, rows, weights(kind), HALF)
    found = run_product(layer, matrix, rows)
    expected = rounded_rows(layer, rows) @ layer.dequantised().T
    assert np.linalg.norm(found - expected) < 5e-3 * np.linalg.norm(expected)
    assert np.linalg.norm(found - rows @ matrix.T) > 1e-2 * np.linalg.norm(expected), "nothing was rounded"


@pytest.mark.parametrize("kind", FORMATS)
def test_no_row_changes_another(kind: str) -> None:
    matrix, rows = sample()
    layer = quantise_linear(matrix, rows, weights(kind), HALF)
    others = rows.copy()
    others[1:6] *= 50
    alike, apart = run_product(layer, matrix, rows[:6]), run_product(layer, matrix, others[:6])
    np.testing.assert_array_equal(alike[0], apart[0])
    assert (alike[1:] != apart[1:]).any()


# Engines


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def lowered(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CompiledGraph]:
    """Two layers in fp16 as TensorRT gets them, in a cache of their own."""
    architecture: str = request.param
    made = {"architecture": architecture, "sizes": SIZES[architecture]}
    target = Target(source=RandomSource.model_validate({"random": made}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        canonical: CanonicalGraph = export_canonical(
            "1" * 64, lambda: load_checkpoint(target, "fp16"), capacity=128, reference_tokens=24
        )
        yield compile_graph(canonical, backend_of(BACKEND), profiles=target_profiles([6], 16), batch=1)


@pytest.mark.parametrize(
    ("kind", "bits", "first"), [("fp8", 8, "8.9"), ("int4-awq", 4.2, "8.0"), ("nvfp4", 4.6, "12.0")]
)
def test_an_engine_holds_the_weights_in_their_bits(
    lowered: CompiledGraph, kind: str, bits: float, first: str
) -> None:
    stored = store_engine_weights(lowered, weights(kind))
    layers = stored_layers(ir.load(lowered.directory / GRAPH_NAME).graph)
    report = stored.passes[-1]
    assert (report.name, report.changed) == ("store-engine-weights", len(layers))
    assert report.reasons == (report.reasons[0],) and "calibrated on 200 tokens" in report.reasons[0]
    whole = read_report(compile_tensorrt(lowered, BACKEND)).report
    compiled = compile_tensorrt(stored, BACKEND.aimed_at(("fp16", kind)))
    found = read_report(compiled).report
    assert len(found.fused_attention) == 2 and found.unfused_attention == ()
    assert len(found.kv_cache_updates) == len(whole.kv_cache_updates) == 4
    matrices = [layer.inputs[1] for layer in layers]
    sizes = [each.const_value.size for each in matrices if each is not None and each.const_value is not None]
    saved = sum(sizes) * (16 - bits) / 8
    assert whole.weights_bytes - found.weights_bytes == pytest.approx(saved, rel=0.05)
    assert isinstance(compiled.spec.engine, TensorRTEngine)
    assert compiled.spec.engine.compute_capabilities[0] == first


@pytest.mark.parametrize("kind", FORMATS)
def test_fidelity_is_measured_on_the_stored_graph_and_its_limits_stop(
    lowered: CompiledGraph, kind: str
) -> None:
    stored = store_engine_weights(lowered, weights(kind))
    text = Fidelity(text="numbers 1 2 3 and other words", tokens=40, kl=1e-9)
    found = check_fidelity(stored, lowered, text)
    assert 1e-6 < found.kl < 1 and check_fidelity(lowered, lowered, text).kl < 1e-9
    with pytest.raises(FidelityError, match=rf"fidelity\.kl: {kind} weights reach .* at most 1e-09 .*: "):
        require_fidelity(found, text, kind)


def test_a_block_that_does_not_divide_a_layer_is_refused_with_one_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    target = random_target(hidden_size=128, intermediate_size=192)
    canonical = export_canonical(
        "2" * 64, lambda: load_checkpoint(target, "fp16"), capacity=64, reference_tokens=24
    )
    graph = compile_graph(canonical, backend_of(BACKEND), profiles=target_profiles([6], 16), batch=1)
    with pytest.raises(
        CheckpointUnsupported, match=r"found 128, which does not divide the 192 .*; set it to 64"
    ):
        store_engine_weights(graph, weights("int4-awq"))
    assert store_engine_weights(graph, weights("int4-awq", block=64)).passes[-1].changed == 14


# Machines


def test_a_missing_modelopt_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modelopt", None)
    with pytest.raises(BackendMissing, match=re.escape("run `pip install 'specexport[modelopt]'`")):
        require_modelopt(weights("nvfp4"))


def test_a_gpu_without_the_arithmetic_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = TensorRTBackend(kind="tensorrt")
    monkeypatch.setattr(machine, "load_library", lambda kind: None)
    monkeypatch.setattr(machine, "open_driver", lambda: None)
    monkeypatch.setattr(machine, "compute_capability", lambda driver: (8, 6))
    check_machine(backend, ("bf16", "int4-awq"))
    with pytest.raises(
        BackendIncompatible, match=r"compute capability 8\.6, expected 8\.9 or newer for fp16 and fp8"
    ):
        check_machine(backend, ("fp16", "fp8"))
