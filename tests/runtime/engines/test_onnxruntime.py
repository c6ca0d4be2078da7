"""The ONNX Runtime engine writes the cache in place, keeps its buffers, and reads only the rows in use."""

import mmap
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specruntime.bundle import load_manifest
from specruntime.engines import EngineOptions, open_engine
from specruntime.engines.onnx_batch import OrtBatch
from specruntime.engines.onnx_buffers import Binding, GrownMemory
from specruntime.engines.onnxruntime import OrtEngine, release_mapped_pages
from specruntime.engines.protocol import OneSequence, Window
from specruntime.engines.windows import Feeder
from specruntime.errors import (
    BackendIncompatible,
    BackendMissing,
    EngineFailed,
    InvalidArgument,
    OutOfMemory,
    WrongState,
)
from specruntime.manifest.schema import GraphSpec, TensorSpec

IDS = np.random.default_rng(7).integers(0, 250, 60)


@pytest.fixture(scope="module")
def spec(tiny_bundle: Path) -> GraphSpec:
    return load_manifest(tiny_bundle).target


@pytest.fixture
def engine(tiny_bundle: Path, spec: GraphSpec) -> Iterator[OrtEngine]:
    engine = open_engine(spec, tiny_bundle, EngineOptions(threads=1, kernels="off"))
    assert isinstance(engine, OrtEngine)
    yield engine
    engine.close()


@pytest.fixture
def context(engine: OrtEngine) -> Iterator[OneSequence]:
    context = engine.new_context()
    yield context
    context.close()


def stage(context: OneSequence, profile: str, ids: np.ndarray, start: int) -> Window:
    window = context.window(profile)
    count = len(ids)
    window.input_ids[0, :count], window.input_ids[0, count:] = ids, 0
    window.position_ids[0] = start + np.arange(window.profile.width)
    window.cache_length[0] = start
    window.logits_rows[0] = np.arange(window.profile.rows) if window.profile.rows > 1 else count - 1
    if window.query_lengths is not None:
        window.query_lengths[0] = count
    return window


def test_a_step_writes_its_row_in_place_and_no_other(context: OneSequence) -> None:
    before = {name: rows.copy() for name, rows in context.cache().items()}
    context.run(stage(context, "step", IDS[:1], start=9))
    for name, rows in context.cache().items():
        changed = np.flatnonzero(np.any(rows != before[name], axis=(0, 1, 3)))
        assert changed.tolist() == [9], name


def test_the_graph_holds_no_operator_that_could_copy_a_cache(tiny_bundle: Path, spec: GraphSpec) -> None:
    """Every cache input feeds its attention node alone, and that node's output is the graph's output."""
    import onnx

    graph = onnx.load(tiny_bundle / spec.file, load_external_data=False).graph
    for pair in spec.aliases:
        readers = [node for node in graph.node if pair.input in node.input]
        assert [node.op_type for node in readers] == ["GroupQueryAttention"]
        assert pair.output in readers[0].output


def test_peak_memory_of_a_step_stays_below_one_cache(
    tiny_bundle: Path, spec: GraphSpec, tmp_path: Path
) -> None:
    """At a capacity whose cache is 64 MB a tensor, a copy of one would show in the peak resident size."""
    large = _with_capacity(spec, tiny_bundle, tmp_path, 2**19)
    engine = open_engine(large, tmp_path, EngineOptions(threads=1))
    context = engine.new_context()
    for rows in context.cache().values():
        rows.fill(0)  # touch every page before the peak is reset
    window = context.window("step")
    Path("/proc/self/clear_refs").write_text("5")
    base = _peak_kib()
    for start in range(20):
        window.cache_length[0] = start
        context.run(window)
    one_cache = next(iter(context.cache().values())).nbytes // 1024
    assert one_cache > 60_000
    assert _peak_kib() - base < one_cache // 4
    context.close()
    engine.close()


