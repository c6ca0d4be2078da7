"""k draft steps in one graph propose what k single steps propose, with one launch, whatever was accepted before."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from specexport.graph.files import GraphFacts, describe_graph, save_graph
from specexport.passes import run_passes
from specexport.passes.fused_draft import FuseDraftSteps
from specruntime.batches import LaneGroup
from specruntime.drafts import ModelDraft, Room
from specruntime.drafts.model import FusedProposer, ModelProposer
from specruntime.engines import EngineOptions
from specruntime.engines.onnxruntime import OrtEngine
from specruntime.errors import BundleInvalid
from specruntime.manifest.schema import GraphSpec, OnnxRuntimeEngine, Profile
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler
from tests.specexport.tensorrt.tiny_graphs import CAPACITY, VOCAB, tiny_graph

K = 4
STEPWISE = (Profile(name="step", width=1, rows=1), Profile(name="prefill_16", width=16, rows=1))
FUSED = (Profile(name="draft", width=2, rows=1), Profile(name="prefill_16", width=16, rows=1))
GREEDY = Sampler(SamplingParams(), VOCAB, (), ())


def _spec(root: Path, name: str, k: int | None, batch: tuple[int, ...] = (1,)) -> tuple[GraphSpec, Path]:
    directory = root / name
    directory.mkdir()
    model = tiny_graph("llama", torch.float32)
    if k is not None:
        (report,) = run_passes(model, (FuseDraftSteps(k),))
        assert report.changed == k
    save_graph(model, directory)
    facts = GraphFacts(capacity=CAPACITY, layers=2, vocab_size=VOCAB, padded_vocab_size=256)
    profiles = STEPWISE if k is None else FUSED
    engine = OnnxRuntimeEngine(minimum_version="1.32.0")
    spec = describe_graph(model, facts, file="graph.onnx", profiles=profiles, batch=batch[-1], engine=engine)
    return spec.model_copy(update={"batch_sizes": batch}), directory


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OrtEngine, OrtEngine]]:
    root = tmp_path_factory.mktemp("fused")
    made = [OrtEngine(*_spec(root, name, k), EngineOptions()) for name, k in (("plain", None), ("fused", K))]
    yield made[0], made[1]
    for engine in made:
        engine.close()


def _proposers(engines: tuple[OrtEngine, OrtEngine]) -> tuple[ModelProposer, FusedProposer]:
    return ModelProposer(engines[0].new_context(), k=K), FusedProposer(engines[1].new_context(), k=K)


@pytest.mark.parametrize("seed", range(6))
def test_fused_equals_stepwise_after_any_acceptance(engines: tuple[OrtEngine, OrtEngine], seed: int) -> None:
    random = np.random.default_rng(seed)
    stepwise, fused = _proposers(engines)
    tokens = random.integers(0, VOCAB, random.integers(1, 40))
    while len(tokens) + K < CAPACITY:
        drafted = stepwise.propose(tokens, Room(K, K), GREEDY).ids
        np.testing.assert_array_equal(
            fused.propose(tokens, Room(K, K), GREEDY).ids, drafted, str(len(tokens))
        )
        accepted = random.integers(0, K + 1)
        tokens = np.concatenate([tokens, drafted[:accepted], random.integers(0, VOCAB, 1)])
        if random.random() < 0.2:
            length = int(random.integers(1, len(tokens)))
            tokens = tokens[:length]
            stepwise.rewind(length)
            fused.rewind(length)
            tokens = np.concatenate([tokens, random.integers(0, VOCAB, 3)])
        if random.random() < 0.1:
            break


@pytest.mark.parametrize("accepted", range(K + 1))
def test_every_round_is_one_launch(engines: tuple[OrtEngine, OrtEngine], accepted: int) -> None:
    _, fused = _proposers(engines)
    tokens = np.arange(16 + 2)  # one chunk of the prompt, then the first draft window
    for calls in (1, 2, 3):
        drafted = fused.propose(tokens, Room(K, K), GREEDY).ids
        assert fused.counters.calls == {"prefill_16": 1, "draft": calls}
        tokens = np.concatenate([tokens, drafted[:accepted], [7]])


def test_a_full_cache_is_silent_and_a_shorter_limit_is_kept(engines: tuple[OrtEngine, OrtEngine]) -> None:
    _, fused = _proposers(engines)
    last = CAPACITY - K + 1
    assert len(fused.propose(np.arange(last) % VOCAB, Room(K, K), GREEDY).ids) == K
    assert len(fused.propose(np.arange(last + 1) % VOCAB, Room(K, K), GREEDY).ids) == 0
    assert len(fused.propose(np.arange(9), Room(2, K), GREEDY).ids) == 2
    assert len(fused.propose(np.arange(9), Room(0, K), GREEDY).ids) == 0


def test_rows_of_rejected_drafts_change_nothing(engines: tuple[OrtEngine, OrtEngine]) -> None:
    _, fused = _proposers(engines)
    context = engines[1].new_context()
    for rows in context.cache().values():
        rows[:] = 1e4
    poisoned = FusedProposer(context, k=K)
    tokens = np.arange(30)
    np.testing.assert_array_equal(
        poisoned.propose(tokens, Room(K, K), GREEDY).ids, fused.propose(tokens, Room(K, K), GREEDY).ids
    )


def test_another_k_is_refused(engines: tuple[OrtEngine, OrtEngine]) -> None:
    graph = engines[1].spec
    with pytest.raises(BundleInvalid, match="its graph drafts 4 tokens a launch, expected 3"):
        ModelDraft(k=3, fused=True, graph=graph).check(graph)
    wide = graph.model_copy(update={"profiles": graph.profiles[1:]})
    with pytest.raises(BundleInvalid, match="narrowest profile of a fused draft is 16 wide, expected 2"):
        ModelDraft(k=4, fused=True, graph=wide).check(graph)


@pytest.mark.parametrize("free", [K + 1, K])
def test_a_launch_over_a_neighbour_keeps_out_of_its_rows_and_within_its_cache(
    tmp_path: Path, free: int
) -> None:
    """The window of two tokens writes the rows of its drafts too: K + 1 in all, also for a row that did not ask."""
    engine = OrtEngine(*_spec(tmp_path, "batch", K, (1, 2, 4)), EngineOptions())
    group = LaneGroup(engine.new_batch(4), 4)
    for lane in group.lanes[:3]:
        lane.asked = lane.window("draft")
        lane.asked.cache_length[0] = CAPACITY - free - (K + 1) if lane.row == 1 else 0
    group.launch(group.waiting)
    full = group.lanes[1]
    assert full.end == CAPACITY - free, "drafted rows may count once they are confirmed"
    before = {name: rows[:, :, : full.end].copy() for name, rows in full.cache().items()}
    for lane in (group.lanes[0], group.lanes[2]):
        lane.asked = lane.window("draft")
    launches = group.launches
    group.launch(group.waiting)
    assert not any(lane.failed for lane in group.lanes)
    assert group.launches - launches == (1 if free > K else 2), "one over all where it fits"
    for name, rows in full.cache().items():
        np.testing.assert_array_equal(rows[:, :, : full.end], before[name])
    group.context.close()
    engine.close()
