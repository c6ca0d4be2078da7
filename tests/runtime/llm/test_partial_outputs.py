"""A profile may run a path of its own, and a graph may lack ids or a cache: what is bound, run and refused then."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from specruntime.engines import EngineOptions
from specruntime.engines.onnx_batch import OrtBatch
from specruntime.engines.onnxruntime import OrtEngine
from specruntime.engines.protocol import OneSequence
from specruntime.engines.windows import Feeder
from specruntime.errors import BackendIncompatible, InvalidArgument
from specruntime.manifest.schema import AliasPair, GraphSpec, OnnxRuntimeEngine, Profile, TensorSpec

VOCAB, KNOWN, CAPACITY = 20, 10, 8
WHOLE = ("logits", "top_ids", "present_key.0")
SECOND = ("draft_logits", "draft_top_ids", "draft_present_key.0")
TABLES = {
    name: np.random.default_rng(n).normal(size=(VOCAB, VOCAB)).astype(np.float32)
    for n, name in enumerate("ab")
}


def tensor(name: str, dtype: str, *shape: object) -> TensorSpec:
    return TensorSpec.model_validate({"name": name, "dtype": dtype, "shape": shape})


def save(path: Path, spec: GraphSpec, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray]) -> None:
    kinds = {"int64": TensorProto.INT64, "float32": TensorProto.FLOAT}
    taken, filled = (
        [helper.make_tensor_value_info(t.name, kinds[t.dtype], list(t.shape)) for t in tensors]
        for tensors in (spec.inputs, spec.outputs)
    )
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "tiny", taken, filled, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10), path)


def spec_of(
    inputs: list[TensorSpec], outputs: list[TensorSpec], aliases: list[AliasPair], profiles: list[Profile]
) -> GraphSpec:
    return GraphSpec(
        file="tiny.onnx",
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        aliases=tuple(aliases),
        profiles=tuple(profiles),
        batch=1,
        capacity=CAPACITY,
        layers=len(aliases) // 2,
        vocab_size=VOCAB,
        padded_vocab_size=VOCAB,
        engine=OnnxRuntimeEngine(minimum_version="1.32.0", threads=1),
    )


@pytest.fixture
def two_paths(tmp_path: Path) -> OneSequence:
    """Logits from a table. The whole path knows ids below 10 only and writes 1 into the cache, the second one 2."""
    cache = tensor("past_key.0", "float32", "B", 1, CAPACITY, 2)
    outputs = [
        tensor("logits", "float32", "B", "R", VOCAB),
        tensor("top_ids", "int64", "B", "R"),
        tensor("draft_logits", "float32", "B", "R", VOCAB),
        tensor("draft_top_ids", "int64", "B", "R"),
        *(cache.model_copy(update={"name": name}) for name in ("present_key.0", "draft_present_key.0")),
    ]
    spec = spec_of(
        [tensor("input_ids", "int64", "B", "W"), tensor("cache_length", "int64", "B"), cache],
        outputs,
        [AliasPair(input="past_key.0", output=name) for name in ("present_key.0", "draft_present_key.0")],
        [
            Profile(name="step", width=1, rows=1, outputs=WHOLE),
            Profile(name="draft", width=1, rows=1, outputs=SECOND, file="path.onnx"),
        ],
    )
    _save_path(tmp_path / "tiny.onnx", spec, "", TABLES["a"][:KNOWN], 1.0)
    _save_path(tmp_path / "path.onnx", spec, "draft_", TABLES["b"], 2.0)
    return OrtEngine(spec, tmp_path, EngineOptions()).new_context()


def _save_path(path: Path, spec: GraphSpec, prefix: str, table: np.ndarray, written: float) -> None:
    """Logits of the last id from the table, and a cache row of `written`."""
    constants = {
        "axes": np.array([1, 3]),
        "twice": np.array([1, 1, 1, 2]),
        "table": table,
        "written": np.array(written, np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], [f"{prefix}logits"]),
        helper.make_node("ArgMax", [f"{prefix}logits"], [f"{prefix}top_ids"], axis=-1, keepdims=0),
        helper.make_node("Cast", ["input_ids"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["number", "number"], ["none"]),
        helper.make_node("Add", ["none", "written"], ["ones"]),
        helper.make_node("Unsqueeze", ["ones", "axes"], ["rows"]),
        helper.make_node("Expand", ["rows", "twice"], ["new"]),
        helper.make_node(
            "TensorScatter", ["past_key.0", "new", "cache_length"], [f"{prefix}present_key.0"], axis=2
        ),
    ]
    filled = [output for output in spec.outputs if output.name.startswith("draft_") is (prefix != "")]
    save(path, spec.model_copy(update={"outputs": tuple(filled)}), nodes, constants)


def run(context: OneSequence, profile: str, token: int, row: int) -> int:
    window = context.window(profile)
    window.input_ids[0, 0], window.cache_length[0] = token, row
    context.run(window)
    return int(window.top_ids[0, 0])


def test_each_profile_runs_its_own_path_alone(two_paths: OneSequence) -> None:
    context, cache = two_paths, two_paths.cache()["past_key.0"]
    assert run(context, "draft", 15, row=0) == np.argmax(TABLES["b"][15]), (
        "an id the whole path cannot look up"
    )
    assert np.array_equal(context.logits(context.window("draft"))[0, 0], TABLES["b"][15])
    assert run(context, "step", 3, row=1) == np.argmax(TABLES["a"][3])
    assert np.array_equal(context.logits(context.window("step"))[0, 0], TABLES["a"][3])
    assert cache[0, 0, :, 0].tolist() == [2, 1, 0, 0, 0, 0, 0, 0], (
        "both write the same buffer, each its own rows"
    )
    with pytest.raises(Exception, match="onnxruntime failed while running"):
        run(context, "step", 15, row=2)


def test_outputs_a_profile_leaves_out_are_not_allocated(two_paths: OneSequence) -> None:
    assert isinstance(two_paths.batch, OrtBatch)
    staging = two_paths.batch._staging
    found = {name: {*buffers.outputs, *buffers._pasts} for name, buffers in staging.items()}
    assert found == {"step": set(WHOLE), "draft": set(SECOND)}


def test_a_target_never_steps_with_the_path_of_its_draft(two_paths: OneSequence) -> None:
    feeder = Feeder(two_paths)
    assert [window.profile.name for window in feeder._windows] == ["step"]
    assert feeder.top_ids(feeder.feed(np.array([4]), 0)).tolist() == [np.argmax(TABLES["a"][4])]


@pytest.fixture
def heads(tmp_path: Path) -> Callable[[], OneSequence]:
    """Two heads with two candidates each; no ids, no cache, no logits."""
    spec = spec_of(
        [tensor("hidden", "float32", "B", "W", 4)],
        [tensor("topk_ids", "int64", "B", "R", 2, 2), tensor("topk_logprobs", "float32", "B", "R", 2, 2)],
        [],
        [Profile(name="heads", width=1, rows=1)],
    )
    nodes = [
        helper.make_node("MatMul", ["hidden", "weights"], ["flat"]),
        helper.make_node("Reshape", ["flat", "shape"], ["scores"]),
        helper.make_node("LogSoftmax", ["scores"], ["logprobs"], axis=-1),
        helper.make_node("TopK", ["logprobs", "k"], ["topk_logprobs", "topk_ids"]),
    ]
    weights = TABLES["a"][:4]
    constants = {"weights": weights, "shape": np.array([0, 0, 2, VOCAB // 2]), "k": np.array([2])}
    save(tmp_path / spec.file, spec, nodes, constants)
    return lambda: OrtEngine(spec, tmp_path, EngineOptions()).new_context()


def test_a_graph_without_ids_or_cache_runs(heads: Callable[[], OneSequence]) -> None:
    context = heads()
    window = context.window("heads")
    assert window.hidden is not None and window.topk_ids is not None and window.topk_logprobs is not None
    assert window.features is None and window.next_hidden is None and window.window_mask is None
    window.hidden[0, 0] = [1, -2, 0.5, 3]
    context.run(window)
    scores = (window.hidden[0, 0] @ TABLES["a"][:4]).reshape(2, -1)
    assert window.topk_ids[0, 0].tolist() == np.argsort(-scores, axis=1)[:, :2].tolist()
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        np.exp(window.topk_logprobs[0, 0]), -np.sort(-chances, axis=1)[:, :2], rtol=1e-4
    )
    assert context.cache() == {}
    context.keep(3, np.array([0, 2]))
    context.zero()
    with pytest.raises(InvalidArgument, match="computes no logits at heads"):
        context.logits(window)
    context.close()


def test_an_output_that_is_not_in_the_file_is_refused(two_paths: OneSequence, tmp_path: Path) -> None:
    spec = two_paths.spec
    lacking = spec.model_copy(update={"outputs": (*spec.outputs, tensor("features", "float32", "B", "W", 4))})
    step, draft = spec.profiles
    whole = step.model_copy(update={"outputs": (*WHOLE, "features")})
    with pytest.raises(
        BackendIncompatible, match=r"tiny\.onnx and the manifest disagree on outputs: features"
    ):
        OrtEngine(lacking.model_copy(update={"profiles": (whole, draft)}), tmp_path, EngineOptions())
    path = draft.model_copy(update={"outputs": (*SECOND, "features")})
    with pytest.raises(
        BackendIncompatible, match=r"path\.onnx and the manifest disagree on outputs: features"
    ):
        OrtEngine(lacking.model_copy(update={"profiles": (step, path)}), tmp_path, EngineOptions())


def test_outputs_beside_the_one_file_are_refused(heads: Callable[[], OneSequence], tmp_path: Path) -> None:
    spec = heads().spec
    more = spec.model_copy(update={"outputs": (*spec.outputs, tensor("logits", "float32", "B", "R", VOCAB))})
    with pytest.raises(BackendIncompatible, match="disagree on outputs: logits"):
        OrtEngine(more, tmp_path, EngineOptions())
