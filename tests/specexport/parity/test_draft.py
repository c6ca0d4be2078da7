"""A draft's graph is its module, at every window, in fp32 and fp16; a graph of other numbers is refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from specexport.backends import backend_of
from specexport.cache.entries import CACHE_VARIABLE
from specexport.checkpoints.loading import load_checkpoint
from specexport.draft_kinds import DraftKind
from specexport.draft_kinds import EagleRecipe as EagleKind
from specexport.draft_kinds import MedusaRecipe as MedusaKind
from specexport.draft_kinds.canonical import export_canonical_draft, read_features
from specexport.draft_kinds.eagle import eagle_profiles
from specexport.draft_models import DraftTarget, Eagle1Draft, Eagle3Draft, MedusaHeads, draft_target
from specexport.draft_models.random_drafts import random_eagle, random_medusa
from specexport.errors import ParityError
from specexport.graph.canonical import CanonicalGraph
from specexport.graph.compiled import CompiledGraph, compile_graph
from specexport.graph.plan import GraphPlan
from specexport.parity.draft import (
    DraftParityReport,
    measure_layer,
    require_draft_parity,
)
from specexport.parity.draft_reference import load_draft_reference
from specexport.parity.host import measure_on_host
from specexport.parity.target import check_draft_parity
from specexport.recipe.schema import OnnxRuntimeBackend, Precision
from specexport.trees import tree_of_paths
from specruntime.manifest.schema import Profile
from tests.specexport.conftest import random_target

TREE = tree_of_paths([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 0, 0]])
TOLERANCE = {"fp32": 1e-4, "fp16": 5e-2}
KINDS = ("eagle3", "eagle", "medusa")
Draft = Eagle1Draft | Eagle3Draft | MedusaHeads


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(directory))
        yield directory


def _target(precision: Precision) -> DraftTarget:
    loaded = load_checkpoint(random_target(), precision)
    return draft_target(loaded.model, name="tiny", vocab_size=loaded.vocab_size)


def _draft(kind: str, target: DraftTarget) -> Draft:
    if kind == "medusa":
        return random_medusa(target, seed=1, heads=3)
    return random_eagle("eagle3" if kind == "eagle3" else "eagle", target, seed=1, draft_vocab_size=100)


def _section(kind: str) -> DraftKind:
    section = MedusaKind if kind == "medusa" else EagleKind
    return section.model_validate({"kind": kind, "source": {"random": {"seed": 1}}, "k": 3})


def _canonical(kind: str, precision: Precision) -> CanonicalGraph:
    target = _target(precision)
    return export_canonical_draft(
        f"{kind}-{precision}",
        _section(kind),
        lambda: (_draft(kind, target), target),
        capacity=96,
        reference_tokens=40,
    )


def _compiled(canonical: CanonicalGraph, *, trees: bool) -> CompiledGraph:
    backend = OnnxRuntimeBackend(kind="onnxruntime", threads=1)
    prefill = (Profile(name="prefill_16", width=16, rows=1),)
    compiled = compile_graph(
        canonical, backend_of(backend), profiles=prefill, batch=1, plan=GraphPlan(trees=trees)
    )
    if canonical.heads is not None:
        profiles = _section("medusa").windows(16, ())
    else:
        outputs = [tensor.name for tensor in compiled.spec.outputs]
        profiles = eagle_profiles(outputs, prefill, k=4, tree=TREE if trees else None, selective=True)
    return replace(compiled, spec=compiled.spec.model_copy(update={"profiles": profiles}))


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_every_window_computes_what_the_module_does(kind: str, precision: Precision) -> None:
    canonical = _canonical(kind, precision)
    for trees in (False, True):
        report = check_draft_parity(_compiled(canonical, trees=trees), _section(kind))
        require_draft_parity(report, TOLERANCE[precision])
        if kind != "medusa":
            assert report.trees is trees
            assert max(report.layer_difference) < TOLERANCE[precision]
            assert set(report.widths) >= ({1, 2, 3, 4, 5, 16} if trees else {1, 2, 3, 5, 16})


@pytest.mark.usefixtures("cache")
def test_other_numbers_are_seen() -> None:
    """Negative control: each part of the reference, changed a little, must be missed."""
    compiled = _compiled(_canonical("eagle3", "fp32"), trees=True)
    reference = load_draft_reference(compiled.canonical.directory)
    nodes = reference.pairs + np.arange(4)
    scores, following = reference.scores.copy(), reference.following.copy()
    scores[nodes] = scores[nodes][:, ::-1]
    following[nodes] *= 1.5
    for changed, found in (
        (replace(reference, scores=scores), "a logit"),
        (replace(reference, following=following), "hidden"),
    ):
        report, _ = measure_on_host(compiled, lambda context, ref=changed: measure_layer(context, ref))  # type: ignore[misc]
        with pytest.raises(ParityError, match=found):
            require_draft_parity(report, TOLERANCE["fp32"])
    keys = tuple(key + 1 for key in reference.keys)
    report, _ = measure_on_host(
        compiled, lambda context: measure_layer(context, replace(reference, keys=keys))
    )
    assert min(report.layer_difference) > 0.9


@pytest.mark.usefixtures("cache")
def test_a_tree_node_is_judged_by_its_own_path() -> None:
    """Negative control: the reference's answers for two siblings' children are not each other's."""
    compiled = _compiled(_canonical("eagle3", "fp32"), trees=True)
    reference = load_draft_reference(compiled.canonical.directory)
    scores = reference.scores.copy()
    first, second = reference.pairs + 3, reference.pairs + 4  # both hang on node 0
    scores[[first, second]] = scores[[second, first]]
    report, _ = measure_on_host(
        compiled, lambda context: measure_layer(context, replace(reference, scores=scores))
    )
    assert report.logit_difference > TOLERANCE["fp32"]


@pytest.mark.usefixtures("cache")
def test_the_target_is_asked_for_what_the_draft_projects() -> None:
    features = read_features(_canonical("eagle3", "fp32"))
    assert features.taps == ("hidden.0", "hidden.1", "hidden.2")
    draft = _draft("eagle3", _target("fp32"))
    assert isinstance(draft, Eagle3Draft) and features.projection is not None
    assert torch.equal(torch.from_numpy(features.projection), draft.fc.weight)
    for kind in ("eagle", "medusa"):
        plain = read_features(_canonical(kind, "fp32"))
        assert plain.taps == ("hidden.norm",) and plain.projection is None


@pytest.mark.usefixtures("cache")
def test_candidates_are_target_ids_the_draft_knows() -> None:
    canonical = _canonical("eagle3", "fp32")
    reference = load_draft_reference(canonical.directory)
    assert list(reference.target_ids) == [n * 259 // 100 for n in range(100)]
    assert reference.target_ids.max() < 259


def test_a_difference_that_is_no_number_is_refused() -> None:
    report = DraftParityReport(float("nan"), 0.0, (), 4, (1,), trees=False)
    with pytest.raises(ParityError, match="a logit"):
        require_draft_parity(report, 1.0)
