"""Graphs over integer weights: no row depends on another to the last bit, for every format, and a
per-tensor control fails; the product is that of the stored weights; fidelity is measured and its limits stop."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray

from specexport.backends import backend_of
from specexport.cache.entries import CACHE_VARIABLE
from specexport.checkpoints.loading import load_checkpoint
from specexport.errors import CheckpointUnsupported, FidelityError
from specexport.graph.canonical import CanonicalGraph, export_canonical
from specexport.graph.compiled import CompiledGraph, compile_graph
from specexport.graph.files import GRAPH_NAME, target_profiles
from specexport.graph.plan import PLAIN, GraphPlan, LinearPlan, WeightPlan
from specexport.parity.fidelity import (
    FidelityReport,
    check_fidelity,
    measure_fidelity,
    require_fidelity,
    weight_warnings,
)
from specexport.passes.graph_builder import Builder
from specexport.passes.quantized_linear import multiply, store_weights
from specexport.recipe.schema import Backend, Fidelity, OnnxRuntimeBackend
from specruntime.engines import EngineOptions, open_engine
from specruntime.engines.protocol import BatchContext, Context
from tests.specexport.conftest import random_target
from tests.specexport.passes.test_weight_blocks import stored_as

BACKEND: Backend = OnnxRuntimeBackend(kind="onnxruntime", provider="cpu", threads=1)
WIDTH = 6
HEAD = LinearPlan("int8", "fine")
PLANS = {
    "int8 blocks": WeightPlan(LinearPlan("int8", "blocks"), LinearPlan("int8", "blocks")),
    "int8 fine": WeightPlan(LinearPlan("int8", "fine"), HEAD),
    "int8 rows": WeightPlan(LinearPlan("int8", "rows"), HEAD),
    "int4 blocks": WeightPlan(LinearPlan("int4", "blocks"), HEAD),
    "int4 fine": WeightPlan(LinearPlan("int4", "fine"), HEAD, block=16),
    "fp32 head": WeightPlan(LinearPlan("int8", "blocks"), LinearPlan("fp32")),
}


@pytest.fixture(scope="module")
def canonical(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CanonicalGraph]:
    """A llama of two layers with a tied table, traced once, in a cache that all tests of this file share."""
    target = random_target(hidden_size=64, intermediate_size=128, tie_word_embeddings=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield export_canonical(
            "1" * 64, lambda: load_checkpoint(target, "fp32"), capacity=48, reference_tokens=24
        )


def compiled(canonical: CanonicalGraph, weights: WeightPlan | None) -> CompiledGraph:
    plan = GraphPlan(weights=weights) if weights is not None else PLAIN
    return compile_graph(
        canonical, backend_of(BACKEND), profiles=target_profiles([WIDTH], 16), batch=1, plan=plan
    )


@contextmanager
def context_of(graph: CompiledGraph) -> Iterator[Context]:
    engine = open_engine(graph.spec, graph.directory, EngineOptions())
    context = engine.new_context()
    try:
        yield context
    finally:
        context.close()
        engine.close()


def window_logits(
    context: Context, ids: NDArray[np.int64], profile: str = f"verify_{WIDTH}"
) -> NDArray[np.float32]:
    """[B, W, vocab] of ids [B, W] over an empty cache."""
    context.zero()
    window = context.window(profile)
    window.input_ids[:] = ids
    window.position_ids[:] = np.arange(ids.shape[1])
    window.cache_length[:] = 0
    window.logits_rows[:] = np.arange(window.logits_rows.shape[1])
    context.run(window)
    return context.logits(window).copy()


@contextmanager
def pair_of(graph: CompiledGraph) -> Iterator[BatchContext]:
    """Two sequences side by side."""
    engine = open_engine(
        graph.spec.model_copy(update={"batch": 2, "batch_sizes": (1, 2)}), graph.directory, EngineOptions()
    )
    context = engine.new_batch(2)
    try:
        yield context
    finally:
        context.close()
        engine.close()


def pair_logits(context: BatchContext, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """[2, W, vocab] of ids [2, W] over empty caches."""
    for row in range(2):
        context.zero(row)
    window = context.window(f"verify_{WIDTH}", 2)
    window.input_ids[:] = ids
    window.position_ids[:] = np.arange(WIDTH)
    window.cache_length[:] = 0
    window.logits_rows[:] = np.arange(WIDTH)
    context.run(window, 0)
    return context.logits(window).copy()


@pytest.mark.parametrize("name", PLANS)
def test_no_row_depends_on_a_later_row_or_on_its_neighbour(canonical: CanonicalGraph, name: str) -> None:
    ids = np.random.default_rng(0).integers(0, 250, (2, WIDTH))
    with pair_of(compiled(canonical, PLANS[name])) as context:
        before = pair_logits(context, ids)
        for row in range(1, WIDTH):
            changed = ids.copy()
            changed[0, row] = (changed[0, row] + 1) % 250
            after = pair_logits(context, changed)
            np.testing.assert_array_equal(after[0, :row], before[0, :row])
            np.testing.assert_array_equal(after[1], before[1])
            assert (after[0, row:] != before[0, row:]).any(axis=-1).all()


def test_one_scale_for_all_rows_would_be_noticed(canonical: CanonicalGraph) -> None:
    """The control: the largest magnitude of the whole window in place of each row's own."""
    graph = compiled(canonical, PLANS["int8 rows"])
    model = ir.load(graph.directory / GRAPH_NAME)
    every = ir.Value(name="every_axis", const_value=ir.tensor(np.array([1, 2]), name="every_axis"))
    model.graph.register_initializer(every)
    maxima = [
        node for node in model.graph if node.op_type == "ReduceMax" and "quantized" in (node.name or "")
    ]
    for node in maxima:
        node.replace_input_with(1, every)
    assert maxima
    place = graph.directory.parent / "per_window"
    place.mkdir()
    ir.save(model, place / GRAPH_NAME, external_data="graph.weights")
    ids = np.random.default_rng(0).integers(0, 250, (1, WIDTH))
    changed = ids.copy()
    changed[0, -1] += 1
    with context_of(replace(graph, directory=place)) as context:
        before, after = window_logits(context, ids), window_logits(context, changed)
    assert (after[0, :-1] != before[0, :-1]).any()


