"""A recipe is a YAML file: another file, or one that cannot be read, is refused with its place."""

import os
from pathlib import Path

import pytest

from specexport.errors import RecipeError
from specexport.recipe.schema import load_recipe
from tests.specexport.recipe.documents import MINIMAL, write


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "found nothing, expected `key: value` lines"),
        ("- a\n- b\n", "found a list, expected `key: value` lines"),
        ("name: [", ":1:8: not valid YAML"),
        ("name: a\nname: b\n", ":2:1: not valid YAML: the key 'name' is written twice"),
        ("name: !!python/object:os.system x\n", "not valid YAML: could not determine a constructor"),
        ("draft: {? [a, b] : c}\n", ":1:11: not valid YAML: a key must be a word"),
        ("? 2020-01-01\n: [\n", "not valid YAML"),
        (
            "a: &x [1]\nb: *x\n",
            ":2:4: not valid YAML: an alias (*name) is not allowed in a recipe; write the value out",
        ),
        ("a: &x {b: 1}\nc: {<<: *x}\n", ":2:9: not valid YAML: an alias"),
        ("a: &x [*x]\n", "not valid YAML: an alias"),
        ("name: " + "[" * 5000, "nested more than 32 levels deep"),
        ("name: " + "{a: " * 5000, "nested more than 32 levels deep"),
        ("name: " + "- " * 5000, "not valid YAML"),
        ("name: a\nx:\n  " + "- " * 5000, "nested more than 32 levels deep"),
        (
            "capacity: " + "9" * 5000,
            ":1:11: not valid YAML: 9999999999999999999999999999999999999... is not a valid int",
        ),
        ("capacity: 0x" + "f" * 5000, "is a number of more than 64 bits"),
        ("capacity: " + "1:" * 5000 + "1", "is a number of more than 64 bits"),
        ("capacity: !!int x", "not valid YAML: x is not a valid int"),
        ("capacity: !!bool x", "not valid YAML: x is not a valid bool"),
        (
            "name: 2020-13-45",
            ":1:7: not valid YAML: 2020-13-45 is not a valid timestamp (month must be in 1..12)",
        ),
        ('name: "\\ud800"', ":1:7: not valid YAML: this text holds half a character"),
        ('"\\ud800": a', ":1:1: not valid YAML: a key must be a word"),
        ("name: \0", "not valid YAML"),
    ],
)
def test_what_is_not_a_yaml_mapping_is_refused_with_its_place(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, text))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_recipe_names_the_nearest_file(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL)
    with pytest.raises(RecipeError, match=r"no such recipe file; did you mean 'recipe\.yaml'\?"):
        load_recipe(tmp_path / "recipes.yaml")


def test_aliases_that_expand_without_end_are_refused_at_once(tmp_path: Path) -> None:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(RecipeError, match=r":2:10: not valid YAML: an alias"):
        load_recipe(write(tmp_path, "\n".join(["a0: &a0 x", *levels])))


def test_a_recipe_is_a_regular_file_of_bounded_size(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    with pytest.raises(RecipeError, match="cannot be read: not a regular file; give the path of a recipe"):
        load_recipe(tmp_path / "fifo.yaml")
    with pytest.raises(RecipeError, match="larger than 1 MB, so it is not a recipe"):
        load_recipe(write(tmp_path, "# " + "x" * (1 << 20)))
    for name, reason in (("a\0b", "null byte"), ("x" * 300, "File name too long")):
        with pytest.raises(RecipeError, match=f"cannot be read: .*{reason}"):
            load_recipe(tmp_path / name)


def test_a_recipe_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="cannot be read: not UTF-8 text"):
        load_recipe(tmp_path / "recipe.yaml")
    with pytest.raises(RecipeError, match="cannot be read: Is a directory"):
        load_recipe(tmp_path)
