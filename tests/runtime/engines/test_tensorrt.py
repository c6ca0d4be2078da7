"""The TensorRT engine against the stand-in: equal to ONNX Runtime, replayed from graphs, closed without a leak."""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np
import pytest

from specruntime.engines import EngineOptions
from specruntime.engines.onnxruntime import OrtEngine
from specruntime.engines.tensorrt import JIT_CACHE_VARIABLE, TrtEngine
from specruntime.engines.windows import Feeder
from specruntime.errors import (
    BackendIncompatible,
    BackendMissing,
    EngineFailed,
    OutOfMemory,
    WrongState,
)
from specruntime.manifest.schema import Profile
from tests.device_tensors import device_cache, device_logits, fail, forget_graphs
from tests.runtime.engines.cuda_stand_in import CUresult, Machine
from tests.runtime.engines.tensorrt_bench import TinyEngine, install, tiny_engine

IDS = np.random.default_rng(5).integers(0, 250, 40)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyEngine:
    root = tmp_path_factory.mktemp("place") / "bundle"
    root.mkdir()
    return tiny_engine(root)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    """A pretended device; after the test nothing may still be allocated on it."""
    device = Machine()
    install(monkeypatch, device)
    monkeypatch.setenv(JIT_CACHE_VARIABLE, str(tmp_path / "jit"))
    yield device
    assert (device.blocks, device.pinned, device.graphs) == ({}, {}, set()) or device.lost is not None
    assert device.retained == 0 or device.lost is not None


def _open(tiny: TinyEngine, **changes: object) -> TrtEngine:
    return TrtEngine(tiny.entry(**changes), tiny.root, EngineOptions())


def test_every_width_equals_onnx_runtime(tiny: TinyEngine, machine: Machine) -> None:
    engine, reference = _open(tiny), OrtEngine(tiny.ort, tiny.root, EngineOptions())
    context, plain = engine.new_context(), reference.new_context()
    found, expected = Feeder(context), Feeder(plain)
    start = 0
    for count in (16, 1, 5, 3, 1):
        ids = IDS[start : start + count]
        left = found.judge(ids, start) if count <= 5 else found.feed(ids, start)
        right = expected.judge(ids, start) if count <= 5 else expected.feed(ids, start)
        np.testing.assert_array_equal(found.top_ids(left), expected.top_ids(right))
        np.testing.assert_array_equal(found.logits(left), expected.logits(right))
        start += count
    for name, rows in plain.cache().items():
        np.testing.assert_array_equal(context.cache()[name][:, :, :start], rows[:, :, :start])
    assert context.replays == {"step": 2, "verify_5": 2, "prefill_16": 1}
    context.close()
    engine.close()


def test_greedy_rounds_download_only_token_ids(tiny: TinyEngine, machine: Machine) -> None:
    engine = _open(tiny)
    context = engine.new_context()
    feeder = Feeder(context)
    before = dict(machine.calls)
    for start in range(4):
        feeder.top_ids(feeder.judge(IDS[start : start + 1], start))
    after = machine.calls
    assert after["cuGraphLaunch"] - before.get("cuGraphLaunch", 0) == 4
    for name in ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemAlloc", "cuMemHostAlloc"):
        assert after[name] == before[name], name
    context.close()
    engine.close()


