"""Trees on real graphs: a tiny llama through ONNX Runtime, and lowered for TensorRT through the stand-in."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from specexport.graph.files import GraphFacts, describe_graph, save_graph
from specexport.graph.plan import FeatureSpec, GraphPlan
from specexport.passes import run_passes
from specexport.passes.pipeline import onnxruntime_passes
from specruntime.drafts import Draft, NoneDraft
from specruntime.drafts.lookup import NoProposer
from specruntime.engines import EngineOptions
from specruntime.engines.onnxruntime import OrtEngine
from specruntime.engines.protocol import Context, Engine, OneSequence
from specruntime.engines.tensorrt import JIT_CACHE_VARIABLE, TrtEngine
from specruntime.engines.windows import Feeder
from specruntime.manifest.schema import GraphSpec, OnnxRuntimeEngine, Profile
from specruntime.sampling.params import SamplingParams
from specruntime.session import Session
from tests.runtime.drafts.tree_drafts import BUSHY, DEPTH_FIRST, Tree, TreeTableDraft
from tests.runtime.engines.cuda_stand_in import Machine
from tests.runtime.engines.tensorrt_bench import TinyEngine, install, tiny_engine
from tests.runtime.scripted_engine import scripted_manifest
from tests.specexport.tensorrt.tiny_graphs import CAPACITY, VOCAB, tiny_graph

PROFILES = (
    Profile(name="step", width=1, rows=1),
    Profile(name="verify_10", width=10, rows=10),
    Profile(name="prefill_16", width=16, rows=1),
)
PROMPT = np.random.default_rng(4).integers(0, VOCAB, 21).tolist()
COUNT = 60
SAMPLED = SamplingParams(temperature=0.8, top_k=12, seed=5)


@dataclass
class Opened:
    """An engine whose contexts judge trees, and the plain answers of the same engine."""

    engine: Engine
    spec: GraphSpec

    def session(self, draft: Draft) -> tuple[Session, Context]:
        context = self.engine.new_context()
        return Session(context, draft, manifest=scripted_manifest(self.spec, NoneDraft())), context

    def decode(self, draft: Draft, params: SamplingParams) -> list[int]:
        session, _ = self.session(draft)
        answer = _decode(session, params)
        session.close()
        return answer


def _decode(session: Session, params: SamplingParams) -> list[int]:
    session.append(PROMPT)
    session.begin(params)
    while session.length < len(PROMPT) + COUNT:
        session.round()
    return [int(token) for token in session.tokens[len(PROMPT) : len(PROMPT) + COUNT]]


@pytest.fixture(scope="module")
def ort_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GraphSpec]:
    root = tmp_path_factory.mktemp("ort")
    plan = GraphPlan(trees=True, features=FeatureSpec(("hidden.1", "hidden.norm")))
    model = tiny_graph("llama", torch.float32, plan)
    run_passes(model, onnxruntime_passes("cpu", plan))
    save_graph(model, root)
    facts = GraphFacts(capacity=CAPACITY, layers=2, vocab_size=VOCAB, padded_vocab_size=256)
    engine = OnnxRuntimeEngine(minimum_version="1.32.0", threads=1)
    return root, describe_graph(model, facts, file="graph.onnx", profiles=PROFILES, batch=1, engine=engine)


@pytest.fixture(scope="module")
def trt_files(tmp_path_factory: pytest.TempPathFactory) -> TinyEngine:
    root = tmp_path_factory.mktemp("trt") / "bundle"
    root.mkdir()
    return tiny_engine(root, profiles=PROFILES)


@pytest.fixture(params=["onnxruntime", "tensorrt"])
def opened(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Opened]:
    if request.param == "onnxruntime":
        root, spec = request.getfixturevalue("ort_files")
        engine: Engine = OrtEngine(spec, root, EngineOptions(threads=1))
        yield Opened(engine, spec)
    else:
        tiny: TinyEngine = request.getfixturevalue("trt_files")
        install(monkeypatch, Machine())
        monkeypatch.setenv(JIT_CACHE_VARIABLE, str(tmp_path))
        engine = TrtEngine(tiny.trt, tiny.root, EngineOptions())
        yield Opened(engine, tiny.trt)
    engine.close()


def table(answer: list[int], tree: Tree, right: Callable[[int], int] = lambda i: i % 2) -> TreeTableDraft:
    return TreeTableDraft(len(PROMPT), [*answer, *[0] * 9], lambda i: None if i % 5 == 4 else tree, right)


@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("tree", [BUSHY, DEPTH_FIRST], ids=["bushy", "depth first"])
def test_trees_decode_what_plain_decoding_does(opened: Opened, tree: Tree, params: SamplingParams) -> None:
    plain = opened.decode(NoProposer(), params)
    session, _ = opened.session(table(plain, tree))
    assert _decode(session, params) == plain
    assert session.stats.accepted > 15
    session.close()


def cache_difference(opened: Opened, context: Context, session: Session) -> float:
    """The largest difference of the committed rows from those of a clean prefill."""
    clean = opened.engine.new_context()
    Feeder(clean).feed(session.tokens[: session.cache_length], 0)
    found, expected, count = context.cache(), clean.cache(), session.cache_length
    rows = [np.asarray([c[name][:, :, :count] for name in expected], np.float32) for c in (found, expected)]
    difference = float(np.abs(rows[0] - rows[1]).max())
    clean.close()
    return difference


@pytest.mark.parametrize("broken", [False, True])
def test_accepted_rows_lie_where_a_clean_prefill_writes_them(
    opened: Opened, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = opened.decode(NoProposer(), SamplingParams())
    if broken:  # negative control
        monkeypatch.setattr(OneSequence, "keep", lambda *_: None)
    session, context = opened.session(table(plain, DEPTH_FIRST, lambda i: 1 if i % 3 == 0 else 0))
    session.append(PROMPT)
    session.begin(SamplingParams())
    worst = 0.0
    for _ in range(8):
        session.round()
        worst = max(worst, cache_difference(opened, context, session))
    assert (worst < 1e-4) is not broken, worst
    session.close()


@pytest.mark.parametrize("rows", [[0, 1, 2], [0, 2, 3, 7], [0, 5], [3, 4, 8], [9]], ids=str)
def test_rows_move_and_nothing_else_changes(opened: Opened, rows: list[int]) -> None:
    context = opened.engine.new_context()
    Feeder(context).feed(np.arange(60), 0)
    before = {name: array.copy() for name, array in context.cache().items()}
    context.keep(20, np.array(rows))
    for name, array in context.cache().items():
        expected = before[name].copy()
        expected[:, :, 20 : 20 + len(rows)] = before[name][:, :, [20 + row for row in rows]]
        np.testing.assert_array_equal(array, expected)
    assert any(array.any() for array in before.values())
    context.close()


def test_features_of_a_path_are_those_of_a_clean_prefill(ort_files: tuple[Path, GraphSpec]) -> None:
    root, spec = ort_files
    opened = Opened(OrtEngine(spec, root, EngineOptions(threads=1)), spec)
    plain = opened.decode(NoProposer(), SamplingParams())
    draft = table(plain, DEPTH_FIRST, lambda i: 1 if i % 3 == 0 else 0)
    session, _ = opened.session(draft)
    _decode(session, SamplingParams())
    assert any(verdict.path not in ((), tuple(range(1, verdict.kept))) for verdict, _ in draft.observed)
    found = np.concatenate([features for _, features in draft.observed if features is not None])
    clean = opened.engine.new_context()
    told: list[np.ndarray] = []
    Feeder(clean).feed(
        session.tokens[: session.cache_length],
        0,
        lambda window, start, count: told.append(
            np.zeros(0) if window.features is None else window.features[0, :count].copy()
        ),
    )
    np.testing.assert_allclose(found, np.concatenate(told), atol=1e-4)
    assert found.shape == (session.cache_length, 256)
    session.close()


def test_caches_of_one_shape_are_one_block(ort_files: tuple[Path, GraphSpec]) -> None:
    root, spec = ort_files
    context = OrtEngine(spec, root, EngineOptions(threads=1)).new_context()
    addresses = sorted(rows.ctypes.data for rows in context.cache().values())
    size = next(iter(context.cache().values())).nbytes
    assert len(addresses) == 4 and set(np.diff(addresses)) == {size}
    context.keep(3, np.array([0, 4]))
    assert addresses == sorted(rows.ctypes.data for rows in context.cache().values())
    context.close()


def test_a_row_moves_with_one_copy_on_the_device(
    trt_files: TinyEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine()
    install(monkeypatch, machine)
    monkeypatch.setenv(JIT_CACHE_VARIABLE, str(tmp_path))
    engine = TrtEngine(trt_files.trt, trt_files.root, EngineOptions())
    context = engine.new_context()
    allocated = machine.calls["cuMemAlloc"]
    context.keep(8, np.array([0, 1, 3, 6]))
    assert machine.calls["cuMemcpy2DAsync"] == 2, "rows 3 and 6, each for all heads of all caches at once"
    context.keep(8, np.array([0, 1]))
    assert machine.calls["cuMemcpy2DAsync"] == 2 and machine.calls["cuMemAlloc"] == allocated
    context.close()
    engine.close()
