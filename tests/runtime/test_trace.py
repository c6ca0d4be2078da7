"""A trace says of each round what was proposed, fed, answered and emitted; without one nothing is recorded."""

import json
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from specruntime.drafts import DraftSpec, ModelDraft, NgramDraft
from specruntime.sampling.params import SamplingParams
from specruntime.trace import RoundTrace, render_round
from tests.runtime.drafts.tree_drafts import BUSHY, SampledTreeDraft, TreeTableDraft, depths_of
from tests.runtime.scripted_bundle import scripted_bundle
from tests.runtime.scripted_engine import (
    VOCAB,
    Bench,
    Language,
    TableDraft,
    clean_logits,
    draft_spec,
    reference_decode,
    target_spec,
)

PROMPT = [5, 80, 3, 5, 41, 7, 7, 2, 9, 11]
GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=1.2, seed=7)
WIDE = target_spec(verify=(5, 10), capacity=120, features=True)


def expect_scores(trace: RoundTrace, committed: Sequence[int]) -> None:
    """Of each judged row: the two best logits after the committed tokens and what the row sees of the window."""
    before = [*committed][: trace.start]
    for scores in trace.scores:
        seen = [trace.ids[row] for row, shown in enumerate(trace.mask[scores.row]) if shown]
        logits = clean_logits(Language(), before + seen)
        best, second = np.argsort(-logits)[:2].tolist()
        assert (scores.best, scores.second) == (best, second)
        assert scores.margin == pytest.approx(float(logits[best] - logits[second]), rel=1e-5)


def answer_of(traces: Sequence[RoundTrace]) -> list[int]:
    """The emitted tokens, each round's where it says they are."""
    for one, other in pairwise(traces):
        assert other.position == one.position + len(one.tokens)
    return [token for trace in traces for token in trace.tokens]


@pytest.mark.parametrize(("verify", "profile", "start"), [((), "prefill", 8), ((5,), "verify_5", 5)])
def test_a_prompt_s_round_shows_its_last_window(verify: tuple[int, ...], profile: str, start: int) -> None:
    traces: list[RoundTrace] = []
    bench = Bench(target=target_spec(verify=verify), trace=traces.append)
    bench.decode(PROMPT, 1)
    (trace,) = traces
    count = len(PROMPT) - start
    assert (trace.profile, trace.start, trace.position, trace.seed) == (profile, start, 0, None)
    assert (trace.ids, trace.positions) == (tuple(PROMPT[start:]), tuple(range(start, len(PROMPT))))
    assert np.array_equal(np.array(trace.mask), np.tri(count, dtype=np.bool_))
    assert (trace.proposal, trace.parents, trace.path) == ((), None, ())
    assert [scores.row for scores in trace.scores] == [count - 1]
    assert trace.tokens == (trace.scores[0].best,)
    expect_scores(trace, PROMPT)


def test_plain_rounds_hold_one_row_and_what_follows_it() -> None:
    traces: list[RoundTrace] = []
    answer = Bench(trace=traces.append).decode(PROMPT, 12)
    assert answer_of(traces) == answer == reference_decode(Language(), PROMPT, 12, GREEDY)
    for trace in traces[1:]:
        fed = (PROMPT + answer)[trace.start]
        assert (trace.profile, trace.ids, trace.positions) == ("step", (fed,), (trace.start,))
        assert trace.mask == ((True,),)
        expect_scores(trace, PROMPT + answer)


def test_a_chain_shows_its_drafts_and_the_run_that_was_accepted() -> None:
    answer = reference_decode(Language(), PROMPT, 40, GREEDY)
    traces: list[RoundTrace] = []
    bench = Bench(proposer=TableDraft(len(PROMPT), answer, 4, wrong={3}), trace=traces.append)
    assert bench.decode(PROMPT, 20) == answer[:20]
    _, first, second, *_ = traces
    wrong = (answer[3] + 1) % VOCAB
    assert first.proposal == (answer[1], answer[2], wrong, answer[4]) and first.parents is None
    assert first.ids == (answer[0], *first.proposal)
    assert first.positions == tuple(range(len(PROMPT), len(PROMPT) + 5))
    assert np.array_equal(np.array(first.mask), np.tri(5, dtype=np.bool_))
    assert (first.path, first.tokens, first.position) == ((1, 2), tuple(answer[1:4]), 1)
    assert first.scores[2].best == answer[3], "the row before the wrong draft gives the token in its place"
    assert (second.path, second.tokens) == ((1, 2, 3, 4), tuple(answer[4:9]))
    for trace in traces:
        expect_scores(trace, PROMPT + answer)


