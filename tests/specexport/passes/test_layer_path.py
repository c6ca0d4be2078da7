"""A path through some layers equals eager PyTorch with these layers only, and touches no cache but theirs."""

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from specexport.export import find_residual_stream
from specexport.graph.files import GRAPH_NAME
from specexport.graph.plan import GraphPlan
from specexport.passes.layer_path import AddDraftPath, KeepLayers, full_outputs, path_outputs, shared_layers
from tests.specexport.export.architectures import EXPORTED, Architecture
from tests.specexport.export.comparison import (
    POISON,
    VOCAB_SIZE,
    Array,
    Graph,
    Reference,
    fill_cache,
    random_ids,
    relative,
    run_eager,
)
from tests.specexport.export.exported import CANONICAL, Exported, ExportedArchitectures, export
from tests.specexport.export.test_tree_windows import tree_step

FILL = 30
CASES = [("deep", (0, 1)), ("deep", (0, 2)), ("deep", (1, 3)), ("gemma3_text", (1,)), ("gpt2", (0,))]


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A llama of four layers."""
    llama = next(a for a in EXPORTED if a.model_type == "llama")
    sizes = {**llama.sizes, "num_hidden_layers": 4}
    return export(Architecture("llama", sizes, "four layers"), tmp_path_factory.mktemp("deep") / "llama")


def model_of(deep: Exported, exported: ExportedArchitectures, name: str) -> Exported:
    return deep if name == "deep" else exported[name]


def only_layers(model: PreTrainedModel, layers: tuple[int, ...]) -> PreTrainedModel:
    """A copy of `model` that has these decoder layers and no others."""
    kept = copy.deepcopy(model)
    stream = find_residual_stream(kept)
    assert not isinstance(stream, str)
    stack = next(
        m for m in kept.modules() if isinstance(m, torch.nn.ModuleList) and list(m) == list(stream.layers)
    )
    for layer in reversed(range(len(stack))):
        if layer not in layers:
            del stack[layer]
    for number, layer_module in enumerate(stack):
        for module in layer_module.modules():
            if hasattr(module, "layer_idx"):
                setattr(module, "layer_idx", number)  # noqa: B010
    kept.config.num_hidden_layers = len(layers)
    if kinds := getattr(kept.config, "layer_types", None):
        kept.config.layer_types = [kinds[layer] for layer in layers]
    return kept


@dataclass
class _Step:
    """One token behind FILL committed rows, run by both."""

    names: tuple[str, ...]
    results: dict[str, Array]
    before: list[Array]
    cache: list[Array]


def eager_step(
    found: Exported, layers: tuple[int, ...], full: Reference, token: Array
) -> tuple[Array, DynamicCache]:
    """Logits of the kept layers behind cache rows that all layers wrote."""
    cache = DynamicCache()
    for number, layer in enumerate(layers):
        key, value = (torch.from_numpy(full.rows[2 * layer + kind][None]) for kind in (0, 1))
        cache.update(key, value, number)
    with torch.no_grad():
        output = only_layers(found.model, layers)(
            input_ids=torch.from_numpy(token)[None],
            position_ids=torch.tensor([[FILL]]),
            cache=cache,
            use_cache=True,
        )
    return output.logits[0, -1].numpy(), cache


def run_path(path: Path, layers: tuple[int, ...], full: Reference, token: Array) -> _Step:
    """Fetches what the draft path computes, its caches bound in place, from buffers whose unused rows hold +-POISON."""
    graph = Graph(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    cache = graph.empty_cache(1, POISON)
    fill_cache(cache, [full], [FILL])
    before = [rows.copy() for rows in cache]
    fed = {
        "input_ids": token[None],
        "position_ids": np.array([[FILL]]),
        "cache_length": np.array([FILL]),
        "window_mask": np.ones((1, 1, 1), bool),
        "logits_rows": np.zeros((1, 1), np.int64),
        "query_lengths": np.ones(1, np.int32),
    }
    fed = {name: array for name, array in fed.items() if name in graph.inputs}
    fed |= {value.name: rows for value, rows in zip(graph.past, cache, strict=True)}
    names = path_outputs([value.name for value in session.get_outputs()], layers)
    binding = session.io_binding()
    for name, array in fed.items():
        binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    for name in names:
        if "present_" in name:
            held = fed["past_" + name.partition("present_")[2]]
            binding.bind_output(name, "cpu", 0, held.dtype.type, held.shape, held.ctypes.data)
        else:
            binding.bind_output(name, "cpu")
    options = onnxruntime.RunOptions()
    options.only_execute_path_to_fetches = True
    session.run_with_iobinding(binding, options)
    results = {
        name: value.numpy()
        for name, value in zip(names, binding.get_outputs(), strict=True)
        if "present_" not in name
    }
    return _Step(names, results, before, cache)


@pytest.mark.parametrize("trees", [False, True], ids=["chains", "trees"])
@pytest.mark.parametrize(("name", "layers"), CASES)
def test_the_draft_path_is_the_kept_layers_on_the_targets_cache(
    deep: Exported,
    exported: ExportedArchitectures,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    name: str,
    layers: tuple[int, ...],
    trees: bool,
) -> None:
    found = model_of(deep, exported, name)
    found.lower(GraphPlan(trees=trees, draft_layers=layers), tmp_path / "path")
    ids = random_ids(5, FILL + 1)
    full = run_eager(found.model, ids[:FILL])
    step = run_path(tmp_path / "path" / GRAPH_NAME, layers, full, ids[FILL:])
    expected, rows = eager_step(found, layers, full, ids[FILL:])
    assert relative(step.results["draft_logits"][0, 0], expected) < 1e-4
    assert step.results["draft_top_ids"][0, 0] == expected[:VOCAB_SIZE].argmax()
    for number, (before, after) in enumerate(zip(step.before, step.cache, strict=True)):
        layer, kind = divmod(number, 2)
        if layer not in layers:
            np.testing.assert_array_equal(after, before)
            continue
        np.testing.assert_array_equal(np.delete(after, FILL, 2), np.delete(before, FILL, 2))
        written = rows.layers[layers.index(layer)]
        assert isinstance(written, DynamicLayer)
        wanted = (written.keys, written.values)[kind]
        assert wanted is not None
        assert relative(after[0, :, FILL], wanted[0, :, -1].numpy()) < 1e-4
    assert "in-place optimization not activated" not in "".join(capfd.readouterr())


def test_the_full_path_is_as_before(deep: Exported, tmp_path: Path) -> None:
    """The shared layers are shared: the graph grows by the copied layers and a head, the weights not at all."""
    deep.lower(GraphPlan(), tmp_path / "plain")
    deep.lower(GraphPlan(draft_layers=(0, 1, 3)), tmp_path / "path")
    plain, path = (ir.load(tmp_path / name / GRAPH_NAME) for name in ("plain", "path"))
    attention = [
        sum(node.op_type == "GroupQueryAttention" for node in model.graph) for model in (plain, path)
    ]
    assert attention == [4, 5]
    assert [value.name for value in path.graph.inputs] == [value.name for value in plain.graph.inputs]
    outputs = [value.name or "" for value in path.graph.outputs]
    assert full_outputs(outputs) == tuple(value.name for value in plain.graph.outputs)
    shared = {f"present_{kind}.{layer}" for kind in ("key", "value") for layer in (0, 1)}
    own = {"draft_logits", "draft_top_ids", "draft_present_key.3", "draft_present_value.3"}
    assert set(path_outputs(outputs, (0, 1, 3))) == shared | own
    sizes = [(tmp_path / name / "graph.weights").stat().st_size for name in ("plain", "path")]
    assert sizes[1] < 1.01 * sizes[0]


def test_a_tied_head_is_not_packed_twice(exported: ExportedArchitectures, tmp_path: Path) -> None:
    """One product has the tied table as its right operand, which is what ONNX Runtime packs."""
    exported["gpt2"].lower(GraphPlan(draft_layers=(0,)), tmp_path / "path")
    model = ir.load(tmp_path / "path" / GRAPH_NAME)
    table = model.graph.initializers
    sized = {
        name for name, value in table.items() if value.shape is not None and tuple(value.shape) == (160, 64)
    }
    products = [node for node in model.graph if node.op_type in ("MatMul", "FusedMatMul")]
    packed = [node for node in products if node.inputs[1] is not None and node.inputs[1].name in sized]
    left = [node for node in products if node.inputs[0] is not None and node.inputs[0].name in sized]
    assert (len(packed), len(left)) == (1, 1)


def test_kept_layers_are_a_graph_of_their_own(deep: Exported, tmp_path: Path) -> None:
    layers = (0, 2, 3)
    deep.lower(GraphPlan(kept_layers=layers, trees=True), tmp_path / "kept")
    graph = Graph(tmp_path / "kept" / GRAPH_NAME)
    assert [value.name for value in graph.past] == [
        f"past_{kind}.{number}" for number in range(3) for kind in ("key", "value")
    ]
    ids = random_ids(6, 12)
    expected = run_eager(only_layers(deep.model, layers), ids)
    cache = graph.empty_cache(1, POISON)
    chain = tree_step(ids, 0, [-1, *range(11)])
    logits, _ = graph.run(chain, cache)
    assert relative(logits[0], expected.logits) < 1e-4


def test_a_layer_that_reads_more_than_the_residual_stream_is_a_reason(deep: Exported) -> None:
    model = ir.load(deep.path(CANONICAL))
    states = {value.name: value for value in model.graph.outputs if (value.name or "").startswith("hidden.")}
    bypass = ir.node("Add", [states["hidden.3"], states["hidden.1"]])
    readers = [use for use in states["hidden.3"].uses() if use.node is not bypass]
    model.graph.insert_after(states["hidden.3"].producer(), bypass)  # type: ignore[arg-type]
    for use in readers:
        use.node.replace_input_with(use.idx, bypass.outputs[0])
    for graph_pass in (AddDraftPath((0, 3)), KeepLayers((0, 3))):
        report = graph_pass(model)
        assert report.changed == 0 and "layer 3 reads hidden.1, which is not part" in report.reasons[0]


def test_a_graph_without_hidden_states_is_a_reason(deep: Exported) -> None:
    model = ir.load(deep.path(CANONICAL))
    for output in [value for value in model.graph.outputs if (value.name or "").startswith("hidden.")]:
        model.graph.outputs.remove(output)
    assert "no hidden states" in AddDraftPath((0,))(model).reasons[0]


@pytest.mark.parametrize(("layers", "shared"), [((0, 1), 2), ((0, 2), 1), ((1, 2), 0)])
def test_layers_are_shared_up_to_the_first_skipped(layers: tuple[int, ...], shared: int) -> None:
    assert shared_layers(layers) == shared
