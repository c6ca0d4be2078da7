"""A bundle decodes on the operators: fp32 and int8 caches in the runtime's buffers, rows moved, copied and shared."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from specruntime import SamplingParams, complete, open_bundle
from specruntime.bundle import LoadedBundle, load_manifest
from specruntime.engines import EngineOptions, open_engine
from specruntime.engines.protocol import Context
from specruntime.engines.windows import stage
from specruntime.inspection.memory import summarise_memory
from specruntime.inspection.summary import render_summary, summarise
from specruntime.manifest.graph import GraphSpec
from tests.kernels.nodes import DOMAIN, pack_float32, usable_paths
from tests.kernels.window_bundle import write_window
from tests.made_once import made_once

IDS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], np.int64)


def over_operators(model: onnx.ModelProto, cache: str) -> None:
    """Put every product and attention of a small graph on the operators."""
    weights = {each.name: each for each in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            attributes = [each for each in node.attribute if each.name != "local_window_size"]
            inputs = [*node.input[:5], "cache_length", "query_lengths", *node.input[7:9]]
            replaced = helper.make_node(
                "WindowAttention", inputs, list(node.output), name=node.name, domain=DOMAIN
            )
            replaced.attribute.extend([*attributes, helper.make_attribute("cache", cache)])
            node.CopyFrom(replaced)
        elif node.op_type == "MatMul" and node.input[1] in weights:
            matrix = numpy_helper.to_array(weights[node.input[1]])
            name = f"{node.output[0]}.packed"
            model.graph.initializer.append(numpy_helper.from_array(pack_float32(matrix.T), name))
            sizes = {"K": matrix.shape[0], "N": matrix.shape[1], "format": "fp32", "rows": "float"}
            node.CopyFrom(
                helper.make_node(
                    "WindowMatMul", [node.input[0], name], list(node.output), domain=DOMAIN, **sizes
                )
            )
    used = {name for node in model.graph.node for name in node.input}
    unused = [each for each in model.graph.initializer if each.name not in used]
    for each in unused:
        model.graph.initializer.remove(each)
    if cache == "int8":
        for value in (*model.graph.input, *model.graph.output):
            if value.name.startswith(("past_", "present_")):
                tensor = value.type.tensor_type
                tensor.elem_type = onnx.TensorProto.INT8
                tensor.shape.dim[3].dim_value += 4
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))


@pytest.fixture(scope="session", params=["fp32", "int8"])
def window_bundle(request: pytest.FixtureRequest, run_directory: Path, tiny_bundle: Path) -> Path:
    cache = request.param

    def build(root: Path) -> None:
        write_window(tiny_bundle, root, lambda model: over_operators(model, cache), cache=cache, exact=True)

    return made_once(run_directory / f"tiny-window-{cache}.bundle", build)


def test_drafts_change_no_token_on_any_path(window_bundle: Path) -> None:
    found = set()
    for path in usable_paths():
        with open_bundle(window_bundle, options=EngineOptions(kernels=path)) as bundle:
            assert bundle.kernels == path
            params = SamplingParams(max_tokens=40, ignore_eos=True)
            for speculate in (True, False):
                found.add(complete(bundle.new_session(speculate), [*IDS, *IDS], params).token_ids)
    assert len(found) == 1
    if "fp32" in window_bundle.name:
        with open_bundle(window_bundle, options=EngineOptions(kernels="off")) as bundle:
            assert bundle.kernels is None
            assert complete(bundle.new_session(), [*IDS, *IDS], params).token_ids in found


@pytest.fixture
def opened(window_bundle: Path) -> Iterator[tuple[GraphSpec, Any]]:
    spec = load_manifest(window_bundle).target
    engine = open_engine(spec, window_bundle, EngineOptions(threads=2, kernels="auto"))
    yield engine.spec, engine
    engine.close()


def run_rows(context: Context, ids: np.ndarray, start: int, profile: str) -> np.ndarray:
    window = context.window(profile)
    stage(window, ids, start)
    context.run(window)
    return context.logits(window)[0, : len(ids)].copy()


def widest(spec: GraphSpec) -> str:
    return max((p for p in spec.profiles if p.rows == p.width), key=lambda p: p.width).name


def single(spec: GraphSpec) -> str:
    return next(p for p in spec.profiles if p.width == 1).name


def test_a_row_is_the_same_in_every_window(opened: tuple[GraphSpec, Any]) -> None:
    spec, engine = opened
    wide, one = widest(spec), single(spec)
    width = spec.profile(wide).width
    together, alone = engine.new_context(), engine.new_context()
    rows = run_rows(together, IDS[:width], 0, wide)
    for index in range(width):
        np.testing.assert_array_equal(run_rows(alone, IDS[index : index + 1], index, one)[0], rows[index])
    for name, cache in together.cache().items():
        np.testing.assert_array_equal(cache[:, :, :width], alone.cache()[name][:, :, :width])
    # Fewer rows than the window has: the rest is padding, and rejected rows lie behind.
    short = run_rows(together, IDS[:2], 0, wide)
    np.testing.assert_array_equal(short, rows[:2])
    np.testing.assert_array_equal(run_rows(together, IDS[2:width], 2, wide), rows[2:])


def test_rows_are_moved_and_copied_whole(opened: tuple[GraphSpec, Any]) -> None:
    spec, engine = opened
    wide, one = widest(spec), single(spec)
    width = spec.profile(wide).width
    context, other = engine.new_context(), engine.new_context()
    run_rows(context, IDS[:width], 0, wide)
    before = {name: cache.copy() for name, cache in context.cache().items()}
    other.copy_rows(context, width)
    context.keep(0, np.array([0, 2], np.int64))
    for name, cache in context.cache().items():
        np.testing.assert_array_equal(cache[:, :, :2], before[name][:, :, [0, 2]])
        np.testing.assert_array_equal(other.cache()[name][:, :, :width], before[name][:, :, :width])
    np.testing.assert_array_equal(
        run_rows(other, IDS[:1], width, one), run_rows(continued(engine, wide, width), IDS[:1], width, one)
    )


def continued(engine: Any, profile: str, width: int) -> Context:
    context: Context = engine.new_context()
    run_rows(context, IDS[:width], 0, profile)
    return context


def test_the_cache_is_what_the_manifest_says(window_bundle: Path, opened: tuple[GraphSpec, Any]) -> None:
    spec, engine = opened
    plain = load_manifest(window_bundle).target
    size = next(t for t in plain.inputs if t.name == "past_key.0").shape[-1]
    assert isinstance(size, int)
    cache = engine.new_context().cache()["past_key.0"]
    int8 = "int8" in window_bundle.name
    assert cache.dtype == (np.int8 if int8 else np.float32)
    assert cache.shape[-1] == (size + 4 if int8 else size)
    assert spec.capacity == plain.capacity and spec.file != plain.file


def test_inspect_shows_the_path_and_what_it_needs(
    window_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECRUNTIME_KERNELS", usable_paths()[-1])
    manifest = load_manifest(window_bundle)
    summary = summarise(manifest, window_bundle)
    shown = summary["graphs"]["target"]["kernels"]
    assert (shown["path"], shown["reason"], shown["exact"]) == (usable_paths()[-1], None, True)
    assert f"own operators run here on {usable_paths()[-1]}" in render_summary(summary)
    used = summarise_memory(manifest, None)["target"]
    monkeypatch.setenv("SPECRUNTIME_KERNELS", "off")
    summary = summarise(manifest, window_bundle)
    assert "own operators not used here: they were turned off" in render_summary(summary)
    plain = summarise_memory(manifest, None)["target"]
    assert isinstance(used, dict) and isinstance(plain, dict)
    ratio = (16 + 4) / 64 if "int8" in window_bundle.name else 1
    assert used["kv_bytes_per_token"] == plain["kv_bytes_per_token"] * ratio
    assert json.dumps(summary)


def test_packed_weights_that_do_not_fit_give_the_plain_graph(
    tiny_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def shorten(model: onnx.ModelProto) -> None:
        over_operators(model, "fp32")
        packed = next(each for each in model.graph.initializer if each.name.endswith(".packed"))
        packed.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(packed)[:-64], packed.name))

    root = write_window(tiny_bundle, tmp_path / "bundle", shorten)
    with open_bundle(root) as bundle:
        assert bundle.kernels is None
        assert decodes(bundle)
    (line,) = [record.getMessage() for record in caplog.records if "window.onnx" in record.getMessage()]
    assert "WindowMatMul" in line and "bytes" in line and "\n" not in line
    with pytest.raises(Exception, match="WindowMatMul"):
        open_bundle(root, options=EngineOptions(kernels=usable_paths()[0]))


def test_a_graph_with_another_cache_than_the_manifest_says_gives_the_plain_one(
    tiny_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = write_window(
        tiny_bundle, tmp_path / "bundle", lambda model: over_operators(model, "int8"), cache="fp32"
    )
    with open_bundle(root) as bundle:
        assert bundle.kernels is None
        assert decodes(bundle)
    assert "disagree on past_key.0: found int8 in the file, float32 in the manifest" in caplog.text


def decodes(bundle: LoadedBundle) -> bool:
    return len(complete(bundle.new_session(), list(IDS), SamplingParams(max_tokens=4)).token_ids) > 0


def test_weights_may_be_copied(window_bundle: Path) -> None:
    with open_bundle(window_bundle, options=EngineOptions(copy_weights=True)) as bundle:
        assert bundle.kernels is not None
        assert decodes(bundle)