def test_a_tree_shows_parents_depths_and_what_each_row_sees() -> None:
    answer = reference_decode(Language(), PROMPT, 60, GREEDY)
    proposer = TreeTableDraft(len(PROMPT), answer, lambda _: BUSHY, lambda index: index % 2)
    traces: list[RoundTrace] = []
    bench = Bench(target=WIDE, proposer=proposer, trace=traces.append)
    assert bench.decode(PROMPT, 20) == answer[:20]
    parents, _ = BUSHY
    for trace in traces[1:]:
        assert trace.parents == tuple(parents)
        assert trace.ids[1:] == trace.proposal
        assert trace.positions == tuple(trace.start + depth for depth in depths_of(parents))
        for row, parent in enumerate(parents, start=1):
            above = list(trace.mask[parent])
            above[row] = True
            assert trace.mask[row] == tuple(above), "its parent's rows and itself"
        for earlier, later in pairwise((0, *trace.path)):
            assert trace.parents[later - 1] == earlier
        assert tuple(trace.ids[row] for row in trace.path) == trace.tokens[:-1]
        expect_scores(trace, PROMPT + answer)
    assert any(trace.path and trace.path != tuple(range(1, len(trace.path) + 1)) for trace in traces)


@pytest.mark.parametrize("kind", ["plain", "ngram", "model", "tree"])
def test_a_sampled_answer_is_what_its_rounds_emitted(kind: str) -> None:
    traces: list[RoundTrace] = []
    drafts: dict[str, DraftSpec] = {
        "ngram": NgramDraft(k=4, max_n=3, min_n=1),
        "model": ModelDraft(k=3, graph=draft_spec(capacity=120)),
    }
    proposer = SampledTreeDraft(BUSHY, seed=3) if kind == "tree" else None
    bench = Bench(drafts.get(kind), target=WIDE, proposer=proposer, trace=traces.append)
    answer = bench.decode(PROMPT, 30, SAMPLED)
    assert answer_of(traces)[:30] == answer
    assert {trace.seed for trace in traces} == {7}
    for trace in traces:
        expect_scores(trace, bench.session.tokens.tolist())


def test_a_trace_that_raises_leaves_the_tokens_as_they_were() -> None:
    failing = True

    def trace(record: RoundTrace) -> None:
        if failing:
            raise RuntimeError("stop")

    bench = Bench(NgramDraft(k=4, max_n=3, min_n=1), trace=trace)
    bench.session.append(PROMPT)
    bench.session.begin(GREEDY)
    with pytest.raises(RuntimeError, match="stop"):
        bench.session.round()
    assert bench.session.tokens.tolist() == PROMPT and not bench.session.poisoned
    failing = False
    bench.session.rewind(0)
    assert bench.decode(PROMPT, 20) == reference_decode(Language(), PROMPT, 20, GREEDY)


def test_a_bundle_s_session_takes_a_trace_and_without_one_builds_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle, _ = scripted_bundle()
    traces: list[RoundTrace] = []
    with bundle:
        for session in (
            bundle.new_session(trace=traces.append),
            bundle.new_session(False, trace=traces.append),
        ):
            session.append(PROMPT)
            session.begin(GREEDY)
            for _ in range(3):
                session.round()
        assert len(traces) == 6
        monkeypatch.delattr("specruntime.session.trace_round")
        untraced = bundle.new_session()
        untraced.append(PROMPT)
        untraced.begin(GREEDY)
        untraced.round()


def test_a_record_is_json_and_prints_a_line_for_each_row() -> None:
    answer = reference_decode(Language(), PROMPT, 60, GREEDY)
    proposer = TreeTableDraft(len(PROMPT), answer, lambda _: BUSHY, lambda _: 0)
    traces: list[RoundTrace] = []
    Bench(target=WIDE, proposer=proposer, trace=traces.append).decode(PROMPT, 4)
    trace = traces[1]
    assert json.loads(json.dumps(trace.as_dict()))["tokens"] == list(trace.tokens)
    lines = render_round(trace).splitlines()
    assert len(lines) == 2 + 10 + 1
    assert "tokens 1 to" in lines[0] and "greedy" in lines[0] and "verify_10" in lines[0]
    ninth = lines[2 + 9]
    assert ninth.split()[:4] == ["9", "6", str(trace.ids[9]), str(trace.positions[9])]
    assert ninth.endswith("  0 2 6 9")
    assert lines[2 + trace.path[0]].endswith("accepted")
    assert f"accepted rows: {', '.join(map(str, trace.path))}" in lines[-1]


def test_of_a_long_prompt_the_last_rows_are_printed() -> None:
    traces: list[RoundTrace] = []
    spec = target_spec(prefill=32)
    Bench(target=spec, trace=traces.append).decode(PROMPT * 3, 1)
    lines = render_round(traces[0]).splitlines()
    assert lines[2] == "  ... 14 rows before" and lines[3].split()[0] == "14" and len(lines) == 3 + 16 + 1
