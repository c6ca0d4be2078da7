"""On a real device: replayed graphs, plain enqueues, ONNX Runtime on the CPU and PyTorch say the same."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from specruntime.bundle import load_manifest
from specruntime.drafts.lookup import NgramProposer, NoProposer
from specruntime.engines import EngineOptions
from specruntime.engines.protocol import OneSequence
from specruntime.engines.tensorrt import TrtEngine
from specruntime.engines.windows import Feeder
from specruntime.manifest.schema import Manifest
from specruntime.sampling.params import SamplingParams
from specruntime.session import Session
from tests.device_tensors import device_cache, forget_graphs
from tests.gpu.conftest import load_on_device

TOLERANCE = 5e-2  # what the width of a window may change on an fp16 logit
RELATIVE_TOLERANCE = 2e-2  # fp16 against fp16 with sums in another order, of the largest logit
PROMPT = np.random.default_rng(0).integers(100, 40_000, 150)
COUNT = 256


@pytest.fixture(scope="module")
def manifest(bundle: Path) -> Manifest:
    return load_manifest(bundle)


@pytest.fixture(scope="module")
def engine(manifest: Manifest, bundle: Path) -> Iterator[TrtEngine]:
    loaded = TrtEngine(manifest.target, bundle, EngineOptions())
    yield loaded
    loaded.close()


@pytest.fixture
def context(engine: TrtEngine) -> Iterator[OneSequence]:
    made = engine.new_context()
    yield made
    made.close()


def _judged(context: OneSequence) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Logits of the last prompt tokens: prefilled, then judged width by width."""
    feeder = Feeder(context)
    feeder.feed(PROMPT[:128], 0)
    rows = [feeder.logits(feeder.judge(PROMPT[128:140], 128)).copy()]
    rows.append(feeder.logits(feeder.judge(PROMPT[140:144], 140)).copy())
    rows += [feeder.logits(feeder.judge(PROMPT[n : n + 1], n)).copy() for n in range(144, 150)]
    return np.concatenate(rows)


def _decode(context: OneSequence, manifest: Manifest, drafts: bool, params: SamplingParams) -> list[int]:
    session = Session(
        context, NgramProposer(k=11, max_n=3, min_n=2) if drafts else NoProposer(), manifest=manifest
    )
    session.append(np.tile(PROMPT[:20], 4))
    session.begin(params)
    while session.length < 80 + COUNT:
        session.round()
    return [int(token) for token in session.tokens[: 80 + COUNT]]


def test_replayed_graphs_equal_plain_enqueues(engine: TrtEngine) -> None:
    replayed, enqueued = engine.new_context(), engine.new_context()
    forget_graphs(enqueued)
    np.testing.assert_array_equal(_judged(replayed), _judged(enqueued))
    assert sum(replayed.replays.values()) > 0 and sum(enqueued.replays.values()) == 0
    replayed.close()
    enqueued.close()


def test_logits_equal_pytorch(context: OneSequence) -> None:
    model = load_on_device()
    with torch.no_grad():
        expected = (
            model(input_ids=torch.from_numpy(PROMPT)[None].to("cuda")).logits[0, 128:].float().cpu().numpy()
        )
    difference = np.abs(_judged(context) - expected[:, : context.spec.vocab_size]).max()
    assert difference < RELATIVE_TOLERANCE * np.abs(expected).max(), difference


@pytest.mark.parametrize("value", [1e4, -1e4])
def test_unused_cache_rows_change_nothing(context: OneSequence, value: float) -> None:
    expected = _judged(context)
    for tensor in device_cache(context).values():
        torch.utils.dlpack.from_dlpack(tensor)[:, :, len(PROMPT) :].fill_(value)
    torch.cuda.synchronize()
    np.testing.assert_array_equal(_judged(context), expected)


def test_rows_do_not_depend_on_later_rows(context: OneSequence) -> None:
    feeder = Feeder(context)
    feeder.feed(PROMPT[:128], 0)
    first = feeder.logits(feeder.judge(PROMPT[128:140], 128)).copy()
    changed = PROMPT[128:140].copy()
    changed[6:] += 1
    np.testing.assert_array_equal(feeder.logits(feeder.judge(changed, 128))[:6], first[:6])


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(temperature=0.8, seed=3)], ids=["greedy", "sampled"]
)
def test_same_run_gives_the_same_tokens(
    engine: TrtEngine, manifest: Manifest, params: SamplingParams
) -> None:
    runs = []
    for _ in range(2):
        context = engine.new_context()
        runs.append(_decode(context, manifest, True, params))
        context.close()
    assert runs[0] == runs[1]


def test_speculation_follows_plain_decoding_up_to_rounding(engine: TrtEngine, manifest: Manifest) -> None:
    """fp16: a first divergence is excused only where the two best logits are closer than widths differ."""
    one, two = engine.new_context(), engine.new_context()
    plain = _decode(one, manifest, False, SamplingParams())
    drafted = _decode(two, manifest, True, SamplingParams())
    different = next(
        (n for n, pair in enumerate(zip(plain, drafted, strict=True)) if pair[0] != pair[1]), None
    )
    if different is not None:
        feeder = Feeder(one)
        ids = np.array(plain[:different])
        logits = np.sort(feeder.logits(feeder.feed(ids, 0))[0])
        gap = float(logits[-1] - logits[-2])
        assert gap < TOLERANCE, f"tokens differ at {different} although the best two logits are {gap} apart"
    one.close()
    two.close()