def _with_capacity(spec: GraphSpec, bundle: Path, directory: Path, capacity: int) -> GraphSpec:
    """The same graph, saved to `directory` with caches of `capacity` rows and a step profile only."""
    import onnx

    model = onnx.load(bundle / spec.file)
    for value in (*model.graph.input, *model.graph.output):
        if value.name.startswith(("past_", "present_")):
            value.type.tensor_type.shape.dim[2].dim_value = capacity
    onnx.save(model, directory / "large.onnx")

    def enlarged(tensor: TensorSpec) -> TensorSpec:
        shape = (*tensor.shape[:2], capacity, *tensor.shape[3:])
        return (
            tensor.model_copy(update={"shape": shape})
            if tensor.name.startswith(("past_", "present_"))
            else tensor
        )

    changed = {
        "file": "large.onnx",
        "capacity": capacity,
        "inputs": tuple(map(enlarged, spec.inputs)),
        "outputs": tuple(map(enlarged, spec.outputs)),
        "profiles": spec.profiles[:1],
    }
    return spec.model_copy(update=changed)


def _peak_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def test_no_buffer_moves_or_is_allocated_after_open(context: OneSequence, spec: GraphSpec) -> None:
    def addresses() -> list[int]:
        windows = [context.window(profile.name) for profile in spec.profiles]
        staged = (
            [w.input_ids for w in windows]
            + [w.top_ids for w in windows]
            + [context.logits(w) for w in windows]
        )
        return [array.ctypes.data for array in (*staged, *context.cache().values())]

    before = addresses()
    feeder = Feeder(context)
    feeder.feed(IDS, 0)
    feeder.judge(IDS[:5], 40)
    context.zero()
    assert addresses() == before


