"""`specexport tune`: predictions from what was probed, recipes that keep their other lines, plain words when nothing
pays.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from specexport.cli import main
from specexport.errors import RecipeError
from specexport.recipe.schema import load_recipe
from specexport.trees import best_tree_for_times
from specexport.tune.choice import chosen_draft, stated_draft, write_choice, write_draft
from specexport.tune.layer_search import LayerChoice
from specexport.tune.prediction import Prediction, bounded, predict, predict_tree, verify_times
from specexport.tune.probing import Probe, ProbedRound, turns
from specexport.tune.rendering import draw_tuning, render_tuning
from specexport.tune.trials import ADAPTIVE, Trial
from specexport.tune.tuner import Finding, TuneReport
from tests.conftest import RECIPES

BLOCK = """# A pair.
name: pair
target: {source: {random: {architecture: llama, sizes: {vocab_size: 272}, seed: 0}}}  # tiny
capacity: 256
draft:
  kind: eagle3
  # trained on dialogues
  source: ./draft
  k: 6  # as it was
verify_widths: [4, 7]

# what check decodes
check: {prompts: [abc]}
"""
FLOW = BLOCK.replace(
    "draft:\n  kind: eagle3\n  # trained on dialogues\n  source: ./draft\n  k: 6  # as it was\n",
    "draft: {kind: eagle3, source: ./draft, k: 6}\n",
)
RATES = [[0.6, 0.2, 0.1], [0.5, 0.2], [0.4]]


def probed(rates: list[list[float]], *, sizes: tuple[int, ...] = (1, 2, 3), draft_ms: float = 2.0) -> Probe:
    """Rounds of a chain as these rates and times would have made them: plain 20 ms, width 4 22 ms."""
    found = Probe(sizes)
    for size in sizes:
        found.rounds += [ProbedRound(size, size, 1, 4, draft_ms * size, 22.0)] * 3
    found.rounds += [ProbedRound(0, 0, 0, 1, 0.0, 20.0)] * 3
    for depth, ranks in enumerate(rates):
        for rank, rate in enumerate(ranks):
            found.rank_trials[depth, rank], found.rank_hits[depth, rank] = 1000, round(1000 * rate)
    found.host_ms.append(0.0)
    return found


def test_a_chain_is_predicted_by_law_4() -> None:
    found = predict(probed([[0.7]] * 4, sizes=(1, 2, 3, 4), draft_ms=2.0), {1: 20.0, 5: 20.0}, chain=True)
    assert [one.size for one in found] == [0, 1, 2, 3, 4]
    assert found[4].tokens == pytest.approx(2.773, abs=5e-4)  # A = .7, k = 4
    assert found[4].speedup == pytest.approx(1.98, abs=5e-3)  # c = .1
    assert found[0].speedup == 1.0


def test_rounds_that_find_nothing_are_plain_steps() -> None:
    found = probed([[1.0]], sizes=(1,), draft_ms=0.0)
    found.rounds += [ProbedRound(1, 0, 0, 1, 0.0, 20.0)] * 9
    prediction = predict(found, {1: 20.0, 4: 40.0}, chain=True)[1]
    assert prediction.tokens == pytest.approx(1.25)
    assert prediction.ms == pytest.approx(0.25 * 40 + 0.75 * 20)


def test_a_tree_is_predicted_from_what_its_sizes_accepted_and_the_best_shape_from_the_rates() -> None:
    found = probed(RATES, sizes=(3,), draft_ms=2.0)
    assert predict(found, {1: 20.0, 4: 22.0}, chain=False)[1].tokens == pytest.approx(2.0)
    timed = predict_tree(found, {1: 20.0, 4: 22.0, 16: 26.0}, 3)
    assert timed == best_tree_for_times(RATES, {1: 20.0, 4: 22.0, 16: 26.0}, [2.0, 4.0, 6.0])
    assert predict_tree(probed([[0.0]], sizes=(3,)), {1: 20.0, 4: 22.0}, 3) is None


def test_rates_of_few_rounds_are_held_to_their_sum() -> None:
    assert bounded([[0.75, 0.75], [0.2]]) == [[0.5, 0.5], [0.2]]


def test_widths_that_no_round_used_come_from_steps_in_the_time_of_these_rounds() -> None:
    found = verify_times(probed(RATES), {1: 10.0, 4: 10.5, 9: 14.0}, [1, 4, 9])
    assert found == {1: 20.0, 4: 22.0, 9: 28.0}
    assert verify_times(probed(RATES), {1: 10.0, 9: 9.0}, [1, 4, 9])[9] == 22.0, "wider never takes less"


def test_the_largest_size_is_asked_for_every_other_round() -> None:
    assert turns([1, 2, 5]) == (0, 5, 1, 5, 2, 5)


@pytest.mark.parametrize("text", [BLOCK, FLOW])
@pytest.mark.parametrize(
    "change",
    [
        {"k": 3},
        {"k": None, "tree": {"nodes": 4, "depth": 2, "acceptance": [[0.5, 0.2], [0.4]]}},
        {"adaptive": True},
    ],
)
def test_a_recipe_keeps_its_other_lines(tmp_path: Path, text: str, change: dict[str, Any]) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text(text)
    draft = {key: value for key, value in {**stated_draft(path), **change}.items() if value is not None}
    write_draft(path, draft)
    assert stated_draft(path) == draft
    assert load_recipe(path).draft.kind == "eagle3"
    after = path.read_text()
    for line in ("# A pair.", "seed: 0}}}  # tiny", "# what check decodes", "check: {prompts: [abc]}"):
        assert line in after
    if text == BLOCK:
        assert "  # trained on dialogues\n  source: ./draft\n" in after
        if "tree" not in change:
            assert f"  k: {draft['k']}  # as it was\n" in after
    assert ("verify_widths" in after) == ("adaptive" in change), "it goes where it no longer fits"
    assert [p.name for p in tmp_path.iterdir()] == ["pair.yaml"]


def test_a_draft_that_does_not_fit_leaves_the_recipe_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text(BLOCK)
    with pytest.raises(RecipeError, match="left as it was"):
        write_draft(path, {"kind": "eagle3", "source": "./draft", "k": 500})
    assert path.read_text() == BLOCK
    assert [p.name for p in tmp_path.iterdir()] == ["pair.yaml"]


def finding(*speedups: float, chain: bool = True, adaptive: float | None = None) -> Finding:
    """Sizes 1, 2, ... with these measured speed-ups."""
    rows = list(enumerate((1.0, *speedups)))
    trials = [Trial(size, 40.0 * s, 1.5, s, s) for size, s in rows]
    if adaptive is not None:
        trials.append(Trial(ADAPTIVE, 40.0 * adaptive, 1.5, adaptive, 0.98))
    return Finding(
        path=Path("x.bundle"),
        name="pair",
        kind="eagle3",
        chain=chain,
        acceptance=RATES,
        verify_ms={1: 20.0, 4: 22.0},
        draft_ms={1: 2.0, 2: 4.0},
        predictions=tuple(Prediction(size, size + 1, 1.0, 20.0, s) for size, s in rows),
        tree=None if chain else best_tree_for_times(RATES, {1: 20.0, 16: 26.0}, [2.0, 4.0, 6.0]),
        trials=tuple(trials),
    )


def test_the_best_of_several_bundles_is_named_and_written() -> None:
    slow, fast = replace(finding(0.9, 0.8), name="slow"), finding(1.2, 1.5)
    report = TuneReport({"processor": "any", "threads": 2}, (slow, fast))
    text = render_tuning(report)
    assert "Best: pair (kind eagle3), 2 drafted: 1.50x plain decoding, predicted 1.50x" in text
    assert chosen_draft(report, {"kind": "eagle3", "source": "./d", "k": 6})["k"] == 2
    assert json.loads(json.dumps(report.as_dict()))["best"]["name"] == "pair"


def test_a_tree_is_written_by_its_rates() -> None:
    report = TuneReport({}, (finding(1.3, chain=False),))
    draft = chosen_draft(report, {"kind": "eagle3", "source": "./d", "k": 6})
    assert draft.keys() == {"kind", "source", "tree"}
    assert draft["tree"]["acceptance"] == RATES and draft["tree"]["depth"] <= 3


def test_it_says_plainly_that_speculation_does_not_pay() -> None:
    report = TuneReport({}, (finding(0.7, 1.01, adaptive=0.99),))
    assert not report.pays
    assert "Speculation does not pay on these prompts and this machine" in render_tuning(report)
    assert chosen_draft(report, {"kind": "eagle3", "source": "./d", "k": 6}) == {"kind": "none"}


def test_it_names_the_best_that_drafted_where_nothing_pays() -> None:
    text = render_tuning(TuneReport({}, (finding(0.7, 0.9, adaptive=0.95),)))
    assert "the best, pair with dynamic length, reaches 0.95x plain decoding" in text
    assert "nothing was ever proposed" in render_tuning(TuneReport({}, (finding(),)))


@pytest.mark.parametrize(("promised", "written"), [(1.3, True), (1.01, False)])
def test_the_verdict_says_what_is_written_where_only_a_prediction_pays(
    promised: float, written: bool
) -> None:
    layers = LayerChoice((0, 2, 5), 3, 0.8, promised)
    report = TuneReport({}, (replace(finding(0.5), kind="layer_skip", layers=layers),))
    draft = chosen_draft(report, {"kind": "layer_skip", "exit_after": 3, "k": 2})
    verdict = render_tuning(report).splitlines()[-1]
    assert "Speculation does not pay on these prompts and this machine" in verdict
    assert (draft == {"kind": "layer_skip", "k": 3, "layers": [0, 2, 5]}) is written
    assert (
        "The layers [0, 2, 5] with k 3 are predicted to reach 1.30x: --write puts it" in verdict
    ) is written
    assert (draft == {"kind": "none"}) is ("draft: {kind: none}" in verdict) is not written


@pytest.mark.parametrize("speedup", [1.3, 0.9])
def test_a_computed_tree_is_said_to_be_written_where_it_is(speedup: float) -> None:
    report = TuneReport({}, (finding(speedup, chain=False),))
    draft = chosen_draft(report, {"kind": "eagle3", "source": "./d", "k": 6})
    assert ("tree" in draft) is ("--write puts it" in render_tuning(report)) is (speedup > 1)


def test_a_recipe_of_another_target_is_left_as_it_was(tmp_path: Path, tiny_bundle: Path) -> None:
    recipe, prompts = tmp_path / "pair.yaml", tmp_path / "prompts.jsonl"
    other = BLOCK.replace("seed: 0", "seed: 7")
    recipe.write_text(other)
    best = replace(finding(1.2, 1.5), path=bundle_of(tmp_path, "{kind: eagle3, source: /other, k: 5}"))
    with pytest.raises(
        RecipeError, match=r"--write: found .*pair\.yaml with the target .*seed=7.* expected .*seed=0"
    ):
        write_choice(TuneReport({}, (best,)), recipe)
    prompts.write_text('{"id": "a", "prompt": "abc abc abc"}\n')
    refused = run("tune", tiny_bundle, "--prompts", prompts, "--write", recipe)
    assert refused.exit_code == 1 and "--write: found" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1 and recipe.read_text() == other


def bundle_of(tmp_path: Path, draft: str) -> Path:
    """A directory with the recipe that a bundle would have."""
    (tmp_path / "built").mkdir()
    text = FLOW.replace("draft: {kind: eagle3, source: ./draft, k: 6}", f"draft: {draft}")
    (tmp_path / "built" / "recipe.yaml").write_text(text.replace("verify_widths: [4, 7]\n", ""))
    return tmp_path / "built"


def test_a_recipe_of_another_draft_of_the_kind_gets_the_one_that_was_tuned(tmp_path: Path) -> None:
    recipe = tmp_path / "pair.yaml"
    recipe.write_text(BLOCK)
    best = replace(finding(1.2, 1.5), path=bundle_of(tmp_path, "{kind: eagle3, source: /other, k: 5}"))
    draft = write_choice(TuneReport({}, (best,)), recipe)
    assert (draft["source"], draft["k"]) == ("/other", 2)
    assert stated_draft(recipe) == draft


def test_the_length_that_was_best_is_written_with_what_it_was_measured_in(tmp_path: Path) -> None:
    recipe = tmp_path / "pair.yaml"
    recipe.write_text(BLOCK)
    source = tmp_path / "draft"
    built = bundle_of(tmp_path, f"{{kind: eagle3, source: {source}, k: 5, adaptive: true, lookup: {{k: 8}}}}")
    best = replace(finding(1.2, 1.1, adaptive=1.6), path=built)
    draft = write_choice(TuneReport({}, (best,)), recipe)
    assert (draft["k"], draft["adaptive"], draft["lookup"]["k"]) == (5, True, 8)
    assert draft["source"] == "./draft"


def test_a_shape_that_promises_more_than_the_computed_tree_stays(tmp_path: Path) -> None:
    recipe = tmp_path / "pair.yaml"
    recipe.write_text(BLOCK)
    shape = "dynamic_tree: {nodes: 3, depth: 2, branch: 2}"
    built = bundle_of(tmp_path, f"{{kind: eagle3, source: {tmp_path / 'draft'}, {shape}}}")
    found = replace(finding(1.3, chain=False), path=built)
    better = replace(found, predictions=tuple(replace(one, tokens=9.0) for one in found.predictions))
    draft = write_choice(TuneReport({}, (better,)), recipe)
    assert draft.keys() == {"kind", "source", "dynamic_tree"}
    assert draft["dynamic_tree"]["nodes"] == 3


def test_answers_too_short_to_draft_in_are_no_verdict(tiny_bundle: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "prompt": "abc"}\n')
    result = run("tune", tiny_bundle, "--prompts", prompts, "--max-new-tokens", "2")
    assert result.exit_code == 1
    assert "too short to tell anything" in result.stderr and "raise --max-new-tokens" in result.stderr


def test_the_plot_shows_every_bundle(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    machine = {"processor": "any", "threads": 2}
    draw_tuning(TuneReport(machine, (finding(1.2, 1.5, adaptive=1.4),)), tmp_path / "speed.svg")
    svg = (tmp_path / "speed.svg").read_text()
    assert svg.startswith("<?xml") and len(svg) > 5000


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_a_bundle_is_probed_predicted_and_measured(tiny_bundle: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "prompt": "abc abc abc"}\n{"id": "b", "prompt": "xyz"}\n')
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text((RECIPES / "tiny-random.yaml").read_text())
    result = run(
        "tune", tiny_bundle, "--prompts", prompts, "--max-new-tokens", "64", "--json", "--write", recipe
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (bundle,) = found["bundles"]
    assert [one["size"] for one in bundle["predicted"]] == [0, 1, 2, 3, 4]
    assert bundle["measured"][0]["size"] == 0 and len(bundle["measured"]) == 3
    assert all(0 <= rate <= 1 for ranks in bundle["acceptance"] for rate in ranks)
    by_law = {one["size"]: one for one in bundle["predicted"]}
    for trial in bundle["measured"][1:]:
        assert trial["acceptance_length"] == pytest.approx(by_law[trial["size"]]["tokens"], abs=0.5)
    written = stated_draft(recipe)
    assert written["kind"] == ("model" if found["pays"] else "none")


def test_what_never_drafts_or_is_no_recipe_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    prompts, recipe = tmp_path / "prompts.jsonl", tmp_path / "bad.yaml"
    prompts.write_text('{"id": "a", "prompt": "abc"}\n')
    recipe.write_text("name: 3\n")
    assert run("tune", tiny_bundle, "--prompts", prompts, "--write", recipe).exit_code == 1
    assert run("tune", tiny_bundle, "--prompts", prompts, "--write", tmp_path / "none").exit_code == 2
