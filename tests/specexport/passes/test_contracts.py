"""What passes require and ensure is called by the runner: a graph that breaks it is an error that names the pass."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from specexport.errors import PassError
from specexport.graph.plan import FeatureSpec, GraphPlan, LinearPlan, WeightPlan, WindowPlan
from specexport.passes import GraphPass, PassReport, run_passes
from specexport.passes.attention_rotary import RotateInAttention
from specexport.passes.fused_draft import FuseDraftSteps
from specexport.passes.group_query_attention import FlattenHeads, GroupQueryAttention, PackAttentionInputs
from specexport.passes.interface import DropHiddenStates, DropUnusedInputs, MakeFeatures
from specexport.passes.layer_path import AddDraftPath, KeepLayers, MergeEqualWeights, ShareHeadWeights
from specexport.passes.pipeline import FuseOperators, onnxruntime_passes, plan_passes
from specexport.passes.quantize_weights import QuantizeWeights
from specexport.passes.tree_bias import TreeBias
from specexport.passes.window_operators import AttendInWindows, MultiplyInWindows
from specexport.tensorrt.lowering import tensorrt_passes
from tests.specexport.export.exported import CANONICAL, ExportedArchitectures

NORM = FeatureSpec(("hidden.norm",))
PLANS = {
    "plain": GraphPlan(),
    "trees": GraphPlan(trees=True, features=NORM),
    "path": GraphPlan(draft_layers=(1,)),
    "kept": GraphPlan(kept_layers=(1,)),
    "fused": GraphPlan(fused_steps=2),
    "int8": GraphPlan(weights=WeightPlan(LinearPlan("int8"), LinearPlan("int8"), block=16)),
    "window": GraphPlan(window=WindowPlan()),
    "window trees": GraphPlan(trees=True, features=NORM, window=WindowPlan()),
    "window path": GraphPlan(draft_layers=(1,), window=WindowPlan(cache="int8")),
    "window fused": GraphPlan(fused_steps=2, window=WindowPlan()),
    "window int4": GraphPlan(
        weights=WeightPlan(LinearPlan("int4"), LinearPlan("int4"), block=16), window=WindowPlan()
    ),
}


def passes_of(plan: GraphPlan) -> tuple[GraphPass, ...]:
    return (*plan_passes(plan), *onnxruntime_passes("cpu", plan))


class Idle(GraphPass):
    """A pass that says that it fired and does nothing."""

    def __init__(self, other: GraphPass) -> None:
        self._other, self.name = other, other.name

    def requires(self, model: ir.Model) -> str | None:
        return self._other.requires(model)

    def __call__(self, model: ir.Model) -> PassReport:
        return PassReport(self.name, 1)

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        return self._other.ensures(model, report)


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_keeps_the_contracts_of_its_passes(exported: ExportedArchitectures, name: str) -> None:
    model = ir.load(exported["llama"].path(CANONICAL))
    assert len(run_passes(model, passes_of(PLANS[name]))) == len(passes_of(PLANS[name]))


@pytest.mark.parametrize(
    ("plan", "idle"),
    [
        ("plain", DropHiddenStates),
        ("plain", GroupQueryAttention),
        ("plain", FlattenHeads),
        ("plain", PackAttentionInputs),
        ("plain", DropUnusedInputs),
        ("trees", MakeFeatures),
        ("trees", TreeBias),
        ("path", AddDraftPath),
        ("kept", KeepLayers),
        ("fused", FuseDraftSteps),
        ("int8", QuantizeWeights),
        ("window", AttendInWindows),
        ("window int4", MultiplyInWindows),
    ],
)
def test_a_pass_that_did_not_do_its_work_is_named(
    exported: ExportedArchitectures, plan: str, idle: type[GraphPass]
) -> None:
    model = ir.load(exported["llama"].path(CANONICAL))
    passes = [Idle(p) if isinstance(p, idle) else p for p in passes_of(PLANS[plan])]
    name = next(p.name for p in passes if isinstance(p, Idle))
    with pytest.raises(PassError, match=rf"^the pass {name} left a graph that it should not: "):
        run_passes(model, passes)


@pytest.mark.parametrize("number", range(len(tensorrt_passes(1))))
def test_so_is_one_of_an_engine(exported: ExportedArchitectures, number: int) -> None:
    passes: list[GraphPass] = [*plan_passes(GraphPlan()), *tensorrt_passes(1)]
    place = len(passes) - len(tensorrt_passes(1)) + number
    passes[place] = Idle(passes[place])
    capped = passes[place].name == "split-softcap"  # by which no attention is left
    model = ir.load(exported["gemma2" if capped else "llama"].path(CANONICAL))
    with pytest.raises(PassError, match=rf"^the pass {passes[place].name} left a graph"):
        run_passes(model, passes)


def without_input(name: str) -> Callable[[ir.Model], None]:
    def change(model: ir.Model) -> None:
        value = next(value for value in model.graph.inputs if value.name == name)
        value.name = "other"

    return change


@pytest.mark.parametrize(
    ("graph_pass", "change", "lack"),
    [
        (GroupQueryAttention(), without_input("cache_length"), "the graph has no input cache_length"),
        (FuseDraftSteps(2), without_input("window_mask"), "the graph has no input window_mask"),
        (MakeFeatures(replace(NORM, taps=("hidden.9",))), None, "the graph has no output hidden.9"),
        (AddDraftPath((7,)), None, "the graph has no output hidden.7"),
        (KeepLayers((7,)), None, "the graph has no output hidden.7"),
        (ShareHeadWeights(), None, "the graph has no output draft_logits"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_graph_without_what_a_pass_requires_is_refused(
    exported: ExportedArchitectures,
    graph_pass: GraphPass,
    change: Callable[[ir.Model], None] | None,
    lack: str,
) -> None:
    model = ir.load(exported["llama"].path(CANONICAL))
    if change is not None:
        change(model)
    with pytest.raises(PassError, match=f"^the pass {graph_pass.name} cannot run: {lack}; report"):
        run_passes(model, [graph_pass])


def test_fusions_are_for_standard_operators(exported: ExportedArchitectures) -> None:
    model = ir.load(exported["llama"].path(CANONICAL))
    with pytest.raises(PassError, match=r"fuse-operators cannot run: .* is fused already"):
        run_passes(model, [DropHiddenStates(), FuseOperators("cpu"), FuseOperators("cpu")])


def test_trees_are_rotated_by_their_positions(exported: ExportedArchitectures) -> None:
    model = ir.load(exported["llama"].path(CANONICAL))
    run_passes(model, [DropHiddenStates(), FuseOperators("cpu"), GroupQueryAttention(), TreeBias()])
    without_input("position_ids")(model)
    with pytest.raises(
        PassError, match=r"rotate-in-attention cannot run: the graph has no input position_ids"
    ):
        run_passes(model, [RotateInAttention()])


def test_equal_weights_are_seen() -> None:
    weights = []
    for name in ("a", "b"):
        tensor = ir.tensor(np.arange(4.0, dtype=np.float32), name=name)
        weights.append(ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype)))
    graph = ir.Graph([], [], nodes=[], initializers=weights, opset_imports={"": 23})
    with pytest.raises(PassError, match=r"merge-equal-weights left .* a and b are equal"):
        run_passes(ir.Model(graph, ir_version=10), [Idle(MergeEqualWeights())])