def test_only_launches_that_none_before_covers_are_run_at_open(
    batched_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []
    run = Binding.run

    def counted(binding: Binding) -> None:
        runs.append(binding._name.split()[-1])
        run(binding)

    monkeypatch.setattr(Binding, "run", counted)
    spec = load_manifest(batched_bundle).target
    judged, prompt = spec.profiles[1], spec.profiles[-1]
    assert prompt.width > judged.width and judged.rows == judged.width, "neither covers the other"
    engine = open_engine(spec, batched_bundle, EngineOptions(threads=1))
    for _ in range(2):
        engine.new_context().close()
        assert runs == [prompt.name, judged.name]
    for _ in range(2):
        engine.new_batch(8).close()
        engine.new_context().close()
        assert runs == [prompt.name, judged.name, judged.name], "at eight sequences it covers every other"
    engine.close()


GROWTH = """
import sys
from pathlib import Path
from specruntime import EngineOptions, load_manifest
from specruntime.engines import open_engine
from specruntime.engines.onnx_buffers import GrownMemory

if sys.argv[2] == "no run":
    GrownMemory.grow = lambda *_: None
root = Path(sys.argv[1])
engine = open_engine(load_manifest(root).target, root, EngineOptions(threads=1))
context = engine.new_context()
before = int(open("/proc/self/statm").read().split()[0])
for _ in range(3):
    for profile in context.spec.profiles:
        context.run(context.window(profile.name))
print(int(open("/proc/self/statm").read().split()[0]) - before)
"""


@pytest.mark.parametrize(("opened", "grows"), [("as it is", False), ("no run", True)])
def test_no_window_takes_memory_after_open(tiny_bundle: Path, opened: str, grows: bool) -> None:
    """In pages of address space, which is what a limit counts; the control opens without a run."""
    command = [sys.executable, "-c", GROWTH, str(tiny_bundle), opened]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (int(done.stdout) > 128) == grows, done.stdout


def test_unused_cache_rows_change_nothing_whatever_they_hold(context: OneSequence) -> None:
    feeder = Feeder(context)
    feeder.feed(IDS[:20], 0)
    expected = feeder.logits(feeder.judge(IDS[20:25], 20)).copy()
    for poison in (1e4, -1e4, np.nan):
        for rows in context.cache().values():
            rows[:, :, 25:] = poison
        found = feeder.logits(feeder.judge(IDS[20:25], 20))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("row", range(1, 5))
def test_a_row_does_not_depend_on_later_rows(context: OneSequence, row: int) -> None:
    feeder = Feeder(context)
    feeder.feed(IDS[:20], 0)
    expected = feeder.logits(feeder.judge(IDS[20:25], 20)).copy()
    changed = IDS[20:25].copy()
    changed[row] = (changed[row] + 17) % 250
    found = feeder.logits(feeder.judge(changed, 20))
    np.testing.assert_array_equal(found[:row], expected[:row])
    assert np.abs(found[row] - expected[row]).max() > 1e-3, "the changed row itself must notice"


def test_top_ids_are_the_argmax_over_real_tokens(context: OneSequence, spec: GraphSpec) -> None:
    assert spec.padded_vocab_size > spec.vocab_size
    feeder = Feeder(context)
    rows = feeder.judge(IDS[:5], 0)
    np.testing.assert_array_equal(feeder.top_ids(rows), feeder.logits(rows).argmax(axis=-1))


def test_contexts_of_one_engine_do_not_see_each_other(engine: OrtEngine) -> None:
    first, second = engine.new_context(), engine.new_context()
    Feeder(first).feed(IDS, 0)
    assert not any(rows.any() for rows in second.cache().values())
    alone = Feeder(second)
    after = alone.logits(alone.judge(IDS[:5], 0)).copy()
    shared = Feeder(first)
    np.testing.assert_array_equal(shared.logits(shared.judge(IDS[:5], 0)), after)


def test_a_failing_run_says_which_graph_and_window(context: OneSequence) -> None:
    window = stage(context, "step", np.array([10_000]), 0)
    with pytest.raises(EngineFailed, match=r"target/graph.onnx at step"):
        context.run(window)


def test_use_after_close_is_refused(engine: OrtEngine) -> None:
    context = engine.new_context()
    window = context.window("step")
    context.close()
    with pytest.raises(WrongState, match="closed"):
        context.run(window)
    engine.close()
    with pytest.raises(WrongState, match="closed"):
        engine.new_context()


def test_a_provider_this_build_lacks_is_named(tiny_bundle: Path, spec: GraphSpec) -> None:
    with pytest.raises(BackendMissing, match=r"CUDAExecutionProvider.*specruntime\[ort-gpu\]"):
        open_engine(spec, tiny_bundle, EngineOptions(provider="cuda"))
    with pytest.raises(InvalidArgument, match="'gpu' is unknown; expected one of cpu, cuda, tensorrt"):
        open_engine(spec, tiny_bundle, EngineOptions(provider="gpu"))


def test_a_newer_minimum_version_is_refused_with_the_cure(tiny_bundle: Path, spec: GraphSpec) -> None:
    newer = spec.model_copy(update={"engine": spec.engine.model_copy(update={"minimum_version": "99.1"})})
    with pytest.raises(BackendIncompatible, match=r"needs 99.1 or newer: pip install 'onnxruntime>=99.1'"):
        open_engine(newer, tiny_bundle, EngineOptions())


def test_a_graph_with_other_inputs_than_the_manifest_is_refused(tiny_bundle: Path, spec: GraphSpec) -> None:
    fewer = spec.model_copy(update={"inputs": spec.inputs[1:]})
    with pytest.raises(BackendIncompatible, match=f"disagree on inputs: {spec.inputs[0].name}"):
        open_engine(fewer, tiny_bundle, EngineOptions())


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (
            "logits",
            {"shape": ("B", "R", 5000)},
            r"logits: found .*272\] in the file, .*5000\] in the manifest",
        ),
        ("past_key.0", {"shape": ("B", 2, 10**18, 16)}, r"past_key\.0: found .*256.* in the file"),
        ("past_key.0", {"shape": ("B", 2, 256)}, r"past_key\.0: found .*256, 16\] in the file"),
        ("present_value.1", {"dtype": "float16"}, r"present_value\.1: found float32 in the file, float16 in"),
        ("cache_length", {"dtype": "int32"}, r"cache_length: found int64 in the file, int32 in the manifest"),
    ],
)
def test_a_graph_with_other_tensors_than_the_manifest_is_refused(
    tiny_bundle: Path, spec: GraphSpec, name: str, change: dict[str, object], said: str
) -> None:
    with pytest.raises(BackendIncompatible, match=said):
        open_engine(_changed(spec, name, change), tiny_bundle, EngineOptions(threads=1))


