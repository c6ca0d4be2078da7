"""A row of a window over the operators of `specruntime_kernels` has the bits of one-by-one decoding: logits and cache
rows, at every width, padded, next to rows that are rejected, and in trees.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specexport.backends import backend_of
from specexport.cache.entries import CACHE_VARIABLE, text_sha256
from specexport.checkpoints.loading import load_checkpoint
from specexport.graph.canonical import CanonicalGraph, export_canonical
from specexport.graph.compiled import CompiledGraph, compile_graph, compile_window
from specexport.graph.files import target_profiles
from specexport.graph.plan import GraphPlan, LinearPlan, WeightPlan, WindowPlan
from specexport.recipe.schema import OnnxRuntimeBackend, RandomModel, RandomSource, Target
from specruntime.engines import EngineOptions, open_engine
from specruntime.engines.protocol import Context
from specruntime.engines.windows import stage

pytest.importorskip("specruntime_kernels", reason="specruntime-kernels is not installed")

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 272, "max_position_embeddings": 256}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 1},
    "qwen3": {},
    "gemma2": {"sliding_window": 12, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 20.0},
    "mistral": {"sliding_window": 12},
}
HEAD = LinearPlan("int8", "fine")
FORMATS: dict[str, WeightPlan | None] = {
    "fp32": None,
    "int8 blocks": WeightPlan(LinearPlan("int8", "blocks"), HEAD),
    "int8 rows": WeightPlan(LinearPlan("int8", "rows"), HEAD),
    "int4 fine": WeightPlan(LinearPlan("int4", "fine"), LinearPlan("int4", "fine"), block=16),
}
WIDTHS = (1, 2, 3, 5, 6, 8, 12)
TOKENS, CAPACITY = 40, 96
BACKEND = OnnxRuntimeBackend(kind="onnxruntime", provider="cpu", threads=2)
TREE = (-1, 0, 0, 1, 1, 2, 3, 5)  # the parent of each node


@pytest.fixture(scope="module")
def cache_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("cache")
        patch.setenv(CACHE_VARIABLE, str(place))
        yield place


@pytest.fixture(scope="module", params=FAMILIES)
def canonical(request: pytest.FixtureRequest, cache_of_module: Path) -> CanonicalGraph:
    sizes = {**SIZES, "initializer_range": 0.2, **FAMILIES[request.param]}
    model = RandomModel(architecture=request.param, sizes=sizes, seed=0)
    target = Target(source=RandomSource(random=model))
    return export_canonical(
        text_sha256(request.param),
        lambda: load_checkpoint(target, "fp32"),
        capacity=CAPACITY,
        reference_tokens=8,
    )


def windowed(
    canonical: CanonicalGraph, weights: WeightPlan | None, cache: str = "fp32", *, trees: bool = False
) -> CompiledGraph:
    plan = GraphPlan(weights=weights, trees=trees)
    backend = backend_of(BACKEND)
    plain = compile_graph(canonical, backend, profiles=target_profiles(WIDTHS[1:], 32), batch=1, plan=plan)
    return compile_window(plain, backend, WindowPlan(cache))  # type: ignore[arg-type]


@contextmanager
def opened(graph: CompiledGraph, threads: int = 2) -> Iterator[Context]:
    engine = open_engine(graph.spec, graph.directory, EngineOptions(threads=threads, kernels="auto"))
    assert getattr(engine, "kernels", None), "the plain graph was opened"
    context = engine.new_context()
    try:
        yield context
    finally:
        context.close()
        engine.close()


def one_by_one(
    context: Context, ids: NDArray[np.int64]
) -> tuple[NDArray[np.float32], dict[str, NDArray[Any]]]:
    """Logits [T, vocab] and cache rows of plain decoding."""
    context.zero()
    logits = []
    for start in range(len(ids)):
        window = context.window("step")
        stage(window, ids[start : start + 1], start)
        context.run(window)
        logits.append(context.logits(window)[0, 0].copy())
    return np.stack(logits), {name: rows.copy() for name, rows in context.cache().items()}


def require_rows(found: dict[str, NDArray[Any]], expected: dict[str, NDArray[Any]], count: int) -> None:
    for name, rows in expected.items():
        np.testing.assert_array_equal(found[name][0, :, :count], rows[0, :, :count], err_msg=name)


@pytest.mark.parametrize("cache", ["fp32", "int8"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_width_has_the_bits_of_plain_decoding(canonical: CanonicalGraph, name: str, cache: str) -> None:
    """Windows hold more rows than are kept: some are padding, some are rejected and written over."""
    graph = windowed(canonical, FORMATS[name], cache)
    random = np.random.default_rng(0)
    ids = random.integers(0, 250, TOKENS)
    with opened(graph) as context:
        assert window_exact(graph)
        expected, rows = one_by_one(context, ids)
        for width in WIDTHS[1:]:
            context.zero()
            start = 0
            while start < TOKENS:
                filled = int(random.integers(1, width + 1))  # the rest of the window is padding
                kept = min(int(random.integers(1, filled + 1)), TOKENS - start)
                drafted = random.integers(0, 250, filled)
                drafted[:kept] = ids[start : start + kept]
                window = context.window(f"verify_{width}")
                stage(window, drafted, start)
                context.run(window)
                found = context.logits(window)[0, :kept]
                np.testing.assert_array_equal(
                    found, expected[start : start + kept], err_msg=f"{width} at {start}"
                )
                start += kept
            require_rows(context.cache(), rows, TOKENS)


@pytest.mark.parametrize("name", FORMATS)
def test_a_prompt_in_one_window_and_other_threads_have_the_same_bits(
    canonical: CanonicalGraph, name: str
) -> None:
    graph = windowed(canonical, FORMATS[name])
    ids = np.random.default_rng(1).integers(0, 250, 32)
    with opened(graph, threads=1) as context:
        expected, rows = one_by_one(context, ids)
    with opened(graph, threads=2) as context:
        context.zero()
        window = context.window("prefill_32")
        stage(window, ids, 0)
        context.run(window)
        np.testing.assert_array_equal(context.logits(window)[0, -1], expected[-1])
        require_rows(context.cache(), rows, 32)


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_of_a_tree_has_the_bits_of_its_chain(canonical: CanonicalGraph, name: str) -> None:
    graph = windowed(canonical, FORMATS[name], trees=True)
    random = np.random.default_rng(2)
    prompt, nodes = random.integers(0, 250, 20), random.integers(0, 250, len(TREE))
    paths = [tree_path(node) for node in range(len(TREE))]
    sees = np.zeros((len(TREE), len(TREE)), np.bool_)
    for node, path in enumerate(paths):
        sees[node, path] = True
    with opened(graph) as context:
        expected = [one_by_one(context, np.concatenate([prompt, nodes[path]]))[0][-1] for path in paths]
        one_by_one(context, prompt)
        window = context.window("verify_12")
        positions = len(prompt) + np.array([len(path) - 1 for path in paths])
        stage(window, nodes, len(prompt), positions=positions, sees=sees)
        context.run(window)
        found = context.logits(window)[0, : len(TREE)]
        for node in range(len(TREE)):
            np.testing.assert_array_equal(found[node], expected[node], err_msg=f"node {node}")


def test_integer_weights_differ_from_fp32_and_not_by_much(canonical: CanonicalGraph) -> None:
    """The control: what is compared above changes with the input."""
    ids = np.random.default_rng(3).integers(0, 250, 16)
    logits = {}
    for name in ("fp32", "int8 blocks"):
        with opened(windowed(canonical, FORMATS[name])) as context:
            logits[name] = one_by_one(context, ids)[0]
    spread = logits["fp32"].std()
    assert 0 < np.abs(logits["int8 blocks"] - logits["fp32"]).max() < spread


def tree_path(node: int) -> list[int]:
    path = [node]
    while TREE[path[0]] >= 0:
        path.insert(0, TREE[path[0]])
    return path


def window_exact(graph: CompiledGraph) -> bool:
    """Whether every product and attention runs on the operators."""
    return graph.stock == ()
