"""Prompts that begin alike: the tokens of answers alone, rows computed once, and no conversation lost for it."""

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
import pytest

from specruntime import EngineFailed, InvalidArgument, SamplingParams
from specruntime.bundle import LoadedBundle
from specruntime.drafts import DraftSpec, ModelDraft, NgramDraft
from specruntime.serving import (
    BatchStepper,
    PrefixCaching,
    Scheduler,
    SessionStepper,
    Stepper,
    Stream,
    Work,
    collect,
    stepper_for,
)
from specruntime.serving.prefixes import Prefixes
from tests.runtime.scripted_bundle import ScriptedEngine, scripted_bundle
from tests.runtime.scripted_engine import VOCAB, Language, draft_spec
from tests.runtime.serving.scripted_work import alone

CHUNK, CAPACITY = 8, 128  # of the scripted bundles
NGRAM = NgramDraft(k=4, max_n=3, min_n=1)
SYSTEM = [int(token) for token in np.random.default_rng(5).integers(0, VOCAB, 30)]


def made(
    *, batch: int = 1, draft: DraftSpec = NGRAM, precision: str = "fp32"
) -> tuple[LoadedBundle, ScriptedEngine]:
    bundle, engine = scripted_bundle(
        language=Language(habit=3.0), capacity=CAPACITY, batch=batch, draft=draft
    )
    bundle.manifest = bundle.manifest.model_copy(update={"precision": precision})
    return bundle, engine


def work(prompt: Sequence[int], *, max_tokens: int = 12, seed: int = 0, speculate: bool = True) -> Work:
    params = SamplingParams(temperature=0.8 if seed else 0.0, seed=seed, max_tokens=max_tokens)
    return Work(np.array(prompt), params, speculate)


def ask(scheduler: Scheduler, asked: Work) -> tuple[list[int], int]:
    """The answer, and how many tokens of the prompt were cached."""
    deliveries = list(Stream(scheduler, asked))
    return [t for delivery in deliveries for t in delivery.delta.tokens], deliveries[-1].figures.cached_tokens


def fed(engine: ScriptedEngine) -> int:
    """Rows that windows of any width filled so far, padding left out."""
    return sum(sum(context.valid) for context in engine.contexts)


@pytest.mark.parametrize("slots", [1, 3])
def test_the_turns_of_a_conversation_are_computed_once(slots: int) -> None:
    """Each turn's prompt is the whole conversation, as clients of an HTTP server send it."""
    bundle, engine = made()
    with Scheduler(SessionStepper(bundle, slots)) as scheduler:
        said = list(SYSTEM)
        for turn in range(4):
            asked = work(said, max_tokens=8, seed=turn)
            expected, before = alone(bundle, asked), fed(engine)
            answer, cached = ask(scheduler, asked)
            assert answer == expected
            # Everything but the last token or two of the answer before, and what was said since.
            assert cached == 0 if turn == 0 else cached >= len(said) - 5
            rows = fed(engine) - before
            assert turn == 0 or rows < 8 * 5 + 6, "the conversation was fed again"
            said += [*answer, 7, 11 + turn]
        assert scheduler.totals.cached_tokens > 0
    bundle.close()


def test_prompts_that_arrive_together_share_their_beginning() -> None:
    """The second prompt is fed once the first one's rows are there, so it finds them."""
    bundle, _ = made()
    works = [work([*SYSTEM, 1 + number, 2], seed=number) for number in range(4)]
    with Scheduler(SessionStepper(bundle, 4)) as scheduler:
        answers = collect(scheduler, works)
    assert [[t for d in answer for t in d.delta.tokens] for answer in answers] == [
        alone(bundle, asked) for asked in works
    ]
    assert [answer[-1].figures.cached_tokens for answer in answers] == [0, 29, 29, 29]
    bundle.close()


def test_conversations_in_turn_each_find_their_own_slot() -> None:
    """Three users over four slots: none overwrites another's rows though each time all slots are free."""
    bundle, _ = made()
    said = {user: [*SYSTEM[:4], *([user] * 12)] for user in (50, 60, 70)}
    with Scheduler(SessionStepper(bundle, 4)) as scheduler:
        for turn in range(3):
            for prompt in said.values():
                answer, cached = ask(scheduler, work(prompt, max_tokens=6))
                assert answer == alone(bundle, work(prompt, max_tokens=6))
                assert turn == 0 or cached >= len(prompt) - 4
                prompt += [*answer, 3]
    bundle.close()


