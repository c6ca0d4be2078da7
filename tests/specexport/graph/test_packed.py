"""Packed weights saved in a bundle: the same bits with and without, in pages that processes share, on the machine they
were packed for; packed at open on any other; damage refused as in every file."""

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from specexport.backends import backend_of
from specexport.bench.sharing_probe import probe
from specexport.build import build
from specexport.cache.entries import CACHE_VARIABLE, file_sha256
from specexport.checkpoints.loading import load_checkpoint
from specexport.errors import BuildError
from specexport.graph.canonical import CanonicalGraph, export_canonical
from specexport.graph.compiled import CompiledGraph, compile_graph
from specexport.graph.files import target_profiles
from specexport.graph.packed import PACKED_NAME, pack_weights
from specexport.graph.plan import GraphPlan, LinearPlan, WeightPlan
from specexport.recipe.schema import OnnxRuntimeBackend, Precision
from specruntime.bundle import load_manifest, open_bundle
from specruntime.check import check_bundle
from specruntime.engines import EngineOptions, open_engine
from specruntime.engines import prepacked as host
from specruntime.engines.protocol import Context
from specruntime.errors import BackendIncompatible, BundleHashMismatch, BundleInvalid
from specruntime.inspection.memory import memory_of
from specruntime.inspection.summary import render_summary, summarise
from specruntime.manifest.schema import GraphSpec, OnnxRuntimeEngine, prepacked_of
from tests.made_once import made_once
from tests.specexport.conftest import random_target
from tests.specexport.graph.packed_recipes import recipe_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="features are read from /proc/cpuinfo")
BACKEND = OnnxRuntimeBackend(kind="onnxruntime", provider="cpu", threads=1)
FINE = LinearPlan("int8", "fine")
FORMATS: dict[str, tuple[Precision, WeightPlan | None]] = {
    "fp32": ("fp32", None),
    "fp16": ("fp16", None),
    "int8 blocks": ("fp32", WeightPlan(LinearPlan("int8", "blocks"), LinearPlan("int8", "blocks"))),
    "int8 fine": ("fp32", WeightPlan(FINE, FINE)),
    "int8 rows": ("fp32", WeightPlan(LinearPlan("int8", "rows"), FINE)),
    "int4 fine": ("fp32", WeightPlan(LinearPlan("int4", "fine"), FINE)),
    "fp32 head": ("fp32", WeightPlan(LinearPlan("int8", "blocks"), LinearPlan("fp32"))),
}


@pytest.fixture(scope="module")
def cache_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield


def exported(precision: Precision) -> CanonicalGraph:
    """A llama of two layers with a tied table, traced once in the cache of the module."""
    target = random_target(hidden_size=64, intermediate_size=128, tie_word_embeddings=True)
    key = {"fp32": "2", "fp16": "3", "bf16": "4"}[precision] * 64
    return export_canonical(key, lambda: load_checkpoint(target, precision), capacity=48, reference_tokens=24)


@pytest.fixture(scope="module")
def canonical(cache_of_module: None) -> CanonicalGraph:
    return exported("fp32")


@pytest.fixture(scope="session")
def packed_bundle(run_directory: Path) -> Path:
    """recipes/tiny-random.yaml with packed weights of target and draft. Read it, never write it."""
    return made_once(run_directory / "packed.bundle", lambda place: build(recipe_of("random"), place))


@pytest.fixture(scope="session")
def plain_bundle(run_directory: Path) -> Path:
    """The same without them. Read it, never write it."""
    recipe = recipe_of("random", prepacked=False)
    return made_once(run_directory / "unpacked.bundle", lambda place: build(recipe, place))


@pytest.fixture
def bundle(packed_bundle: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(packed_bundle, tmp_path / "packed.bundle"))


def placed(graph: CompiledGraph, root: Path) -> GraphSpec:
    shutil.copytree(graph.directory, root / "target")
    return graph.spec.model_copy(update={"file": f"target/{graph.spec.file}"})


def with_packed(spec: GraphSpec, root: Path) -> GraphSpec:
    assert isinstance(spec.engine, OnnxRuntimeEngine)
    found = pack_weights(spec, root)
    assert found is not None and found.features == host.processor_features()
    return spec.model_copy(update={"engine": spec.engine.model_copy(update={"prepacked": found})})