@pytest.mark.parametrize("name", PLANS)
def test_a_row_is_the_same_at_width_one_but_for_rounding(canonical: CanonicalGraph, name: str) -> None:
    ids = np.random.default_rng(1).integers(0, 250, (1, WIDTH))
    with context_of(compiled(canonical, PLANS[name])) as context:
        wide = window_logits(context, ids)
        narrow = window_logits(context, ids[:, :1], "step")
    np.testing.assert_allclose(narrow[0, 0], wide[0, 0], atol=0.02)


def test_fine_activations_leave_only_the_rounding_of_the_weights(canonical: CanonicalGraph) -> None:
    ids = np.random.default_rng(2).integers(0, 250, (1, WIDTH))
    found = {}
    for name in ("int8 blocks", "int8 fine"):
        with context_of(compiled(canonical, PLANS[name])) as context:
            found[name] = window_logits(context, ids)
    with context_of(compiled(canonical, None)) as context:
        exact = window_logits(context, ids)
    error = {name: np.abs(logits - exact).max() for name, logits in found.items()}
    assert 0 < error["int8 fine"] < error["int8 blocks"]


def test_fine_activations_need_whole_blocks(canonical: CanonicalGraph) -> None:
    plan = WeightPlan(LinearPlan("int8", "fine"), LinearPlan("int8", "blocks"), block=128)
    with pytest.raises(
        CheckpointUnsupported, match=r"block: found 128 .* divides 64, .*choose block 16 or 32 or 64"
    ):
        compiled(canonical, plan)


def test_a_tied_table_is_stored_once_and_every_layer_is_quantised(canonical: CanonicalGraph) -> None:
    graph = compiled(canonical, PLANS["int8 fine"])
    model = ir.load(graph.directory / GRAPH_NAME)
    stored = [v for v in model.graph.initializers.values() if v.dtype == ir.DataType.UINT8]
    tables = [v for v in stored if v.shape is not None and list(v.shape) == [272, 2, 32]]
    assert len(tables) == 1 and not any(node.op_type in ("Gather", "MatMul") for node in model.graph)
    weights = (graph.directory / "graph.weights").stat().st_size
    assert weights < (compiled(canonical, None).directory / "graph.weights").stat().st_size / 2


