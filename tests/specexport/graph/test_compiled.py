"""A plan becomes a graph: its outputs, its windows, its parity with PyTorch; what the target has not is refused."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from specexport.backends import backend_of
from specexport.cache.entries import CACHE_VARIABLE
from specexport.checkpoints.loading import load_checkpoint
from specexport.errors import CheckpointUnsupported, ParityError
from specexport.graph.canonical import CanonicalGraph, export_canonical
from specexport.graph.compiled import CompiledGraph, compile_graph
from specexport.graph.files import target_profiles
from specexport.graph.plan import FeatureSpec, GraphPlan
from specexport.parity.target import check_parity, require_parity
from specexport.recipe.schema import Backend, OnnxRuntimeBackend
from tests.specexport.conftest import random_target

TOLERANCE = 1e-3
BACKEND: Backend = OnnxRuntimeBackend(kind="onnxruntime", provider="cpu", threads=1)
PROJECTION = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
FEATURES = FeatureSpec(("hidden.0", "hidden.2"), PROJECTION)


@pytest.fixture(scope="module")
def canonical(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CanonicalGraph]:
    """A llama of two layers, traced once, in a cache that all tests of this file share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield export_canonical(
            "0" * 64, lambda: load_checkpoint(random_target(), "fp32"), capacity=48, reference_tokens=24
        )


def compiled(canonical: CanonicalGraph, plan: GraphPlan) -> CompiledGraph:
    return compile_graph(
        canonical, backend_of(BACKEND), profiles=target_profiles([4], 16), batch=1, plan=plan
    )


def test_features_are_an_output_held_to_pytorch(canonical: CanonicalGraph) -> None:
    graph = compiled(canonical, GraphPlan(features=FEATURES, trees=True))
    assert graph.spec.outputs[-1].model_dump() == {
        "name": "features",
        "dtype": "float32",
        "shape": ("B", "W", 40),
    }
    assert {"window_mask", "position_ids"} <= {tensor.name for tensor in graph.spec.inputs}
    report = check_parity(graph)
    assert report.feature_difference is not None and report.feature_difference < 1e-5
    require_parity(report, TOLERANCE, "target")
    other = replace(FEATURES, taps=("hidden.0", "hidden.1"))
    wrong = check_parity(replace(graph, key="other", plan=GraphPlan(features=other, trees=True)))
    with pytest.raises(ParityError, match="on a feature"):
        require_parity(wrong, TOLERANCE, "target")


def test_each_window_of_a_draft_path_computes_one_path(canonical: CanonicalGraph) -> None:
    graph = compiled(canonical, GraphPlan(draft_layers=(1,)))
    outputs = {profile.name: profile.outputs for profile in graph.spec.profiles}
    rows = ("draft_present_key.1", "draft_present_value.1")
    assert outputs.pop("draft") == ("draft_logits", "draft_top_ids", *rows)
    full = ("logits", "top_ids", *(f"present_{k}.{n}" for n in (0, 1) for k in ("key", "value")))
    assert set(outputs.values()) == {full}
    pairs = [(pair.input, pair.output) for pair in graph.spec.aliases]
    assert ("past_key.1", "draft_present_key.1") in pairs and ("past_key.1", "present_key.1") in pairs
    report = check_parity(graph)
    assert report.draft_difference is not None
    require_parity(report, TOLERANCE, "target")
    with pytest.raises(ParityError, match="on a logit of its draft path"):
        require_parity(replace(report, draft_difference=1.0), TOLERANCE, "target")


def test_kept_layers_are_held_to_the_same_layers(canonical: CanonicalGraph) -> None:
    graph = compiled(canonical, GraphPlan(kept_layers=(1,)))
    assert graph.spec.layers == 1
    require_parity(check_parity(graph), TOLERANCE, "draft")
    wrong = check_parity(replace(graph, key="other", plan=GraphPlan(kept_layers=(0,))))
    with pytest.raises(ParityError):
        require_parity(wrong, TOLERANCE, "draft")


def test_a_plain_graph_says_nothing_of_drafts(canonical: CanonicalGraph) -> None:
    graph = compiled(canonical, GraphPlan())
    assert [t.name for t in graph.spec.outputs if not t.name.startswith("present_")] == ["logits", "top_ids"]
    report = check_parity(graph)
    assert (report.feature_difference, report.draft_difference) == (None, None)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            GraphPlan(features=FeatureSpec(("hidden.7",))),
            "reads hidden.7, but random llama .seed 0. has hidden.0 to hidden.2",
        ),
        (
            GraphPlan(features=replace(FEATURES, taps=("hidden.1",))),
            "projects 64 numbers, but 1 hidden states of random llama .seed 0. are 32",
        ),
    ],
)
def test_what_the_target_has_not_is_refused(canonical: CanonicalGraph, plan: GraphPlan, message: str) -> None:
    with pytest.raises(CheckpointUnsupported, match=message):
        compiled(canonical, plan)


def test_a_target_whose_layers_cannot_be_told_is_refused_only_where_a_draft_needs_them(
    canonical: CanonicalGraph,
) -> None:
    unknown = replace(canonical, hidden_size=None, no_hidden="its layers cannot be identified")
    compiled(unknown, GraphPlan(trees=True))
    with pytest.raises(CheckpointUnsupported, match="needs hidden states of the target: its layers cannot"):
        compiled(unknown, GraphPlan(draft_layers=(0,)))


def test_equal_plans_share_a_key_and_others_do_not(canonical: CanonicalGraph) -> None:
    other = replace(FEATURES, projection=PROJECTION * 2)
    keys = [compiled(canonical, GraphPlan(features=f)).key for f in (FEATURES, replace(FEATURES), other)]
    assert keys[0] == keys[1] != keys[2]
