"""`LLM(model=..., speculative_config=...)` on a build host: found by entry point, built once, loaded."""

import os
from pathlib import Path
from typing import Any

import pytest

from specexport.draft_kinds import ModelRecipe, NgramRecipe, NoneRecipe
from specexport.errors import RecipeError
from specexport.llm_builder import address_of, build_for_llm, recipe_for
from specruntime import LLM, InvalidArgument, SamplingParams
from specruntime.bundle import load_manifest


@pytest.mark.slow
def test_a_checkpoint_is_built_once_and_answers(
    saved: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3}
    with LLM(str(saved), speculative_config=config, max_model_len=128) as llm:
        draft = llm.bundle.manifest.draft
        assert draft.kind == "ngram" and draft.k == 3
        assert llm.bundle.manifest.target.capacity == 128
        (first,) = llm.generate("abcabc", SamplingParams(max_tokens=8, ignore_eos=True))
    (bundle,) = (cache / "bundles").iterdir()
    written = (bundle / "manifest.json").stat().st_mtime_ns

    def must_not_export(*_: object) -> None:
        raise AssertionError("the bundle was built twice")

    monkeypatch.setattr("specexport.graph.stages.export_graphs", must_not_export)
    with LLM(str(saved), speculative_config=config, max_model_len=128) as llm:
        assert (
            llm.generate("abcabc", SamplingParams(max_tokens=8, ignore_eos=True))[0].outputs == first.outputs
        )
    assert (bundle / "manifest.json").stat().st_mtime_ns == written


@pytest.mark.slow
def test_a_cache_limit_never_takes_the_bundle_that_was_just_built(
    saved: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECEXPORT_CACHE_LIMIT", "1KB")
    place = build_for_llm(model=str(saved), max_model_len=128)
    assert place.parent == cache / "bundles"
    load_manifest(place)
    os.utime(place, (1, 1))
    assert build_for_llm(model=str(saved), max_model_len=128) == place, "nothing changed"
    assert place.stat().st_mtime > 1, "a use is noted"
    load_manifest(place)
    place.rename(place.with_name("away"))
    load_manifest(build_for_llm(model=str(saved), max_model_len=128))


def test_options_become_a_recipe() -> None:
    plain = recipe_for("./some/model")
    assert isinstance(plain.draft, NoneRecipe) and plain.name == "model" and plain.precision == "fp32"
    lookup = recipe_for(
        "org/name@abc",
        {"model": "[ngram]", "num_speculative_tokens": 6, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
        "float16",
        512,
    )
    assert isinstance(lookup.draft, NgramRecipe)
    assert (lookup.draft.k, lookup.draft.max_n, lookup.draft.min_n) == (6, 4, 2)
    assert (lookup.target.source, lookup.capacity) == ("hub://org/name@abc", 512)
    drafted = recipe_for("org/name", {"model": "org/small", "num_speculative_tokens": 5})
    assert isinstance(drafted.draft, ModelRecipe)
    assert (drafted.draft.source, drafted.draft.k) == ("hub://org/small@main", 5)


def test_addresses_are_what_users_call_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert address_of("here") == "./here"
    assert address_of("/abs") == "/abs"
    assert address_of("pypi://a==1/b.gguf") == "pypi://a==1/b.gguf"
    assert address_of("org/name") == "hub://org/name@main"
    for neither in ("nosuch.bundle", "no/such/thing"):
        with pytest.raises(InvalidArgument, match="is neither a bundle nor a checkpoint here"):
            address_of(neither)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"num_speculative_token": 5}, "did you mean 'num_speculative_tokens'"),
        ({"method": "eagel3", "model": "x/y"}, "did you mean 'eagle3'"),
        ({"method": "draft_model"}, "expected the draft's checkpoint as 'model'"),
        ({"method": "ngram", "model": "x/y"}, "which takes none"),
        ({"model": "x/y", "prompt_lookup_max": 3}, "is for the method 'ngram'"),
    ],
)
def test_what_no_recipe_has_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        recipe_for("org/name", config)


def test_values_that_no_recipe_may_hold_are_refused_in_its_words() -> None:
    with pytest.raises(RecipeError, match=r"draft\.\S*k"):
        recipe_for("org/name", {"num_speculative_tokens": 1000})
    with pytest.raises(InvalidArgument, match="did you mean 'float16'"):
        recipe_for("org/name", None, "flaot16")
    with pytest.raises(RecipeError, match="capacity"):
        recipe_for("org/name", None, None, 5)
