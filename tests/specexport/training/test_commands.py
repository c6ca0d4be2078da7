"""`train` and `write-prompts` as a user types them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from specexport.cli import main
from specexport.draft_kinds import MedusaRecipe
from specexport.recipe.schema import load_recipe
from specexport.training.prompts_file import append_prompts, read_prompts
from tests.specexport.training.conftest import RECIPE


@pytest.fixture
def recipe_file(cache: Path, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(RECIPE)
    return path


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_train_writes_a_draft_and_says_how_good_it_is(recipe_file: Path, prompts: Path) -> None:
    out = prompts.parent / "draft"
    options = ("--epochs", "1", "--answer-tokens", "12", "--vocabulary", "64", "--depth", "2", "--json")
    done = run("train", recipe_file, "--kind", "medusa", "--prompts", prompts, "--out", out, *options)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["draft"] == str(out)
    assert told["accepted_length"] == pytest.approx(1 + sum(told["acceptance"]))
    assert {path.name for path in out.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    assert (prompts.parent / "draft-work" / "answers.jsonl").is_file()


def test_layers_go_with_kind_model_only(recipe_file: Path, prompts: Path) -> None:
    done = run(
        "train", recipe_file, "--kind", "eagle3", "--prompts", prompts, "--out", "x", "--layers", "0,1"
    )
    assert done.exit_code == 2
    assert "--layers: found with --kind eagle3, expected with --kind model only" in done.stderr


def test_layers_do_not_go_with_a_draft_that_has_its_own(recipe_file: Path, prompts: Path) -> None:
    options = ("--out", "x", "--layers", "0,1", "--start", "y")
    done = run("train", recipe_file, "--kind", "model", "--prompts", prompts, *options)
    assert done.exit_code == 2
    assert "--layers: found with --start, whose draft has its layers" in done.stderr


def test_write_prompts_names_the_option_and_begins_an_empty_file(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specexport.training import questions

    monkeypatch.setattr(questions, "write_questions", lambda *arguments, **options: iter(["Why?"]))
    out = tmp_path / "out.jsonl"
    out.touch()
    done = run("write-prompts", recipe_file, "--count", "1", "-o", out)
    assert done.exit_code == 0, done.output
    assert read_prompts(out) == ["Why?"]
    done = run("write-prompts", recipe_file, "--count", "2", "-o", out, "--exclude", tmp_path / "none")
    assert done.exit_code == 1
    assert "--exclude: " in done.stderr
    done = run("write-prompts", recipe_file, "--count", "2", "-o", tmp_path / "none" / "out.jsonl")
    assert done.exit_code == 2
    assert "is not a directory; create it first" in done.stderr


def test_what_is_no_list_of_layers_is_a_usage_error(recipe_file: Path, prompts: Path) -> None:
    done = run("train", recipe_file, "--kind", "model", "--prompts", prompts, "--out", "x", "--layers", "a")
    assert done.exit_code == 2
    assert "found 'a', expected layer numbers with commas" in done.stderr


def test_prompts_that_are_not_there_are_refused_in_one_line(recipe_file: Path, tmp_path: Path) -> None:
    done = run(
        "train",
        recipe_file,
        "--kind",
        "medusa",
        "--prompts",
        tmp_path / "none.jsonl",
        "--out",
        tmp_path / "x",
    )
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
    assert "write prompts with `specexport write-prompts`" in done.stderr


def test_write_prompts_leaves_a_file_that_holds_enough_as_it_is(recipe_file: Path, prompts: Path) -> None:
    before = prompts.read_bytes()
    done = run("write-prompts", recipe_file, "--count", "80", "-o", prompts)
    assert done.exit_code == 0, done.output
    assert prompts.read_bytes() == before


def test_write_prompts_keeps_out_what_is_excluded(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specexport.training import questions

    def written(*arguments: object, **options: object) -> object:
        excluded = options["excluded"]
        assert "Why is the sky blue?" in excluded  # type: ignore[operator]
        return iter(["Why is the sea salty?"])

    monkeypatch.setattr(questions, "write_questions", written)
    append_prompts(tmp_path / "bench.jsonl", ["Why is the sky blue?"])
    out = tmp_path / "out.jsonl"
    done = run("write-prompts", recipe_file, "--count", "1", "-o", out, "--exclude", tmp_path / "bench.jsonl")
    assert done.exit_code == 0, done.output
    assert read_prompts(out) == ["Why is the sea salty?"]


def test_train_says_the_lines_to_paste_and_a_recipe_takes_them(recipe_file: Path, prompts: Path) -> None:
    out = prompts.parent / "drafts" / "mine"
    options = ("--epochs", "1", "--answer-tokens", "12", "--vocabulary", "64", "--depth", "2")
    done = run("train", recipe_file, "--kind", "medusa", "--prompts", prompts, "--out", out, *options)
    assert done.exit_code == 0, done.output
    assert "80 of 80 answers, " in done.stderr
    assert " tokens/s, about 0 s left" in done.stderr
    _, _, pasted = done.stdout.partition("\ndraft:")
    recipe = recipe_file.read_text().replace("draft: {kind: none}", "draft:" + pasted)
    (recipe_file.parent / "mine.yaml").write_text(recipe)
    draft = load_recipe(recipe_file.parent / "mine.yaml").draft
    assert isinstance(draft, MedusaRecipe)
    assert (draft.source, draft.k) == (str(out), 2)


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("model", ("llama", "mistral"), "found a target of type mistral, expected llama"),
        (
            "eagle3",
            ("num_hidden_layers: 6", "num_hidden_layers: 3"),
            "found a target of 3 layers, expected at least 6",
        ),
        (
            "model",
            ("num_hidden_layers: 6", "num_hidden_layers: 2"),
            "found a target of 2 layers, expected at least 3",
        ),
    ],
)
def test_what_a_config_rules_out_is_refused_before_the_weights_are_read(
    kind: str,
    change: tuple[str, str],
    words: str,
    recipe_file: Path,
    prompts: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from specexport.training import pipeline as training

    monkeypatch.setattr(training, "load_checkpoint", None)
    recipe_file.write_text(RECIPE.replace(*change))
    done = run("train", recipe_file, "--kind", kind, "--prompts", prompts, "--out", prompts.parent / "x")
    assert done.exit_code == 1, done.output
    assert words in done.stderr
    assert "loading" not in done.stderr


def test_write_prompts_refuses_a_target_without_a_chat_template_before_its_weights_are_read(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specexport.checkpoints.loading.load_checkpoint", None)
    monkeypatch.setattr("specexport.checkpoints.random_model.CHAT_TEMPLATE", None)
    done = run("write-prompts", recipe_file, "--count", "1", "-o", tmp_path / "out.jsonl")
    assert done.exit_code == 1, done.output
    assert "found a target without a chat template" in done.stderr
    assert "loading" not in done.stderr
    assert not (tmp_path / "out.jsonl").exists()