def test_fidelity_of_a_graph_to_itself_is_perfect_and_to_four_bits_is_not(canonical: CanonicalGraph) -> None:
    ids = np.random.default_rng(3).integers(0, 250, 70).tolist()
    twin = compiled(canonical, None)
    pair = (twin.spec, twin.directory)
    same = measure_fidelity(pair, pair, ids)
    assert (same.tokens, same.top1_agreement, same.perplexity_ratio) == (70, 1.0, 1.0) and abs(same.kl) < 1e-9
    coarse = compiled(canonical, PLANS["int4 blocks"])
    found = measure_fidelity((coarse.spec, coarse.directory), pair, ids)
    assert found.kl > 1e-4 and found.reference_perplexity == same.perplexity


def test_a_limit_stops_with_both_numbers(canonical: CanonicalGraph) -> None:
    text = Fidelity(text="the quick brown fox jumps over the lazy dog", tokens=40)
    report = check_fidelity(compiled(canonical, PLANS["int4 blocks"]), compiled(canonical, None), text)
    require_fidelity(report, text, "int4")
    with pytest.raises(
        FidelityError, match=r"fidelity\.kl: int4 weights reach .*, the recipe expects at most 1e-09"
    ):
        require_fidelity(report, text.model_copy(update={"kl": 1e-9}), "int4")
    worse = FidelityReport(100, 0.9, 0.01, 12.0, 10.0)
    with pytest.raises(FidelityError, match=r"top1_agreement: .* 0\.9, .* at least 0\.985"):
        require_fidelity(worse, text.model_copy(update={"top1_agreement": 0.985}), "int8")
    with pytest.raises(FidelityError, match=r"perplexity_ratio: .* 1\.2, .* at most 1\.1"):
        require_fidelity(worse, text.model_copy(update={"perplexity_ratio": 1.1}), "int8")


def test_the_product_is_that_of_the_kept_weights_in_blocks_of_16_and_with_minima(tmp_path: Path) -> None:
    """Weights as Q6_K and Q5_1 store them, by the `gguf` package's own numbers."""
    rows = np.random.default_rng(4).standard_normal((1, 3, 512)).astype(np.float32)
    for name, inputs in (("Q6_K", "scales"), ("Q5_1", "minimum")):
        weights = stored_as(name)
        value = ir.Value(name="rows", shape=ir.Shape([1, "W", 512]), type=ir.TensorType(ir.DataType.FLOAT))
        graph = ir.Graph([value], [], nodes=[], opset_imports={"": 24, "com.microsoft": 1}, name="product")
        build = Builder(graph)
        stored = store_weights(build, weights, LinearPlan("int8", "fine"), 32)
        assert inputs in stored.tensors and stored.exact == 1.0
        product = multiply(build, value, stored)
        product.name = "product"
        graph.outputs.append(product)
        ir.save(ir.Model(graph, ir_version=11), tmp_path / f"{name}.onnx")
        session = onnxruntime.InferenceSession(tmp_path / f"{name}.onnx", providers=["CPUExecutionProvider"])
        (found,) = session.run(["product"], {"rows": rows})
        expected = rows[0].astype(np.float64) @ weights.T.astype(np.float64)
        np.testing.assert_allclose(found[0], expected, atol=2e-4 * np.abs(expected).max())


def test_what_a_format_costs_is_said_with_the_next_better_one(canonical: CanonicalGraph) -> None:
    poor, good = FidelityReport(100, 0.73, 0.4, 13.0, 10.0), FidelityReport(100, 0.97, 0.01, 10.1, 10.0)
    four, eight = compiled(canonical, PLANS["int4 blocks"]), compiled(canonical, PLANS["int8 blocks"])
    (line,) = weight_warnings(four, poor)
    assert "int4 weights choose another token than the checkpoint at 27.0 % of positions" in line
    assert line.endswith("the next better format: weights.format int8")
    (line,) = weight_warnings(four, None)
    assert line.startswith("weights are rounded to 4 bits, and what that costs is not measured")
    assert weight_warnings(eight, poor)[0].endswith("weights.activations fine")
    assert weight_warnings(compiled(canonical, PLANS["int8 rows"]), poor)[0].endswith(
        "weights.activations blocks"
    )
    assert weight_warnings(compiled(canonical, PLANS["int8 fine"]), poor)[0].endswith(
        "leave weights out (fp32)"
    )
    for graph in (four, eight):
        assert weight_warnings(graph, good) == ()
    assert weight_warnings(eight, None) == () == weight_warnings(compiled(canonical, None), None)
