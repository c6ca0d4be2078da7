"""The whole loop on the TensorRT engine: tokens of plain decoding, two launches a round, faults that end cleanly."""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from specruntime.drafts import Draft, NoneDraft
from specruntime.drafts.lookup import NgramProposer, NoProposer
from specruntime.drafts.model import FusedProposer
from specruntime.engines import EngineOptions
from specruntime.engines.onnxruntime import OrtEngine
from specruntime.engines.protocol import Context
from specruntime.engines.tensorrt import JIT_CACHE_VARIABLE, TrtEngine
from specruntime.errors import EngineFailed, SessionPoisoned
from specruntime.sampling.params import SamplingParams
from specruntime.session import Session
from tests.device_tensors import device_cache, forget_graphs
from tests.runtime.engines.cuda_stand_in import Machine
from tests.runtime.engines.tensorrt_bench import TinyEngine, install, tiny_engine
from tests.runtime.scripted_engine import scripted_manifest

K = 4
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8]
COUNT = 60
SAMPLED = SamplingParams(temperature=0.9, top_p=0.9, seed=11)


@dataclass
class Place:
    target: TinyEngine
    draft: TinyEngine


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    root = tmp_path_factory.mktemp("session")
    for name in ("target", "draft"):
        (root / name).mkdir()
    return Place(tiny_engine(root / "target"), tiny_engine(root / "draft", fused=K))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    device = Machine()
    install(monkeypatch, device)
    monkeypatch.setenv(JIT_CACHE_VARIABLE, str(tmp_path / "jit"))
    yield device
    assert (not device.blocks and not device.pinned) or device.lost is not None


def _session(place: Place, target: Context, draft: Draft) -> Session:
    session = Session(target, draft, manifest=scripted_manifest(place.target.ort, NoneDraft()))
    session.append(PROMPT)
    return session


def _decode(session: Session, params: SamplingParams) -> list[int]:
    session.begin(params)
    while session.length < len(PROMPT) + COUNT:
        session.round()
    return [int(token) for token in session.tokens[: len(PROMPT) + COUNT]]


def _plain(place: Place, params: SamplingParams) -> list[int]:
    engine = OrtEngine(place.target.ort, place.target.root, EngineOptions())
    return _decode(_session(place, engine.new_context(), NoProposer()), params)


@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["none", "ngram", "fused"])
def test_tokens_equal_plain_decoding_on_onnx_runtime(
    place: Place, machine: Machine, params: SamplingParams, kind: str
) -> None:
    target = TrtEngine(place.target.trt, place.target.root, EngineOptions())
    drafter = TrtEngine(place.draft.trt, place.draft.root, EngineOptions())
    drafts: dict[str, Draft] = {
        "none": NoProposer(),
        "ngram": NgramProposer(k=K, max_n=2, min_n=1),
        "fused": FusedProposer(drafter.new_context(), k=K),
    }
    session = _session(place, target.new_context(), drafts[kind])
    assert _decode(session, params) == _plain(place, params)
    session.close()
    for draft in drafts.values():
        draft.close()
    target.close()
    drafter.close()


def test_a_fused_round_is_two_launches_even_when_all_is_accepted(place: Place, machine: Machine) -> None:
    """The draft is the target's own weights: every draft is accepted, which is where catching up would cost a third."""
    target = TrtEngine(place.target.trt, place.target.root, EngineOptions())
    drafter = TrtEngine(place.draft.trt, place.draft.root, EngineOptions())
    session = _session(place, target.new_context(), FusedProposer(drafter.new_context(), k=K))
    session.begin(SamplingParams())
    session.round()  # prefill
    session.round()  # the draft's own prompt
    for _ in range(8):
        before = machine.calls["cuGraphLaunch"]
        done = session.round()
        assert (done.accepted, machine.calls["cuGraphLaunch"] - before) == (K, 2)
    session.close()
    target.close()
    drafter.close()