def packed_pages(root: Path, spec: GraphSpec) -> dict[str, int]:
    """Of the mapped packed weights of a graph: KiB that are resident, that others map too, that are private."""
    packed, path = prepacked_of(spec), (root / spec.file).with_name("graph.weights").resolve()
    first = path.stat().st_size - (packed.bytes if packed is not None else 0)
    sums = dict.fromkeys(("Rss", "Shared", "Anonymous"), 0)
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split(maxsplit=5)
        if not words[0].endswith(":"):
            inside = len(words) == 6 and words[5] == str(path) and int(words[2], 16) >= first
        elif inside and (name := words[0].rstrip(":").partition("_")[0]) in sums:
            sums[name] += int(words[1])
    return sums


def logits_at_each_width(context: Context) -> list[bytes]:
    random, found = np.random.default_rng(1), []
    for start, profile in enumerate(context.spec.profiles):
        window = context.window(profile.name)
        window.input_ids[:] = random.integers(0, 259, (1, profile.width))
        window.cache_length[:] = start
        window.position_ids[:] = start + np.arange(profile.width)
        window.logits_rows[:] = np.arange(profile.width)[-profile.rows :]
        context.run(window)
        found.append(context.logits(window).tobytes())
    return found


def answers(spec: GraphSpec, root: Path, *, in_file: bool) -> list[bytes]:
    """Logits of every profile; `in_file`: whether the kernels read the packed weights of the file."""
    with (
        closing(open_engine(spec, root, EngineOptions())) as engine,
        closing(engine.new_context()) as context,
    ):
        found = logits_at_each_width(context)
        pages = packed_pages(root, spec)
        assert (pages["Rss"] > 0) is in_file and pages["Anonymous"] == 0
        return found


@pytest.mark.parametrize(("precision", "weights"), FORMATS.values(), ids=FORMATS)
def test_every_width_computes_the_same_bits(
    cache_of_module: None, precision: Precision, weights: WeightPlan | None, tmp_path: Path
) -> None:
    plan, canonical = GraphPlan(weights=weights), exported(precision)
    graph = compile_graph(
        canonical, backend_of(BACKEND), profiles=target_profiles([2, 6], 16), batch=1, plan=plan
    )
    spec = placed(graph, tmp_path)
    before = (tmp_path / "target" / "graph.weights").read_bytes()
    packed = with_packed(spec, tmp_path)
    after = (tmp_path / "target" / "graph.weights").read_bytes()
    assert after.startswith(before), "the plain weights are where they were"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target"], "only the graph is left"
    assert answers(packed, tmp_path, in_file=True) == answers(spec, tmp_path, in_file=False)


def test_packed_weights_begin_at_pages(canonical: CanonicalGraph, tmp_path: Path) -> None:
    """Kernels load them by whole vectors, and a page of one file is a page of another process."""
    graph = compile_graph(canonical, backend_of(BACKEND), profiles=target_profiles([2], 16), batch=1)
    with_packed(placed(graph, tmp_path), tmp_path)
    model = onnx.load(tmp_path / "target" / PACKED_NAME, load_external_data=False)
    entries = [
        e.value for t in model.graph.initializer for e in t.external_data if e.key.startswith("prepacked")
    ]
    offsets = [int(blob.split(";")[0]) for entry in entries for blob in entry.split("|")[1:]]
    assert offsets and all(offset % 4096 == 0 for offset in offsets)


def test_a_bundle_counts_them_on_disk_and_once_in_memory(packed_bundle: Path, plain_bundle: Path) -> None:
    packed, plain = load_manifest(packed_bundle), load_manifest(plain_bundle)
    record = prepacked_of(packed.target)
    assert record is not None and packed.target.file == "target/graph.onnx"
    own_file, weights = (
        (packed_bundle / "target" / name).stat().st_size for name in ("graph.onnx", "graph.weights")
    )
    assert memory_of(packed).target.weights == own_file + weights - record.bytes
    assert weights - record.bytes == (plain_bundle / "target" / "graph.weights").stat().st_size
    assert memory_of(packed).target.row == memory_of(plain).target.row
    own, other = summarise(packed, packed_bundle), summarise(plain, plain_bundle)
    assert own["bundle_mb"] > 1.5 * other["bundle_mb"]
    for graph in ("target", "draft"):
        assert own["graphs"][graph]["prepacked"]["used_here"] is True
        assert other["graphs"][graph]["prepacked"] is None
    assert "used here" in render_summary(own) and "packed" not in render_summary(other)


