"""What a round emits is what plain decoding emits, and its caches are those of a clean prefill."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from specruntime.drafts import DraftSpec, ModelDraft, NgramDraft, Proposal, Room
from specruntime.drafts.model import ModelProposer
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler, token_logprobs
from tests.runtime.scripted_engine import (
    VOCAB,
    Bench,
    Language,
    ScriptedContext,
    TableDraft,
    clean_logits,
    clean_rows,
    draft_spec,
    reference_decode,
    target_spec,
)

PROMPT = [5, 9, 2, 40, 7, 5, 9]
GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=11)
EVERY_PENALTY = SamplingParams(
    temperature=0.8, top_k=40, min_p=0.01, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4,
    logit_bias={3: 1.5, 4: -np.inf}, min_tokens=30, seed=5,
)  # fmt: skip
PROCESSORS = {
    "repetition": SamplingParams(repetition_penalty=1.5),
    "presence": SamplingParams(presence_penalty=1.5),
    "frequency": SamplingParams(frequency_penalty=1.0),
    "bias": SamplingParams(logit_bias={3: 2.0, 5: -np.inf}),
    "min_tokens": SamplingParams(min_tokens=30, stop_token_ids=(1, 2, 3)),
    "min_p": SamplingParams(temperature=1.2, min_p=0.2, seed=1),
    "top_k": SamplingParams(temperature=1.2, top_k=3, seed=2),
    "top_p": SAMPLED,
    "all": EVERY_PENALTY,
}
LONG = target_spec(verify=(2, 3, 9), capacity=300)


def model(k: int, capacity: int = 300) -> ModelDraft:
    return ModelDraft(k=k, graph=draft_spec(capacity=capacity))


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize(
    "params",
    [GREEDY, SAMPLED, SamplingParams(temperature=1, seed=3, accept="rejection"), EVERY_PENALTY],
    ids=["greedy", "match", "rejection", "penalties"],
)
def test_a_draft_that_is_the_target_is_always_right(k: int, params: SamplingParams) -> None:
    bench = Bench(model(k, capacity=600), target=target_spec(verify=(k + 1,), capacity=600))
    session = bench.session
    session.append(PROMPT)
    session.begin(params)
    session.round()
    for _ in range(52):
        round = session.round()
        assert round.proposed == round.accepted == k
    assert session.stats.acceptance_length == k + 1
    assert session.stats.draft.calls["catch_up"] >= 51, "each full acceptance is caught up in one window"
    if params.accept == "match":
        answer = session.tokens[len(PROMPT) :].tolist()
        assert answer == reference_decode(bench.language, PROMPT, len(answer), params)


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_draft_that_is_always_wrong_costs_nothing_but_time(k: int, params: SamplingParams) -> None:
    answer = reference_decode(Language(), PROMPT, 120, params)
    bench = Bench(target=LONG, proposer=TableDraft(len(PROMPT), answer, k, wrong=range(200)))
    assert bench.decode(PROMPT, 110, params) == answer[:110]
    assert bench.session.stats.accepted == 0 and bench.session.stats.rounds == 109
    assert bench.session.stats.evaluated == 109


@pytest.mark.parametrize("k", [1, 2, 8])
@pytest.mark.parametrize("name", PROCESSORS)
def test_each_option_gives_the_tokens_of_plain_decoding(name: str, k: int) -> None:
    params = PROCESSORS[name]
    expected = reference_decode(Language(), PROMPT, 60, params)
    drafts: list[DraftSpec] = [model(k), NgramDraft(k=k, max_n=3, min_n=1)]
    for draft in drafts:
        bench = Bench(draft, target=LONG, draft_language=Language(drift=2))
        assert bench.decode(PROMPT, 60, params) == expected
        if draft.kind == "model":
            stats = bench.session.stats
            assert 0 < stats.accepted < stats.proposed, "the draft is right sometimes, wrong sometimes"


@pytest.mark.parametrize("wrong", [set(), {0}, {1, 2}, {3}, {4, 9}, {7, 8, 11}, set(range(0, 60, 3))])
def test_rows_align_whatever_is_accepted(wrong: set[int]) -> None:
    answer = reference_decode(Language(), PROMPT, 60, SAMPLED)
    for k in (1, 2, 3, 8):
        bench = Bench(target=LONG, proposer=TableDraft(len(PROMPT), answer, k, wrong))
        assert bench.decode(PROMPT, 50, SAMPLED) == answer[:50]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, SamplingParams(temperature=1, accept="rejection")])
def test_after_each_round_both_caches_are_those_of_a_clean_prefill(params: SamplingParams) -> None:
    bench = Bench(model(4), target=LONG, draft_language=Language(drift=2))
    session = bench.session
    proposer = session._draft
    assert isinstance(proposer, ModelProposer) and bench.draft is not None
    session.append(PROMPT)
    session.begin(params)
    for _ in range(50):
        session.round()
        tokens = session.tokens.tolist()
        assert session.cache_length == session.length - 1
        assert np.array_equal(bench.target.rows(session.cache_length), clean_rows(tokens[:-1]))
        fed = proposer.cache_length
        assert np.array_equal(bench.draft.rows(fed), clean_rows(tokens[:fed]))


@pytest.mark.parametrize("value", [1e4, -1e4, np.nan])
def test_rows_beyond_the_committed_ones_change_nothing(value: float) -> None:
    bench = Bench(model(4), target=LONG, draft_language=Language(drift=2))
    session = bench.session
    proposer = session._draft
    assert isinstance(proposer, ModelProposer) and bench.draft is not None
    session.append(PROMPT)
    session.begin(SAMPLED)
    while session.length < 100:
        bench.target.poison(session.cache_length, value)
        bench.draft.poison(proposer.cache_length + len(proposer._speculated), value)
        session.round()
    expected = reference_decode(bench.language, PROMPT, session.length - len(PROMPT), SAMPLED)
    assert session.tokens[len(PROMPT) :].tolist() == expected


@pytest.mark.parametrize("kind", ["none", "ngram", "model"])
@pytest.mark.parametrize("length", range(1, 41))
def test_every_prompt_length_decodes_to_the_last_row(kind: str, length: int) -> None:
    capacity = 40
    drafts: dict[str, Callable[[], DraftSpec | None]] = {
        "none": lambda: None,
        "ngram": lambda: NgramDraft(k=4, max_n=2, min_n=1),
        "model": lambda: model(4, capacity=33),  # the draft's cache ends before the target's
    }
    for verify in ((5,), (3, 5)):
        bench = Bench(drafts[kind](), target=target_spec(verify=verify, prefill=16, capacity=capacity))
        prompt = [(7 * i) % VOCAB for i in range(length)]
        expected = reference_decode(bench.language, prompt, capacity + 1 - length, GREEDY)
        assert bench.decode(prompt, capacity + 1 - length) == expected
        assert bench.session.cache_length == capacity and bench.session.length == capacity + 1


def test_the_draft_falls_silent_at_its_own_capacity() -> None:
    bench = Bench(model(4, capacity=30), target=LONG)
    session = bench.session
    session.append(PROMPT)
    session.begin(GREEDY)
    session.round()
    while session.length < 100:
        drafts = min(4, max(0, 31 - session.length))
        assert session.round().proposed == drafts
    assert bench.draft is not None
    assert np.array_equal(bench.draft.rows(29), clean_rows(session.tokens[:29].tolist()))


def test_a_seed_repeats_itself_and_others_differ() -> None:
    for accept in ("match", "rejection"):

        def answer(seed: int, draft: DraftSpec | None, accept: str = accept) -> list[int]:
            params = SamplingParams(
                temperature=1.0, seed=seed, accept="match" if accept == "match" else "rejection"
            )
            return Bench(draft, target=LONG, draft_language=Language(drift=2)).decode(PROMPT, 60, params)

        assert answer(1, model(4)) == answer(1, model(4)) != answer(2, model(4))
    assert answer(1, NgramDraft(k=3, max_n=2, min_n=1)) == answer(1, None), "deterministic drafts use `match`"


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize(
    "params", [SamplingParams(logprobs=3), SamplingParams(temperature=1, seed=4, logprobs=0)]
)
def test_logprobs_are_those_of_a_teacher_forced_pass(k: int, params: SamplingParams) -> None:
    bench = Bench(model(k), target=LONG, draft_language=Language(drift=2))
    session = bench.session
    session.append(PROMPT)
    session.begin(params)
    while session.length < 60:
        start = session.length
        round = session.round()
        assert round.logprobs is not None and len(round.logprobs) == len(round.tokens)
        for offset, entry in enumerate(round.logprobs):
            tokens = session.tokens[: start + offset].tolist()
            logits = clean_logits(bench.language, tokens)
            assert entry == token_logprobs(logits, round.tokens[offset], params.logprobs or 0, VOCAB)


class MisreportedLaw(ModelProposer):
    """A negative control: reports another distribution than it drew from."""

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        proposal = super().propose(tokens, room, sampler)
        if proposal.probabilities is None:
            return proposal
        flat = (proposal.probabilities > 0).astype(np.float32)
        return Proposal(proposal.ids, flat / flat.sum(axis=1, keepdims=True))


@pytest.mark.parametrize(("proposer", "lawful"), [(ModelProposer, True), (MisreportedLaw, False)])
def test_rejection_keeps_the_law_of_the_target(proposer: type[ModelProposer], lawful: bool) -> None:
    """Tokens 2 and 3 after one prompt over many seeds, against plain decoding of other seeds (chi-square)."""
    language = Language(seed=4)
    draft = proposer(ScriptedContext(draft_spec(), Language(seed=4, drift=3)), k=3)
    session = Bench(proposer=draft, language=language)
    counts: Counter[tuple[bool, tuple[int, ...]]] = Counter()
    for seed in range(800):
        params = SamplingParams(temperature=0.7, top_k=4, seed=seed, accept="rejection")
        session.session.reset()
        counts[True, tuple(session.decode(PROMPT, 3, params)[1:])] += 1
        plain = replace(params, seed=seed + 10_000)
        counts[False, tuple(reference_decode(language, PROMPT, 3, plain)[1:])] += 1
    seen = {tokens for _, tokens in counts}
    pairs = np.array([(counts[True, tokens], counts[False, tokens]) for tokens in seen], dtype=float)
    pairs = pairs[pairs.sum(axis=1) >= 10]
    chi = ((pairs[:, 0] - pairs[:, 1]) ** 2 / pairs.sum(axis=1)).sum()
    assert len(pairs) >= 8
    assert (chi < len(pairs) + 4 * np.sqrt(2 * len(pairs))) is np.bool_(lawful)