def test_statistics_count_graph_replays_and_tokens_do_not_depend_on_them(
    place: Place, machine: Machine
) -> None:
    target = TrtEngine(place.target.trt, place.target.root, EngineOptions())
    drafter = TrtEngine(place.draft.trt, place.draft.root, EngineOptions())
    answers = {}
    for replaying in (True, False):
        contexts = (target.new_context(), drafter.new_context())
        if not replaying:
            for context in contexts:
                forget_graphs(context)
        session = _session(place, contexts[0], FusedProposer(contexts[1], k=K))
        answers[replaying] = _decode(session, SamplingParams())
        stats = session.stats
        assert stats.target.replays == (stats.target.calls if replaying else {})
        assert stats.draft.replays == (stats.draft.calls if replaying else {})
        assert stats.as_dict()["graph_replays"] == {
            "target": stats.target.replays,
            "draft": stats.draft.replays,
        }
        session.close()
    assert answers[True] == answers[False]
    target.close()
    drafter.close()


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_device_error_poisons_the_session_and_it_closes(place: Place, machine: Machine, after: int) -> None:
    target = TrtEngine(place.target.trt, place.target.root, EngineOptions())
    session = _session(place, target.new_context(), NgramProposer(k=K, max_n=2, min_n=1))
    session.begin(SamplingParams())
    session.round()
    machine.fail("cuGraphLaunch", after=after)
    with pytest.raises(EngineFailed, match="cuGraphLaunch failed"):
        for _ in range(after + 1):
            session.round()
    with pytest.raises(SessionPoisoned):
        session.round()
    session.close()


def test_poisoned_unused_rows_change_nothing(place: Place, machine: Machine) -> None:
    target = TrtEngine(place.target.trt, place.target.root, EngineOptions())
    context = target.new_context()
    for tensor in device_cache(context).values():
        _fill(tensor.address, tensor.shape, 1e4)
    session = _session(place, context, NoProposer())
    assert _decode(session, SamplingParams()) == _plain(place, SamplingParams())
    session.close()
    target.close()


def _fill(address: int, shape: tuple[int, ...], value: float) -> None:
    count = int(np.prod(shape))
    np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))[:] = value


@pytest.mark.parametrize("count", [1, 25, len(PROMPT) + COUNT])
def test_a_session_starts_from_anothers_rows(place: Place, machine: Machine, count: int) -> None:
    """On the device, target and draft: the rows are the other's, those behind them untouched, and so are the tokens."""
    target = TrtEngine(place.target.trt, place.target.root, EngineOptions())
    drafter = TrtEngine(place.draft.trt, place.draft.root, EngineOptions())
    first, second = (
        _session(place, target.new_context(), FusedProposer(drafter.new_context(), k=K)) for _ in range(2)
    )
    expected = _decode(first, SamplingParams())
    before = second._feeder.context.cache()
    second.start_from(first, count)
    copied = first._feeder.context.cache()
    for name, rows in second._feeder.context.cache().items():
        assert np.array_equal(rows[:, :, : count - 1], copied[name][:, :, : count - 1])
        assert np.array_equal(rows[:, :, count - 1 :], before[name][:, :, count - 1 :])
    if count < len(PROMPT) + COUNT:
        if count < len(PROMPT):
            second.append(expected[count : len(PROMPT)])
        assert _decode(second, SamplingParams()) == expected
    for session in (first, second):
        session.close()
    target.close()
    drafter.close()


def test_a_device_error_while_rows_are_copied_poisons_the_session(place: Place, machine: Machine) -> None:
    target = TrtEngine(place.target.trt, place.target.root, EngineOptions())
    first, second = (_session(place, target.new_context(), NoProposer()) for _ in range(2))
    _decode(first, SamplingParams())
    machine.fail("cuMemcpy2DAsync", after=0)
    with pytest.raises(EngineFailed, match="cuMemcpy2DAsync failed"):
        second.start_from(first, 20)
    assert second.poisoned and not first.poisoned
    for session in (first, second):
        session.close()
