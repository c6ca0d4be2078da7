"""Batches on the TensorRT engine, on stand-ins that enforce the libraries' rules: rows equal to ONNX Runtime alone."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specruntime import SamplingParams
from specruntime.bundle import LoadedBundle
from specruntime.drafts import Draft, NgramDraft
from specruntime.engines import EngineOptions
from specruntime.engines.onnxruntime import OrtEngine
from specruntime.engines.tensorrt import JIT_CACHE_VARIABLE, TrtEngine
from specruntime.engines.tensorrt_batch import TrtBatch
from specruntime.manifest.schema import Profile
from specruntime.serving import BatchStepper, Work, stepper_for
from tests.runtime.drafts.tree_drafts import BUSHY, CHAIN, DEPTH_FIRST, LEVELS, TreeTableDraft
from tests.runtime.engines.cuda_stand_in import Machine
from tests.runtime.engines.tensorrt_bench import TinyEngine, install, tiny_engine
from tests.runtime.scripted_engine import scripted_manifest

BATCHES = (1, 2, 4)
DRAFT = NgramDraft(k=4, max_n=2, min_n=1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyEngine:
    return tiny_engine(tmp_path_factory.mktemp("batch"), batches=BATCHES)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    device = Machine()
    install(monkeypatch, device)
    monkeypatch.setenv(JIT_CACHE_VARIABLE, str(tmp_path / "jit"))
    yield device
    assert not device.blocks and not device.pinned


def alone(tiny: TinyEngine, work: Work) -> list[int]:
    engine = OrtEngine(tiny.ort, tiny.root, EngineOptions(threads=1))
    with LoadedBundle(scripted_manifest(tiny.ort, DRAFT), tiny.root, engine, None) as bundle:
        session = bundle.new_session(speculate=False)
        session.append(work.prompt)
        session.begin(work.params)
        count = work.params.max_tokens or 0
        while session.length < len(work.prompt) + count:
            session.round()
        return [int(token) for token in session.tokens[len(work.prompt) :]]


def test_rows_decode_what_they_decode_alone(tiny: TinyEngine, machine: Machine) -> None:
    noise = np.random.default_rng(2)
    asked = [
        Work(noise.integers(0, 200, length), SamplingParams(temperature=heat, seed=length, max_tokens=count))
        for length, heat, count in ((7, 0.0, 30), (19, 0.9, 22), (3, 0.0, 41), (11, 0.7, 18), (5, 0.0, 12))
    ]
    engine = TrtEngine(tiny.trt, tiny.root, EngineOptions())
    with LoadedBundle(scripted_manifest(tiny.trt, DRAFT), tiny.root, engine, None) as bundle:
        stepper = stepper_for(bundle, 4)
        assert isinstance(stepper, BatchStepper)
        tokens: list[list[int]] = [[] for _ in asked]
        waiting, free, active = list(range(len(asked))), list(range(4)), dict[int, int]()
        while waiting or active:
            if waiting and free:
                active[slot := free.pop(0)] = waiting[0]
                stepper.admit(slot, stepper.check(asked[waiting.pop(0)]))
            for turn in list(stepper.step()):
                assert turn.error is None, turn.error
                if turn.delta is not None:
                    tokens[active[turn.slot]] += turn.delta.tokens
                    if turn.delta.finish_reason:
                        stepper.evict(turn.slot)
                        del active[turn.slot]
                        free = sorted([*free, turn.slot])
        context = stepper.batches[0].target.context
        assert isinstance(context, TrtBatch)
        assert sum(context.replays.values()) > 0, "launches are replayed from captured graphs"
        stepper.close()
    assert tokens == [alone(tiny, work) for work in asked]


@pytest.fixture(scope="module")
def tiny_tree(tmp_path_factory: pytest.TempPathFactory) -> TinyEngine:
    """With a window that judges trees of nine nodes."""
    profiles = (
        Profile(name="step", width=1, rows=1),
        Profile(name="verify_10", width=10, rows=10),
        Profile(name="prefill_16", width=16, rows=1),
    )
    return tiny_engine(tmp_path_factory.mktemp("trees"), profiles=profiles, batches=BATCHES)


def test_trees_of_several_rows_decode_what_each_decodes_alone(
    tiny_tree: TinyEngine, machine: Machine
) -> None:
    """Each row has a tree of its own, of which other depths are right: some accept more of a launch than others."""
    noise, count = np.random.default_rng(5), 36
    asked = [
        Work(noise.integers(0, 200, length), SamplingParams(temperature=heat, seed=length, max_tokens=count))
        for length, heat in ((7, 0.0), (19, 0.8), (3, 0.0), (11, 0.6))
    ]
    expected = [alone(tiny_tree, work) for work in asked]
    trees = iter((BUSHY, DEPTH_FIRST, LEVELS, CHAIN))
    rows = iter(range(4))

    def tree_of(_: Draft) -> Draft:
        tree, row = next(trees), next(rows)
        known = [*expected[row], *[0] * 9]
        return TreeTableDraft(
            len(asked[row].prompt), known, lambda i: None if i % 7 == 6 else tree, lambda i: i % 2
        )

    engine = TrtEngine(tiny_tree.trt, tiny_tree.root, EngineOptions())
    with LoadedBundle(scripted_manifest(tiny_tree.trt, DRAFT), tiny_tree.root, engine, None) as bundle:
        batch = bundle.new_batch(4, adapt=tree_of)
        for session, work in zip(batch.sessions, asked, strict=True):
            session.append(work.prompt)
            session.begin(work.params)
        goal = [len(work.prompt) + count for work in asked]
        while due := [n for n, session in enumerate(batch.sessions) if session.length < goal[n]]:
            dict(batch.turns({number: batch.sessions[number].round for number in due}))
        found = [
            [int(token) for token in session.tokens[len(work.prompt) :]]
            for session, work in zip(batch.sessions, asked, strict=True)
        ]
        accepted = [session.stats.accepted for session in batch.sessions]
        rounds = [session.stats.rounds for session in batch.sessions]
        shared = batch.target.launches
        batch.close()
    assert found == expected
    assert min(accepted) > 5 and len(set(accepted)) > 1, accepted
    assert shared < sum(rounds), "launches are shared"


def test_kept_rows_are_those_of_one_sequence(tiny: TinyEngine, machine: Machine) -> None:
    engine = TrtEngine(tiny.trt, tiny.root, EngineOptions())
    batch = engine.new_batch(4)
    window = batch.window("step", 4)
    for start in range(6):
        window.input_ids[:, 0] = np.arange(4) * 7 + start
        window.position_ids[:] = window.cache_length[:, None] = start
        batch.run(window, 0)
    before = [batch.cache(row) for row in range(4)]
    batch.keep(2, 1, np.array([0, 2, 4]))
    for row in range(4):
        for name, rows in batch.cache(row).items():
            expected = before[row][name].copy()
            if row == 2:
                expected[:, :, 1:4] = before[row][name][:, :, [1, 3, 5]]
            assert np.array_equal(rows, expected)
    batch.zero(1)
    assert not any(rows.any() for rows in batch.cache(1).values())
    assert all(rows.any() for rows in batch.cache(3).values())
    batch.close()
    engine.close()


def test_copied_rows_are_those_of_one_sequence_of_either_batch(tiny: TinyEngine, machine: Machine) -> None:
    engine = TrtEngine(tiny.trt, tiny.root, EngineOptions())
    batch, other = engine.new_batch(4), engine.new_batch(2)
    for each, size in ((batch, 4), (other, 2)):
        window = each.window("step", size)
        for start in range(6):
            window.input_ids[:, 0] = np.arange(size) * 7 + start + size
            window.position_ids[:] = window.cache_length[:, None] = start
            each.run(window, 0)
    before, source = [batch.cache(row) for row in range(4)], other.cache(1)
    batch.copy_rows(2, other, 1, 4)
    batch.copy_rows(0, batch, 3, 5)
    for row, (copied, count) in enumerate([(before[3], 5), (before[1], 6), (source, 4), (before[3], 6)]):
        for name, rows in batch.cache(row).items():
            assert np.array_equal(rows[:, :, :count], copied[name][:, :, :count])
            assert np.array_equal(rows[:, :, count:], before[row][name][:, :, count:])
    for each in (batch, other):
        each.close()
    engine.close()