def test_the_answers_are_those_of_the_plain_bundle(packed_bundle: Path, plain_bundle: Path) -> None:
    with open_bundle(packed_bundle) as packed, open_bundle(plain_bundle) as plain:
        found, expected = check_bundle(packed), check_bundle(plain)
    assert [comparison.divergence for comparison in found.comparisons] == [None] * len(expected.comparisons)
    assert [c.acceptance_length for c in found.comparisons] == [
        c.acceptance_length for c in expected.comparisons
    ]


def edit_manifest(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((bundle / "manifest.json").read_text())
    for graph in (document["target"], document["draft"]["graph"]):
        change(graph["engine"]["prepacked"])
    for name, record in document["files"].items():
        record.update(sha256=file_sha256(bundle / name), bytes=(bundle / name).stat().st_size)
    (bundle / "manifest.json").write_text(json.dumps(document))


OTHERS: dict[str, tuple[dict[str, object], str]] = {
    "processor": ({"features": ["avx", "quantum"]}, "lacks quantum"),
    "library": ({"version": "1.31.0"}, "they were packed by 1.31.0"),
    "architecture": ({"architecture": "riscv64"}, "they were packed for riscv64"),
}


@pytest.mark.parametrize(("change", "said"), OTHERS.values(), ids=OTHERS)
def test_another_machine_packs_at_open_and_says_so(
    bundle: Path, caplog: pytest.LogCaptureFixture, change: dict[str, object], said: str
) -> None:
    expected = answers(load_manifest(bundle).target, bundle, in_file=True)
    edit_manifest(bundle, lambda packed: packed.update(change))
    manifest = load_manifest(bundle)
    with caplog.at_level(logging.INFO, "specruntime.engines"):
        assert answers(manifest.target, bundle, in_file=False) == expected
    (line,) = [record for record in caplog.records if record.name == "specruntime.engines"]
    assert line.levelno == logging.WARNING and said in line.getMessage()
    assert "\n" not in line.getMessage() and "packed at open" in line.getMessage()
    assert said in summarise(manifest, bundle)["graphs"]["target"]["prepacked"]["reason"]
    assert said in render_summary(summarise(manifest, bundle))


def test_a_packing_that_the_library_does_not_make_is_not_used(bundle: Path) -> None:
    """The record fits this host, the saved weights do not: the library compares and packs."""
    expected = answers(load_manifest(bundle).target, bundle, in_file=True)
    model = onnx.load(bundle / "target" / PACKED_NAME, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key.startswith("prepacked"):
                entry.value = entry.value.replace(
                    "|", "0|", 1
                )  # the key: operator and digest of what it packs
    onnx.save(model, bundle / "target" / PACKED_NAME)
    edit_manifest(bundle, lambda packed: None)
    assert answers(load_manifest(bundle).target, bundle, in_file=False) == expected


def test_copied_weights_are_not_mapped(packed_bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = load_manifest(packed_bundle).target
    with (
        caplog.at_level(logging.INFO, "specruntime.engines"),
        closing(open_engine(spec, packed_bundle, EngineOptions(copy_weights=True))) as engine,
        closing(engine.new_context()) as context,
    ):
        assert packed_pages(packed_bundle, spec)["Rss"] == 0
        assert "weights are to be copied" in caplog.text
        copied = logits_at_each_width(context)
    assert copied == answers(spec, packed_bundle, in_file=True)


def damage(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset, 2 if offset < 0 else 0)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))


def test_damage_is_refused_as_in_every_file(bundle: Path) -> None:
    weights = bundle / "target" / "graph.weights"
    damage(weights, -1)  # of a packed weight
    with pytest.raises(BundleHashMismatch, match=r"target/graph\.weights was modified after the build"):
        open_bundle(bundle)
    # Without hashes the library, which packs to compare, finds it.
    with pytest.raises(BackendIncompatible, match=r"cannot load target/packed\.onnx.*do not match"):
        open_bundle(bundle, verify=False)
    damage(weights, -1)
    damage(weights, 0)  # of a plain one
    with pytest.raises(BundleHashMismatch, match=r"target/graph\.weights was modified after the build"):
        open_bundle(bundle)
    damage(weights, 0)
    open_bundle(bundle).close()
    damage(bundle / "target" / PACKED_NAME, 100)
    with pytest.raises(BundleHashMismatch, match=r"target/packed\.onnx was modified after the build"):
        open_bundle(bundle)
    (bundle / "target" / PACKED_NAME).unlink()
    with pytest.raises(BundleInvalid, match=r"target/packed\.onnx is missing"):
        open_bundle(bundle, verify=False)


_CHILD = """
import sys
from contextlib import closing
from pathlib import Path
from specruntime.bundle import load_manifest
from specruntime.engines import EngineOptions, open_engine
from tests.specexport.graph.test_packed import packed_pages
root = Path(sys.argv[1])
spec = load_manifest(root).target
with closing(open_engine(spec, root, EngineOptions())):
    print("open", flush=True)
    for line in sys.stdin:
        print(packed_pages(root, spec)[line.strip()], flush=True)
"""


def test_two_processes_share_the_pages(packed_bundle: Path) -> None:
    def opened() -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, packed_bundle], stdin=-1, stdout=-1, text=True
        )
        assert child.stdout is not None and child.stdout.readline() == "open\n"
        return child

    def asked(child: subprocess.Popen[str], name: str) -> int:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(f"{name}\n")
        child.stdin.flush()
        return int(child.stdout.readline())

    children = [opened(), opened()]
    try:
        packed = prepacked_of(load_manifest(packed_bundle).target)
        assert packed is not None
        for child in children:
            assert asked(child, "Rss") * 1024 > 0.9 * packed.bytes
            assert asked(child, "Shared") == asked(child, "Rss")
            assert asked(child, "Anonymous") == 0
    finally:
        for child in children:
            child.communicate()