def test_without_capture_the_loop_runs_and_counts_no_replay(
    tiny: TinyEngine, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.runtime.engines.tensorrt_stand_in import IExecutionContext

    monkeypatch.setattr(IExecutionContext, "is_stream_capturable", lambda self, stream: False)
    engine = _open(tiny)
    context = engine.new_context()
    feeder = Feeder(context)
    assert feeder.top_ids(feeder.judge(IDS[:3], 0)).shape == (3,)
    assert set(context.replays.values()) == {0}
    context.close()
    engine.close()


def test_forgotten_graphs_give_the_same_rows(tiny: TinyEngine, machine: Machine) -> None:
    engine = _open(tiny)
    replayed, enqueued = engine.new_context(), engine.new_context()
    forget_graphs(enqueued)
    one, two = Feeder(replayed), Feeder(enqueued)
    np.testing.assert_array_equal(one.logits(one.judge(IDS[:5], 0)), two.logits(two.judge(IDS[:5], 0)))
    assert replayed.replays["verify_5"] == 1 and enqueued.replays["verify_5"] == 0
    replayed.close()
    enqueued.close()
    engine.close()


def test_two_contexts_share_weights_and_nothing_else(tiny: TinyEngine, machine: Machine) -> None:
    engine = _open(tiny)
    one, two = engine.new_context(), engine.new_context()
    Feeder(one).feed(IDS[:16], 0)
    assert any(rows.any() for rows in one.cache().values())
    assert not any(rows.any() for rows in two.cache().values())
    one.close()
    Feeder(two).feed(IDS[:16], 0)
    two.close()
    two.close()
    with pytest.raises(WrongState, match="the context is closed"):
        two.run(None)  # type: ignore[arg-type]
    engine.close()
    with pytest.raises(WrongState, match="the engine is closed"):
        engine.new_context()


@pytest.mark.parametrize("call", ["cuGraphLaunch", "cuStreamSynchronize", "cuMemcpyDtoHAsync"])
def test_a_device_error_poisons_the_context_and_closes_cleanly(
    tiny: TinyEngine, machine: Machine, call: str
) -> None:
    engine = _open(tiny)
    context = engine.new_context()
    feeder = Feeder(context)
    rows = feeder.judge(IDS[:3], 0)
    machine.fail(call)
    with pytest.raises(EngineFailed, match=f"{call} failed with CUDA_ERROR_LAUNCH_FAILED"):
        feeder.logits(rows) if call == "cuMemcpyDtoHAsync" else feeder.judge(IDS[:3], 0)
    with pytest.raises(EngineFailed, match="an earlier call on this context failed"):
        context.run(rows.window)
    context.close()
    with pytest.raises(EngineFailed):
        engine.close()


def test_zero_revives_a_context_whose_failure_the_device_survived(tiny: TinyEngine, machine: Machine) -> None:
    engine = _open(tiny)
    context = engine.new_context()
    fail(context)
    with pytest.raises(EngineFailed, match="reset the session"):
        context.run(context.window("step"))
    context.zero()
    context.run(context.window("step"))
    context.close()
    engine.close()


def test_cache_that_does_not_fit_names_the_capacity(tiny: TinyEngine, machine: Machine) -> None:
    engine = _open(tiny)
    machine.total_memory = machine.used() + 70_000
    with pytest.raises(OutOfMemory, match=r"KV cache of graph\.engine at capacity 128"):
        engine.new_context()
    engine.close()


def test_weights_that_do_not_fit_are_refused_before_load(tiny: TinyEngine, machine: Machine) -> None:
    machine.total_memory = 100
    with pytest.raises(OutOfMemory, match=r"needs 0 MB of device memory for its weights"):
        _open(tiny)


def test_width_outside_the_profile_names_shape_and_cure(tiny: TinyEngine, machine: Machine) -> None:
    wide = tiny.trt.model_copy(update={"profiles": (Profile(name="step", width=64, rows=1),)})
    engine = TrtEngine(wide, tiny.root, EngineOptions())
    with pytest.raises(
        EngineFailed, match=r"input_ids of shape \(1, 64\) is outside .* build the bundle again"
    ):
        engine.new_context()
    engine.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"version": "1.6.0.1"},
            r"was built by tensorrt_rtx 1\.6\.0\.1, found 1\.7\.1\.116 here; build the bundle again",
        ),
        (
            {"compute_capabilities": ("12.0",)},
            r"this device has 8\.9; build with backend\.compute_capabilities: \[SM89\]",
        ),
    ],
)
def test_engine_of_another_version_or_device_says_what_to_rebuild(
    tiny: TinyEngine, machine: Machine, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(BackendIncompatible, match=message):
        _open(tiny, **changes)


def test_ampere_plus_engines_load_on_newer_devices(tiny: TinyEngine, machine: Machine) -> None:
    _open(tiny, compute_capabilities=("8.0",), hardware_compatibility="ampere_plus").close()


def test_corrupt_engine_file_is_incompatible(tiny: TinyEngine, machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "graph.engine").write_bytes(b"not an engine")
    with pytest.raises(
        BackendIncompatible, match=r"cannot load graph\.engine: the serialized engine is corrupt"
    ):
        TrtEngine(tiny.trt, tmp_path, EngineOptions())


def test_manifest_of_another_build_is_refused(tiny: TinyEngine, machine: Machine) -> None:
    swapped = tiny.trt.model_copy(update={"aliases": tiny.trt.aliases[::-1]})
    wrong = swapped.aliases[0].model_copy(update={"output": swapped.aliases[1].output})
    spec = swapped.model_copy(update={"aliases": (wrong, *swapped.aliases[1:])})
    with pytest.raises(BackendIncompatible, match="is the same memory as"):
        TrtEngine(spec, tiny.root, EngineOptions())
    fewer = tiny.trt.model_copy(update={"inputs": tiny.trt.inputs[1:]})
    with pytest.raises(BackendIncompatible, match="input_ids are in only one of engine and manifest"):
        TrtEngine(fewer, tiny.root, EngineOptions())


def test_no_driver_says_so(tiny: TinyEngine, monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    machine.fail("cuInit", CUresult.CUDA_ERROR_INVALID_VALUE)
    with pytest.raises(BackendIncompatible, match="the CUDA driver does not start"):
        _open(tiny)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", cast(ModuleType, None))
    with pytest.raises(BackendMissing, match="pip install cuda-bindings"):
        _open(tiny)


def test_jit_cache_is_kept_and_an_unwritable_place_costs_nothing(
    tiny: TinyEngine, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _open(tiny)
    engine.new_context().close()
    engine.close()
    (cache,) = (tmp_path / "jit").iterdir()
    assert cache.name == "bundle.graph.engine.jit" and cache.read_bytes() == b"kernels"
    monkeypatch.setenv(JIT_CACHE_VARIABLE, str(cache / "below-a-file"))
    engine = _open(tiny)
    engine.new_context().close()
    engine.close()


def test_device_memory_is_offered_by_dlpack(tiny: TinyEngine, machine: Machine) -> None:
    engine = _open(tiny)
    context = engine.new_context()
    cache = device_cache(context)["past_key.0"]
    assert cache.__dlpack_device__() == (2, 0) and cache.shape == (1, 2, 128, 32)
    capsule = cache.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    data = ctypes.cast(pointer(capsule, b"dltensor"), ctypes.POINTER(ctypes.c_void_p))
    assert data[0] == cache.address
    assert device_logits(context, context.window("verify_5")).shape == (1, 5, 256)
    context.close()
    engine.close()
