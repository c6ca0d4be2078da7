"""Layer ids of EAGLE-3 drafts mean what their publishers mean by them, and it is said how that is known."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaModel

from specexport.draft_models import DraftTarget, Eagle3Draft, StatedLayers, load_eagle
from specexport.draft_models.tapped_layers import TappedFeatures, tapped_layers
from specexport.errors import CheckpointUnsupported
from tests.conftest import RECIPES
from tests.specexport.draft_models.draft_files import stored_in, write_files

IDS = "eagle_aux_hidden_state_layer_ids"


def target_of(layers: int) -> DraftTarget:
    return DraftTarget("it", 8, layers, 16, torch.zeros(16, 8), torch.nn.Linear(8, 16), 64)


def read(config: dict[str, Any], layers: int, *, speculators: bool = False) -> TappedFeatures:
    return tapped_layers(config, "the draft", target_of(layers), None, speculators=speculators)


# What the publisher's own software feeds the draft: configs of SpecForge's repository, the defaults of Model Optimizer
# ([1, n/2-1, n-4], what leaves) and of speculators ([2, n/2, n-3], what enters), and what vLLM and SGLang do with them.
PUBLISHED = {
    "SpecForge deepseek-v3": ([1, 29, 57], 61, (2, 30, 58)),
    "SpecForge gpt-oss-20B": ([1, 11, 21], 24, (2, 12, 22)),
    "SpecForge gpt-oss-120B": ([1, 17, 33], 36, (2, 18, 34)),
    "SpecForge qwen3-235B": ([1, 46, 90], 94, (2, 47, 91)),
    "the published layers": ([2, 16, 29], 32, (2, 16, 29)),
    "what leaves the last layer": ([24, 30, 36], 36, (24, 30, 36)),
}


@pytest.mark.parametrize("case", PUBLISHED)
def test_ids_under_eagle_config_are_read_as_their_publisher_computes_them(case: str) -> None:
    ids, layers, entering = PUBLISHED[case]
    found = read({"eagle_config": {IDS: ids}}, layers)
    assert found.entering == entering
    assert found.doubt is None
    assert str(ids) in found.reason


def test_without_ids_the_original_choice_is_read() -> None:
    assert read({}, 32).entering == (2, 16, 29)


def test_speculators_count_what_enters_a_layer() -> None:
    assert read({IDS: [1, 10, 20]}, 32, speculators=True) == TappedFeatures(
        (1, 10, 20), "config.json's [1, 10, 20], entering as in every file of speculators"
    )


def test_ids_of_another_publisher_in_a_file_of_speculators_are_doubted() -> None:
    found = read({IDS: [1, 46, 90]}, 94, speculators=True)
    assert found.entering == (2, 47, 91)
    assert found.doubt is not None
    assert "{entering: [1, 46, 90]}" in found.doubt


def test_what_the_files_do_not_settle_is_said_with_both_readings() -> None:
    found = read({"eagle_config": {IDS: [3, 11, 21]}}, 24)
    assert found.entering == (3, 11, 21)
    assert found.doubt is not None
    assert "draft.layer_ids: {leaving: [3, 11, 21]}" in found.doubt
    assert "{entering: [3, 11, 21]}" in found.doubt


@pytest.mark.parametrize(("meaning", "entering"), [("entering", (1, 5, 9)), ("leaving", (2, 6, 10))])
def test_a_config_that_says_what_it_means_is_taken_at_its_word(
    meaning: str, entering: tuple[int, ...]
) -> None:
    config = {"eagle_config": {IDS: [1, 5, 9], "layer_ids_mean": meaning}}
    found = read(config, 12)
    assert (found.entering, found.doubt) == (entering, None)


@pytest.mark.parametrize("meaning", ["above", None, 1])
def test_another_meaning_is_refused(meaning: object) -> None:
    with pytest.raises(CheckpointUnsupported, match=r"layer_ids_mean is .*'entering' or 'leaving'"):
        read({"eagle_config": {IDS: [1, 5, 9], "layer_ids_mean": meaning or "both"}}, 12)


def test_what_leaves_a_layer_enters_the_next_in_transformers() -> None:
    model = LlamaModel(
        LlamaConfig(
            hidden_size=16, intermediate_size=16, num_hidden_layers=6, num_attention_heads=2, vocab_size=32
        )
    )
    left: dict[int, torch.Tensor] = {}
    for index, layer in enumerate(model.layers):
        layer.register_forward_hook(lambda module, args, output, at=index: left.update({at: output}))
    with torch.no_grad():
        entering = model(torch.arange(5)[None], output_hidden_states=True).hidden_states
    stated = StatedLayers("leaving", (1, 2, 4))
    for index, enters in zip(stated.ids, stated.entering, strict=True):
        assert torch.equal(left[index], entering[enters])


def test_the_recipe_has_the_last_word(eagle3: Eagle3Draft, target: DraftTarget, place: Path) -> None:
    config, weights = stored_in(eagle3, place)
    assert config["eagle_config"]["layer_ids_mean"] == "entering"
    write_files(place, config, weights)
    loaded = load_eagle(place, "eagle3", target, "it", StatedLayers("leaving", (0, 1, 1)))
    assert loaded.config.layer_ids == (1, 2, 2)
    with pytest.raises(CheckpointUnsupported, match=r"draft\.layer_ids is \[0, 1, 2\], expected 0\.\.1"):
        load_eagle(place, "eagle3", target, "it", StatedLayers("leaving", (0, 1, 2)))


def test_the_shipped_draft_reads_what_it_was_trained_on() -> None:
    config = json.loads((RECIPES / "drafts/smollm2-135m-eagle3/config.json").read_text())
    assert config["eagle_config"]["layer_ids_mean"] == "entering"
    found = read(config, 30)
    assert (found.entering, found.doubt) == ((2, 15, 27), None)