@pytest.mark.parametrize("kind", ["eagle3-tree", "medusa", "layer-skip"])
def test_graphs_of_every_draft_are_packed(cache_of_module: None, kind: str, tmp_path: Path) -> None:
    bundle = build(recipe_of(kind), tmp_path / "packed.bundle")
    graphs = summarise(load_manifest(bundle), bundle)["graphs"]
    assert set(graphs) == ({"target"} if kind == "layer-skip" else {"target", "draft"})
    assert all(graph["prepacked"]["used_here"] for graph in graphs.values())
    with open_bundle(bundle) as opened:
        report = check_bundle(opened)
    assert [comparison.divergence for comparison in report.comparisons] == [None] * len(report.comparisons)


def test_a_packed_graph_that_computes_other_numbers_stops_the_build(
    canonical: CanonicalGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof at build compares bits: a saved graph of other weights does not pass."""
    from specexport.graph import packed as packed_weights

    graph = compile_graph(canonical, backend_of(BACKEND), profiles=target_profiles([2], 16), batch=1)
    spec, save = placed(graph, tmp_path), packed_weights._save_optimised

    def save_another(ort: Any, path: Path, directory: Path) -> None:
        other = directory / "other"
        shutil.copytree(path.parent, other)
        weights = np.fromfile(other / "graph.weights", np.uint8)
        weights[: len(weights) // 2] ^= 1  # the last bits of some mantissas
        weights.tofile(other / "graph.weights")
        save(ort, other / path.name, directory)

    monkeypatch.setattr(packed_weights, "_save_optimised", save_another)
    with pytest.raises(BuildError, match="compute other numbers than the plain ones"):
        pack_weights(spec, tmp_path)


def test_the_sharing_of_two_processes_is_told(packed_bundle: Path, plain_bundle: Path) -> None:
    for bundle in (packed_bundle, plain_bundle):
        told = probe(bundle, 1)
        assert len(told) == 2
        for each in told:
            assert 0 < each["private"] < each["proportional"], "the library's own pages are shared at least"
    with pytest.raises(RuntimeError, match="ended"):
        probe(packed_bundle / "missing", 1)
