"""`check` finds every token that drafts change, and excuses only what the width of a window explains."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from specruntime.bundle import LoadedBundle
from specruntime.check import (
    CheckReport,
    Comparison,
    Divergence,
    TracedComparison,
    check_bundle,
    check_steps,
    first_difference,
    render_check,
    render_traces,
    trace_prompt,
)
from specruntime.drafts import DraftSpec, NgramDraft, NoneDraft
from specruntime.engines.protocol import Window
from specruntime.errors import InvalidArgument
from specruntime.manifest.schema import CheckPrompt, CheckSpec, GraphSpec
from tests.runtime.scripted_engine import Language, ScriptedContext, scripted_manifest, target_spec
from tests.runtime.stacked_batch import StackedBatch

NGRAM = NgramDraft(k=4, max_n=3, min_n=1)
PROMPTS = (CheckPrompt(id="a", ids=(3, 1, 4, 1, 5)), CheckPrompt(id="b", ids=(9, 9, 9)))
Disturb = Callable[[Window, NDArray[np.float32]], None]


def exact(window: Window, logits: NDArray[np.float32]) -> None: ...


def rounded(window: Window, logits: NDArray[np.float32]) -> None:
    """What a kernel of lower precision does: another rounding for another width."""
    noise = np.random.default_rng(window.profile.width).normal(0, 0.4, (1, logits.shape[-1]))
    logits += noise.astype(np.float32)


def shifted_row(window: Window, logits: NDArray[np.float32]) -> None:
    """A bug: judged rows past the first give a token that no width explains."""
    if window.profile.rows > 1:
        logits[1:] = np.roll(logits[1:], 1, axis=-1)


class DisturbedContext(ScriptedContext):
    def __init__(self, spec: GraphSpec, disturb: Disturb) -> None:
        super().__init__(spec, Language(habit=12.0))
        self._disturb = disturb

    def run(self, window: Window) -> None:
        super().run(window)
        logits = self._logits[window.profile.name][0][:, : self.spec.vocab_size]
        self._disturb(window, logits)
        for row in range(min(window.profile.rows, int(window.query_lengths[0]))):  # type: ignore[index]
            window.top_ids[0, row] = np.argmax(logits[row])


class DisturbedEngine:
    def __init__(self, disturb: Disturb) -> None:
        self.spec = target_spec(verify=(3, 5), capacity=96)
        self._disturb = disturb

    def new_context(self) -> DisturbedContext:
        return DisturbedContext(self.spec, self._disturb)

    def new_batch(self, rows: int) -> StackedBatch:
        return StackedBatch(self.spec, rows, self.new_context)

    def close(self) -> None: ...


def opened(
    disturb: Disturb = exact,
    *,
    precision: Literal["fp32", "fp16"] = "fp32",
    draft: DraftSpec = NGRAM,
    prompts: tuple[CheckPrompt, ...] = PROMPTS,
    tokens: int = 48,
) -> LoadedBundle:
    engine = DisturbedEngine(disturb)
    manifest = scripted_manifest(engine.spec, draft).model_copy(
        update={"precision": precision, "check": CheckSpec(prompts=prompts, max_new_tokens=tokens)}
    )
    return LoadedBundle(manifest, Path("unused"), engine, None)


def checked(bundle: LoadedBundle, max_new_tokens: int | None = None) -> CheckReport:
    with bundle:
        return check_bundle(bundle, max_new_tokens=max_new_tokens)


def test_equal_answers_pass_greedy_and_sampled() -> None:
    report = checked(opened())
    assert report.passed
    assert [(c.prompt, c.law, c.against) for c in report.comparisons] == [
        (prompt, law, "plain") for prompt in "ab" for law in ("greedy", "sampled")
    ]
    assert {c.tokens for c in report.comparisons} == {48}
    assert max(c.acceptance_length or 0 for c in report.comparisons) > 1, (
        "nothing was accepted: nothing was checked"
    )


def test_a_row_that_gives_another_token_fails_with_its_place_and_gap() -> None:
    report = checked(opened(shifted_row))
    failed = [c for c in report.comparisons if not c.passed]
    assert failed and not report.passed
    divergence = failed[0].divergence
    assert divergence is not None and not divergence.excused
    assert divergence.expected != divergence.found
    assert divergence.logit_gap is not None and divergence.logit_gap >= 0
    assert f"at token {divergence.position}: expected {divergence.expected}" in render_check(report)


def test_in_fp32_rounding_is_no_excuse() -> None:
    report = checked(opened(rounded))
    assert any(c.divergence is not None for c in report.comparisons), "the disturbance changed nothing"
    assert not report.passed


def test_below_fp32_rounding_of_a_width_is_excused_and_reported() -> None:
    report = checked(opened(rounded, precision="fp16"))
    assert {c.against for c in report.comparisons} == {"plain", "plain at width 5"}
    assert all(c.divergence is None for c in report.comparisons if c.against == "plain at width 5")
    parted = [c.divergence for c in report.comparisons if c.divergence is not None]
    assert parted, "the disturbance changed nothing"
    assert report.passed and all(divergence.excused for divergence in parted)
    for divergence in parted:
        assert divergence.logit_gap is not None and divergence.width_difference is not None
        assert divergence.logit_gap < divergence.width_difference
    assert "(excused)" in render_check(report)


def test_below_fp32_a_wrong_row_is_not_excused() -> None:
    report = checked(opened(shifted_row, precision="fp16"))
    assert not report.passed
    assert any(not c.passed and c.against == "plain at width 5" for c in report.comparisons)


def test_a_bundle_that_does_not_draft_is_compared_with_itself() -> None:
    report = checked(opened(draft=NoneDraft()))
    assert report.passed
    assert {c.acceptance_length for c in report.comparisons} == {None}


def test_a_given_number_of_tokens_replaces_the_bundles_own() -> None:
    assert {c.tokens for c in checked(opened(), max_new_tokens=7).comparisons} == {7}


def test_progress_tells_each_step() -> None:
    steps: list[str] = []
    with opened() as bundle:
        check_bundle(bundle, max_new_tokens=4, advance=steps.append)
        assert len(steps) == check_steps(bundle)
    assert steps == ["a, greedy", "a, sampled", "b, greedy", "b, sampled"]


def test_a_bundle_without_prompts_or_tokenizer_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"no check prompts: add `check\.prompts`"):
        checked(opened(prompts=()))
    with pytest.raises(InvalidArgument, match="prompt t is text, this bundle has no tokenizer"):
        checked(opened(prompts=(CheckPrompt(id="t", text="hello"),)))


def test_an_answer_that_has_ended_is_called_its_end() -> None:
    cases = ((None, 5, "expected its end, found 5"), (5, None, "expected 5, found its end"))
    for expected, found, said in cases:
        comparison = Comparison("a", "greedy", "plain", 9, None, Divergence(7, expected, found, None))
        text = render_check(CheckReport("x", (comparison,)))
        assert f"at token 7: {said}, logit gap none" in text


@pytest.mark.parametrize(
    ("expected", "found", "place"),
    [((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1,), (1, 2), 1), ((1, 2), (), 0), ((), (), None)],
)
def test_the_first_difference_counts_an_early_end(
    expected: tuple[int, ...], found: tuple[int, ...], place: int | None
) -> None:
    assert first_difference(expected, found) == place


def test_a_trace_shows_the_round_in_which_the_answers_part_and_the_plain_ones() -> None:
    report = checked(opened(shifted_row))
    with opened(shifted_row) as bundle:
        for prompt in "ab":
            for comparison, traced in zip(
                [c for c in report.comparisons if c.prompt == prompt],
                trace_prompt(bundle, prompt),
                strict=True,
            ):
                assert (traced.prompt, traced.law, traced.against) == (prompt, comparison.law, "plain")
                divergence = comparison.divergence
                if divergence is None:
                    assert traced.position is None
                    continue
                assert traced.position == divergence.position
                assert (traced.expected, traced.found) == (divergence.expected, divergence.found)
                expect_parting(traced)


def expect_parting(traced: TracedComparison) -> None:
    """The rounds are of that token: equal before it, another there, and the broken row is past the first."""
    position, wrong = traced.position, traced.speculative
    assert position is not None
    place = position - wrong.position
    assert 0 <= place < len(wrong.tokens) and wrong.tokens[place] == traced.found
    assert place >= 1, "a judged row past the first is the one that gives another token"
    plain = [token for each in traced.plain for token in each.tokens]
    assert plain == [*wrong.tokens[:place], traced.expected]
    row = (0, *wrong.path)[place]
    assert wrong.positions[row] == traced.plain[-1].positions[-1], "the same place in the text"
    if traced.law == "greedy":
        scores = {each.row: each for each in wrong.scores}
        assert scores[row].best == traced.found and traced.plain[-1].scores[-1].best == traced.expected


def test_the_broken_row_is_on_the_screen() -> None:
    with opened(shifted_row) as bundle:
        parted = [each for each in trace_prompt(bundle, "a") if each.position is not None]
    assert parted, "the disturbance changed nothing"
    text = render_traces(parted)
    assert f"they part at token {parted[0].position}, expected {parted[0].expected}" in text
    assert "window verify_5 at cache row" in text and "plain:" in text and "window step at cache row" in text


def test_answers_that_do_not_part_show_their_last_round() -> None:
    with opened() as bundle:
        traces = trace_prompt(bundle, "b", max_new_tokens=20)
    assert [trace.law for trace in traces] == ["greedy", "sampled"]
    for trace in traces:
        assert trace.position is None
        last = trace.speculative.position + len(trace.speculative.tokens)
        assert last == 20 and [t for each in trace.plain for t in each.tokens] == list(
            trace.speculative.tokens
        )
    assert "the answers do not differ; the last round" in render_traces(traces)


def test_below_fp32_the_answers_are_traced_at_one_width_too() -> None:
    with opened(shifted_row, precision="fp16") as bundle:
        traces = trace_prompt(bundle, "a")
    assert [(trace.law, trace.against) for trace in traces] == [
        ("greedy", "plain at width 5"),
        ("greedy", "plain"),
        ("sampled", "plain at width 5"),
    ]
    wide = traces[0]
    assert wide.position is not None and {len(each.ids) for each in wide.plain} == {5}


def test_a_prompt_that_the_bundle_does_not_have_is_named() -> None:
    with (
        opened() as bundle,
        pytest.raises(InvalidArgument, match="no check prompt 'c', this bundle has: a, b"),
    ):
        trace_prompt(bundle, "c")
