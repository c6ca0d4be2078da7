"""docs/tutorial.md does what it says: its script, its recipes and its commands, in its order."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from specexport.cli import main
from specexport.recipe.schema import Recipe, load_recipe
from tests.conftest import REPOSITORY

TEXT = (REPOSITORY / "docs" / "tutorial.md").read_text()
RECIPES = {
    match[1]: match[0] for match in re.finditer(r"(?<=```yaml\n)name: ([\w-]+)\n.*?(?=```)", TEXT, re.DOTALL)
}
COMMANDS = [shlex.split(line)[1:] for line in re.findall(r"^    (specexport .*)$", TEXT, re.MULTILINE)]
FIRST = "my-model-ngram"


def block(language: str, number: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)[number]  # type: ignore[no-any-return]


def written(directory: Path) -> dict[str, Recipe]:
    """The recipes of the tutorial, saved as it says and read."""
    for name, text in RECIPES.items():
        (directory / f"{name}.yaml").write_text(text)
    return {name: load_recipe(directory / f"{name}.yaml") for name in RECIPES}


def test_its_recipes_are_valid(tmp_path: Path) -> None:
    read = written(tmp_path)
    assert {name: recipe.draft.kind for name, recipe in read.items()} == {
        FIRST: "ngram",
        "my-model-eagle3": "eagle3",
    }


def test_the_keys_it_adds_are_valid(tmp_path: Path) -> None:
    (path := tmp_path / "more.yaml").write_text(RECIPES[FIRST] + block("yaml", 1))
    assert load_recipe(path).check.chat


def test_it_builds_checks_trains_and_tunes_in_this_order() -> None:
    assert [command[0] for command in COMMANDS] == [
        "build", "inspect", "check", "generate", "bench", "train", "build", "check", "tune",
    ]  # fmt: skip


def test_its_script_writes_a_checkpoint_that_its_first_commands_take(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block("python"), "tutorial.md", "exec"), {})
    written(tmp_path)
    for command in COMMANDS[:4]:
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
        if command[0] == "check":
            assert "2 of 2 answers" in result.output