@pytest.mark.parametrize(("batch", "slots"), [(1, 1), (1, 3), (4, 4), (2, 4)])
@pytest.mark.parametrize("draft", ["ngram", "model"])
@pytest.mark.parametrize("mode", ["exact", "all", "off"])
def test_whatever_is_reused_the_tokens_are_those_of_sessions_alone(
    batch: int, slots: int, draft: str, mode: PrefixCaching
) -> None:
    """Prompts that share beginnings of every length, some an answer of another, in no order; cancelled ones between."""
    random = Random(batch * 10 + slots)
    kinds: dict[str, DraftSpec] = {
        "ngram": NGRAM,
        "model": ModelDraft(k=4, graph=draft_spec(capacity=CAPACITY, batch=batch)),
    }
    bundle, _ = made(batch=batch, draft=kinds[draft])
    known: list[list[int]] = [SYSTEM]
    works = []
    for number in range(30):
        base = random.choice(known)
        prompt = [
            *base[: random.randint(0, len(base))],
            *random.choices(range(VOCAB), k=random.randint(1, 6)),
        ]
        works.append(
            work(prompt[:90], seed=number % 4, max_tokens=random.randint(1, 10), speculate=number % 5 > 0)
        )
        known.append([*prompt[:90], *alone(bundle, works[-1])])
    expected = [alone(bundle, asked) for asked in works]
    with Scheduler(stepper_for(bundle, slots, prefix_caching=mode)) as scheduler:
        streams = [Stream(scheduler, asked) for asked in works]
        for stream in streams[::7]:
            stream.close()
        kept = [number for number in range(len(works)) if number % 7]
        answers = {number: list(streams[number]) for number in kept}
        totals = scheduler.totals
    for number, answer in answers.items():
        assert [t for delivery in answer for t in delivery.delta.tokens] == expected[number]
        figures = answer[-1].figures
        assert figures.cached_tokens < figures.prompt_tokens
    assert (totals.cached_tokens > 0) is (mode != "off")
    bundle.close()


def test_below_fp32_only_what_whole_pieces_left_is_reused() -> None:
    """Windows of 8: whole pieces end after 8, 15, 22 and 29 tokens. Rows of answers are not reused."""
    bundle, engine = made(precision="int8")
    with Scheduler(SessionStepper(bundle, 1)) as scheduler:
        first, cached = ask(scheduler, work(SYSTEM))
        assert cached == 0
        starts = [int(n) for n in engine.contexts[0].valid]
        again, cached = ask(scheduler, work(SYSTEM))
        assert again == first and cached == 28
        replayed = [int(n) for n in engine.contexts[0].valid[len(starts) :]]
        assert replayed == starts[-len(replayed) :], (
            "the windows from there on are those of a session of its own"
        )
        assert ask(scheduler, work([*SYSTEM, *first, 1]))[1] == 28
        assert ask(scheduler, work([*SYSTEM[:25], 1, 1]))[1] == 21
        drawn = Work(np.array(SYSTEM), SamplingParams(temperature=1.0, accept="rejection", max_tokens=4))
        assert ask(scheduler, drawn)[1] == 0
    bundle.close()


def test_all_reuses_below_fp32_too() -> None:
    bundle, _ = made(precision="int8")
    with Scheduler(SessionStepper(bundle, 1, prefix_caching="all")) as scheduler:
        first, _ = ask(scheduler, work(SYSTEM))
        assert ask(scheduler, work([*SYSTEM, *first, 1]))[1] >= len(SYSTEM) + len(first) - 4
    bundle.close()


@pytest.mark.parametrize(
    ("length", "pieces", "usable"), [(8, 8, 8), (7, 8, 0), (14, 22, 8), (22, 22, 22), (22, 15, 15)]
)
def test_pieces_end_where_prompts_are_cut(length: int, pieces: int, usable: int) -> None:
    bundle, _ = made(precision="int4")
    prompt = work([*SYSTEM[:length], VOCAB - 1, VOCAB - 1])
    assert (
        Prefixes(bundle.manifest, "exact").usable(prompt, np.array([*SYSTEM[:length], 0]), pieces) == usable
    )
    bundle.close()