def _changed(spec: GraphSpec, name: str, change: dict[str, object]) -> GraphSpec:
    def apply(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(t.model_copy(update=change) if t.name == name else t for t in tensors)

    return spec.model_copy(update={"inputs": apply(spec.inputs), "outputs": apply(spec.outputs)})


@pytest.mark.parametrize("rows", [2**50, 10**18, 10**30])
def test_a_cache_beyond_memory_names_the_capacity(engine: OrtEngine, spec: GraphSpec, rows: int) -> None:
    large = _changed(spec, "past_key.0", {"shape": ("B", 2, rows, 16)}).model_copy(update={"capacity": rows})
    with pytest.raises(OutOfMemory, match=f"KV cache of target/graph.onnx at capacity {rows}: lower"):
        OrtBatch(engine._sessions, large, 1, GrownMemory())


@pytest.mark.parametrize("columns", [2**50, 10**18, 10**30])
def test_logits_beyond_memory_do_not_blame_the_cache(
    engine: OrtEngine, spec: GraphSpec, columns: int
) -> None:
    large = _changed(spec, "logits", {"shape": ("B", "R", columns)})
    with pytest.raises(OutOfMemory, match=r"no memory for logits of target/graph\.onnx at step") as caught:
        OrtBatch(engine._sessions, large, 1, GrownMemory())
    assert "capacity" not in str(caught.value) and "cache" not in str(caught.value)


@pytest.mark.parametrize("threads", [-1, 0, 1025, 100_000, 10**30])
def test_threads_are_bounded(threads: int) -> None:
    with pytest.raises(InvalidArgument, match=f"threads: found {threads}, expected 1 to 1024"):
        EngineOptions(threads=threads)


def test_pages_of_an_unmodified_weight_mapping_are_given_back(tmp_path: Path) -> None:
    """A private mapping that was only read loses its pages; one that was written to keeps them."""
    (tmp_path / "weights").write_bytes(bytes(8 << 20))
    with (tmp_path / "weights").open("rb") as file:
        clean = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        dirty = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    assert sum(clean[:: mmap.PAGESIZE]) == sum(dirty[:: mmap.PAGESIZE]) == 0  # read every page
    dirty[0] = 7
    before = _resident_kib(tmp_path / "weights")
    release_mapped_pages(tmp_path)
    kept = _resident_kib(tmp_path / "weights")
    assert 4 << 10 < kept < before - (4 << 10)
    assert dirty[0] == 7 and clean[0] == 0


def test_pages_of_packed_weights_stay(tmp_path: Path) -> None:
    """They are what the kernels read, at the end of the file; the plain ones before them go."""
    (tmp_path / "weights").write_bytes(bytes(8 << 20))
    with (tmp_path / "weights").open("rb") as file:
        plain, packed = (
            mmap.mmap(file.fileno(), 4 << 20, mmap.MAP_PRIVATE, offset=at << 20) for at in (0, 4)
        )
    assert sum(plain[:: mmap.PAGESIZE]) == sum(packed[:: mmap.PAGESIZE]) == 0  # read every page
    assert _resident_kib(tmp_path / "weights") == 8 << 10
    release_mapped_pages(tmp_path, packed=4 << 20)
    assert _resident_kib(tmp_path / "weights") == 4 << 10
    (tmp_path / "weights").unlink()
    release_mapped_pages(tmp_path, packed=4 << 20)  # a bundle that was replaced while it opened
    plain.close()
    packed.close()


def _resident_kib(path: Path) -> int:
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.split()[0].endswith(":"):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total
