"""A draft kind that the packages do not know is registered on both sides, built from a recipe and decoded with."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from specexport.build import build
from specexport.context import BuildContext
from specexport.draft_kinds import KINDS
from specexport.draft_kinds import register as register_section
from specexport.errors import ParityError
from specexport.recipe.schema import Recipe, load_recipe
from specruntime import SamplingParams, complete, open_bundle
from specruntime.drafts import register
from specruntime.errors import InvalidArgument
from tests.bigram_build import BigramSection
from tests.bigram_kind import LOOKUP, BigramDraft
from tests.conftest import RECIPES

PROMPT = [17, 40, 8, 8, 25]
save = np.save
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, top_p=0.9, seed=3)


@pytest.fixture(autouse=True)
def bigram() -> Iterator[None]:
    remove = register(BigramDraft), register_section(BigramSection)
    yield
    for each in remove:
        each()


def bigram_recipe(text: list[int], **changes: object) -> Recipe:
    document = load_recipe(RECIPES / "tiny-random.yaml").model_dump(mode="json", exclude_unset=True)
    document["draft"] = {"kind": "bigram", "text": text, **changes}
    document.pop("verify_widths", None)
    return Recipe.model_validate(document)


def test_it_is_built_and_decodes_what_plain_decoding_does(tiny_bundle: Path, tmp_path: Path) -> None:
    with open_bundle(tiny_bundle) as bundle:
        answer = complete(bundle.new_session(speculate=False), PROMPT, GREEDY).token_ids
    recipe = bigram_recipe([*PROMPT, *answer], adaptive=True)
    root = build(recipe, tmp_path / "bigram.bundle")
    with open_bundle(root) as bundle:
        draft, adaptive = bundle.manifest.draft, bundle.manifest.adaptive
        assert isinstance(draft, BigramDraft) and draft.k == 3
        assert adaptive is not None and adaptive.draft_ms.keys() == {LOOKUP}
        for params in (GREEDY, SAMPLED):
            plain = complete(bundle.new_session(speculate=False), PROMPT, params)
            drafted = complete(bundle.new_session(), PROMPT, params)
            assert drafted.token_ids == plain.token_ids
        assert complete(bundle.new_session(), PROMPT, GREEDY).stats.accepted > 0
    graphs = json.loads((root / "build.json").read_text())["graphs"]
    assert graphs["draft"]["checkpoint"] == f"bigrams of {len(PROMPT) + len(answer)} tokens"
    said: list[str] = []
    build(recipe, root, BuildContext(announce=said.append))
    assert said[-1] == "nothing changed"


def test_a_graph_that_is_not_its_module_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.bigram_build.np.save", lambda path, table: save(path, table + 1))
    with pytest.raises(ParityError, match=r"the draft graph differs from PyTorch by [1-9]"):
        build(bigram_recipe([1, 2, 3, 1, 4]), tmp_path / "bigram.bundle")


def test_a_name_is_taken_once_and_free_again_afterwards() -> None:
    with pytest.raises(InvalidArgument, match="another draft kind named 'bigram'"):
        register_section(BigramSection)
    KINDS.remove(BigramSection)
    register_section(BigramSection)
    mistaken = {**bigram_recipe([1, 2]).model_dump(mode="json"), "draft": {"kind": "bigrams"}}
    with pytest.raises(ValueError, match="bigram"):
        Recipe.model_validate(mistaken)