def test_one_token_is_left_to_be_fed_and_one_alone_saves_nothing() -> None:
    bundle, _ = made()
    prefixes = Prefixes(bundle.manifest, "exact")
    held = np.array(SYSTEM)
    assert prefixes.usable(work(SYSTEM), held, 0) == len(SYSTEM) - 1
    assert prefixes.usable(work(SYSTEM[:2]), held, 0) == 0
    assert prefixes.usable(work([VOCAB - 1]), held, 0) == 0
    assert Prefixes(bundle.manifest, "off").usable(work(SYSTEM), held, 0) == 0
    bundle.close()


def test_another_mode_is_refused_by_name() -> None:
    bundle, _ = made()
    with pytest.raises(InvalidArgument, match="prefix_caching is 'exakt', allowed: exact, all, off"):
        stepper_for(bundle, 2, prefix_caching="exakt")  # type: ignore[arg-type]
    bundle.close()


@pytest.fixture
def two() -> Iterator[tuple[LoadedBundle, ScriptedEngine]]:
    bundle, engine = made()
    yield bundle, engine
    bundle.close()


def test_a_copy_that_fails_is_computed_instead(two: tuple[LoadedBundle, ScriptedEngine]) -> None:
    bundle, engine = two
    stepper = SessionStepper(bundle, 2)
    expected = alone(bundle, work([*SYSTEM, 1]))
    with Scheduler(stepper) as scheduler:
        ask(scheduler, work(SYSTEM, max_tokens=40))
        copies: list[None] = []

        def fail(context: int) -> bool:
            copies.append(None)
            return context == 1 and len(copies) == 1

        engine.failing = fail
        assert ask(scheduler, work([*SYSTEM, 1])) == (expected, 0)
        assert copies, "it was tried"


def test_after_a_failure_nothing_of_the_slot_is_reused(two: tuple[LoadedBundle, ScriptedEngine]) -> None:
    bundle, engine = two
    expected = alone(bundle, work(SYSTEM))
    with Scheduler(SessionStepper(bundle, 1)) as scheduler:
        engine.failing = lambda context: fed(engine) > 40
        with pytest.raises(EngineFailed):
            ask(scheduler, work(SYSTEM, max_tokens=40))
        engine.failing = lambda context: False
        assert ask(scheduler, work(SYSTEM)) == (expected, 0)


def test_rows_of_emptied_slots_are_not_counted_as_in_use(two: tuple[LoadedBundle, ScriptedEngine]) -> None:
    bundle, _ = two
    with Scheduler(SessionStepper(bundle, 2)) as scheduler:
        ask(scheduler, work(SYSTEM))
        assert scheduler.occupancy().rows == 0


def step_until_done(stepper: Stepper, slot: int) -> list[int]:
    tokens: list[int] = []
    while True:
        for turn in list(stepper.step()):
            assert turn.error is None
            if turn.slot == slot and turn.delta is not None:
                tokens += turn.delta.tokens
                if turn.delta.finish_reason is not None:
                    stepper.evict(slot)
                    return tokens


def test_a_launch_that_failed_over_an_emptied_lane_leaves_nothing_to_reuse() -> None:
    """The failed launch of a neighbour covers the caches of a lane that only keeps rows for others."""
    bundle, _ = made(batch=4)
    asked, other = work(SYSTEM), work([9, 8, 7])
    expected = alone(bundle, asked)
    stepper = BatchStepper(bundle, 4)
    stepper.admit(1, stepper.check(asked))
    assert step_until_done(stepper, 1) == expected
    stepper.batches[0].target.lanes[1].fail(RuntimeError("the launch of a neighbour"))
    stepper.admit(0, stepper.check(asked))
    assert step_until_done(stepper, 0) == expected, "not copied"
    stepper.admit(1, stepper.check(other))
    assert step_until_done(stepper, 1) == alone(bundle, other), "the lane has healed"
    stepper.close()
    bundle.close()


def test_an_emptied_lane_that_is_nearly_full_is_in_nobodys_way() -> None:
    """A launch over it writes a stale row behind its own, for which a full cache has no room."""
    bundle, _ = made(batch=4)
    stepper = BatchStepper(bundle, 4)
    long = work([*SYSTEM, *SYSTEM, *SYSTEM], max_tokens=CAPACITY - 95)
    stepper.admit(1, stepper.check(long))
    step_until_done(stepper, 1)
    assert stepper.batches[0].target.lanes[1].end == 0
    short = work(SYSTEM)
    stepper.admit(2, stepper.check(short))
    step_until_done(stepper, 2)
    assert 30 <= stepper.batches[0].target.lanes[2].end <= 50
    stepper.close()
    bundle.close()
