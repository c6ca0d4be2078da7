"""A tiny lowered graph as an engine file of the stand-in, and the manifest entry that goes with it."""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import onnx_ir as ir
import pytest
import torch

from specexport.graph.files import GraphFacts, describe_graph, save_graph
from specexport.passes import run_passes
from specexport.passes.fused_draft import FuseDraftSteps
from specexport.tensorrt.lowering import tensorrt_passes
from specexport.tensorrt.profiles import SymbolicInput, WindowShape, shared_profile
from specruntime.manifest.schema import GraphSpec, OnnxRuntimeEngine, Profile
from specruntime.manifest.tensorrt import TensorRTEngine
from tests.runtime.engines.cuda_stand_in import DriverStandIn, Machine
from tests.runtime.engines.tensorrt_stand_in import VERSION, stand_in_module, write_engine
from tests.specexport.tensorrt.tiny_graphs import CAPACITY, VOCAB, tiny_graph

PROFILES = (
    Profile(name="step", width=1, rows=1),
    Profile(name="verify_5", width=5, rows=5),
    Profile(name="prefill_16", width=16, rows=1),
)
FUSED_PROFILES = (Profile(name="draft", width=2, rows=1), Profile(name="prefill_16", width=16, rows=1))


def install(monkeypatch: pytest.MonkeyPatch, machine: Machine, version: str = VERSION) -> None:
    """Makes the stand-ins what `import tensorrt_rtx` and `import cuda.bindings.driver` find."""
    module = stand_in_module(machine, version)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", cast(ModuleType, module))
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", cast(ModuleType, DriverStandIn(machine)))


@dataclass
class TinyEngine:
    """Files of one tiny graph: `root/graph.onnx` for ONNX Runtime, `root/graph.engine` for the stand-in."""

    root: Path
    ort: GraphSpec
    trt: GraphSpec

    def entry(self, **changes: Any) -> GraphSpec:
        """The TensorRT spec with changes to its engine entry."""
        return self.trt.model_copy(update={"engine": self.trt.engine.model_copy(update=changes)})


def tiny_engine(
    root: Path,
    *,
    fused: int | None = None,
    profiles: tuple[Profile, ...] = PROFILES,
    batches: tuple[int, ...] = (1,),
) -> TinyEngine:
    """The tiny llama's engine under `root`; with `fused` the draft graph of that many steps instead."""
    model = tiny_graph("llama", torch.float32)
    run_passes(model, (*([FuseDraftSteps(fused)] if fused else []), *tensorrt_passes(batches[-1])))
    profiles = FUSED_PROFILES if fused else profiles
    save_graph(model, root)
    facts = GraphFacts(capacity=CAPACITY, layers=2, vocab_size=VOCAB, padded_vocab_size=256)
    runner = OnnxRuntimeEngine(minimum_version="1.32.0")
    spec = describe_graph(
        model, facts, file="graph.onnx", profiles=profiles, batch=batches[-1], engine=runner
    )
    spec = spec.model_copy(update={"batch_sizes": batches})
    _write_plan(root, model, spec)
    entry = TensorRTEngine(
        kind="tensorrt_rtx",
        version=VERSION,
        compute_capabilities=("8.6", "8.9"),
        optimization_profiles={profile.name: 0 for profile in profiles},
    )
    return TinyEngine(root, spec, spec.model_copy(update={"file": "graph.engine", "engine": entry}))


def _write_plan(root: Path, model: ir.Model, spec: GraphSpec) -> None:
    inputs = [SymbolicInput(tensor.name, tuple(tensor.shape)) for tensor in spec.inputs]
    windows = [
        WindowShape(profile.width, profile.rows, size)
        for profile in spec.profiles
        for size in spec.sizes_of(profile)
    ]
    shapes = shared_profile(inputs, windows, max(windows, key=lambda window: window.rows))
    bounds = {name: (r.minimum, r.optimum, r.maximum) for name, r in shapes.items()}
    aliases = {pair.output: pair.input for pair in spec.aliases}
    write_engine(root / "graph.engine", root / "graph.onnx", aliases, [bounds])
