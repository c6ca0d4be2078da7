"""A draft that does not fit its target is refused with both sides named, and so are files that are no draft's."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specexport.draft_models import (
    DraftTarget,
    Eagle1Draft,
    Eagle3Draft,
    MedusaHeads,
    load_eagle,
    load_medusa,
    save_draft,
)
from specexport.draft_models.random_drafts import random_eagle
from specexport.errors import CheckpointUnsupported, SourceError
from tests.specexport.draft_models.draft_files import Weights, stored_in, write_files


def _drop(key: str) -> Callable[[dict[str, Any], Weights], None]:
    return lambda config, weights: weights.__delitem__(key)


def _set(**keys: object) -> Callable[[dict[str, Any], Weights], None]:
    return lambda config, weights: config.update(keys)


def _put(key: str, tensor: Tensor) -> Callable[[dict[str, Any], Weights], None]:
    return lambda config, weights: weights.update({key: tensor})


REFUSED = {
    "missing weight": (_drop("fc.weight"), ["'fc.weight'", "missing"]),
    "missing d2t": (_drop("d2t"), ["'d2t'", "100", "272"]),
    "extra weight": (_put("midlayer.self_attn.q_norm.weight", torch.ones(16)), ["q_norm", "does not use"]),
    "misshaped": (_put("norm.weight", torch.ones(31)), ["norm.weight", "[31]", "[32]"]),
    "infinite": (_put("norm.weight", torch.full((32,), float("inf"))), ["norm.weight", "finite"]),
    "hidden size": (_set(target_hidden_size=64), ["target_hidden_size", "64", "32", "tiny"]),
    "own hidden size": (_set(hidden_size=64), ["hidden_size is 64", "expected 32", "tiny"]),
    "vocabulary": (_set(vocab_size=999), ["vocab_size is 999", "272", "tiny"]),
    "draft vocabulary": (_set(draft_vocab_size=300), ["draft_vocab_size is 300", "272"]),
    "two layers": (_set(num_hidden_layers=2), ["num_hidden_layers is 2", "expected 1"]),
    "layer ids": (_set(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 9]}), ["[0, 1, 9]", "0..2", "tiny"]),
    "two layer ids": (_set(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1]}), ["[0, 1]", "3 layer numbers"]),
    "no object": (_set(eagle_config=5), ["eagle_config is 5", "expected an object"]),
    "no layer ids": (_set(eagle_config=None), ["eagle_aux_hidden_state_layer_ids", "[2, 1, -1]"]),
    "another layer": (_set(model_type="qwen3"), ["'qwen3'", "'llama'"]),
    "unsupported norm": (_set(fc_norm=True), ["fc_norm"]),
    "another target": (_set(target_embeddings_sha256="0" * 64), ["0" * 64, "hash to", "tiny"]),
    "d2t out of range": (_put("d2t", torch.full((100,), 250)), ["draft token 22", "272", "0..271"]),
    "d2t of ids": (_put("d2t", torch.arange(100).flip(0)), ["draft tokens 0 and 1", "99 and 99", "offsets"]),
    "d2t of floats": (_put("d2t", torch.zeros(100)), ["d2t", "float32"]),
    "t2d of another": (_put("t2d", torch.arange(272) < 100), ["t2d flags 100", "not the same"]),
    "speculators without layer": (_set(speculators_model_type="eagle3"), ["transformer_layer_config"]),
    "another kind": (_set(speculators_model_type="eagle"), ["'eagle'", "'eagle3'"]),
    "unknown activation": (_set(hidden_act="sile"), ["config.json", "'sile'"]),
    "unknown rotary scaling": (_set(rope_parameters={"rope_type": "far"}), ["config.json", "'far'"]),
    "no key heads": (_set(num_key_value_heads=0), ["config.json", "no Llama layer"]),
    "more than memory": (_set(intermediate_size=10**13), ["config.json", "no Llama layer"]),
    "flag in words": (_set(norm_output="false"), ["norm_output is 'false'", "true or false"]),
    "integer weights": (_put("norm.weight", torch.ones(32, dtype=torch.int8)), ["norm.weight", "int8", "float16"]),
    "float8 weights": (
        _put("norm.weight", torch.ones(32).to(torch.float8_e4m3fn)), ["norm.weight", "float8_e4m3fn", "float16"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_draft_that_does_not_fit_is_refused(
    case: str, eagle3: Eagle3Draft, target: DraftTarget, place: Path
) -> None:
    change, words = REFUSED[case]
    config, weights = stored_in(eagle3, place)
    change(config, weights)
    write_files(place, config, weights)
    with pytest.raises(CheckpointUnsupported) as caught:
        load_eagle(place, "eagle3", target, "it")
    message = str(caught.value)
    assert message.startswith("it: ") and "\n" not in message
    for word in words:
        assert word in message, message


def test_the_kind_must_be_the_files_kind(
    eagle3: Eagle3Draft, eagle: Eagle1Draft, heads: MedusaHeads, target: DraftTarget, place: Path
) -> None:
    save_draft(eagle3, place)
    with pytest.raises(CheckpointUnsupported, match=r"'eagle3'.*'eagle'"):
        load_eagle(place, "eagle", target, "it")
    with pytest.raises(CheckpointUnsupported, match=r"'eagle3'.*'medusa'"):
        load_medusa(place, target, "it")
    save_draft(eagle, place)
    with pytest.raises(CheckpointUnsupported, match=r"'eagle'.*'medusa'"):
        load_medusa(place, target, "it")
    save_draft(heads, place)
    with pytest.raises(CheckpointUnsupported, match=r"'medusa'.*'eagle3'"):
        load_eagle(place, "eagle3", target, "it")


def test_medusa_heads_of_another_target_are_refused(
    heads: MedusaHeads, target: DraftTarget, place: Path
) -> None:
    config, weights = stored_in(heads, place)
    cases = [
        (config | {"hidden_size": 64}, weights, "64, expected 32"),
        (config | {"medusa_num_heads": 4}, weights, "medusa_head.3.0.linear.bias"),
        (config | {"medusa_num_heads": 2}, weights, "does not use"),
        (config | {"medusa_num_layers": 0}, weights, "medusa_num_layers is 0"),
        (config | {"medusa_num_heads": 10**9}, weights, "medusa_num_heads is 1000000000 .* 1 to 64"),
        (
            {key: value for key, value in config.items() if key != "hidden_size"},
            weights | {"medusa_head.0.0.linear.weight": torch.tensor(1.0)},
            r"is \[\], expected \[32, 32\]",
        ),
        (
            config,
            weights | {"medusa_head.0.2.weight": torch.zeros(100, 32)},
            "scores 100 tokens, expected 272",
        ),
    ]
    for stated, stored, words in cases:
        write_files(place, stated, stored)
        with pytest.raises(CheckpointUnsupported, match=words):
            load_medusa(place, target, "it")


def test_a_target_of_another_width_is_named(eagle3: Eagle3Draft, target: DraftTarget, place: Path) -> None:
    save_draft(eagle3, place)
    other = replace(target, name="wider", hidden_size=48)
    with pytest.raises(CheckpointUnsupported, match=r"target_hidden_size is 32, expected 48.*wider"):
        load_eagle(place, "eagle3", other, "it")


def test_a_random_draft_knows_no_more_tokens_than_its_target(target: DraftTarget) -> None:
    with pytest.raises(
        CheckpointUnsupported, match=r"draft_vocab_size: found 300, expected at most 259, .* tiny"
    ):
        random_eagle("eagle3", target, seed=1, draft_vocab_size=300)


def test_files_that_cannot_be_read_are_named(target: DraftTarget, place: Path) -> None:
    with pytest.raises(SourceError, match=r"config\.json cannot be read"):
        load_eagle(place, "eagle3", target, "it")
    (place / "config.json").write_text("{}")
    with pytest.raises(SourceError, match="no weights of a draft"):
        load_eagle(place, "eagle3", target, "it")
    (place / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(CheckpointUnsupported, match=r"model\.safetensors cannot be read"):
        load_eagle(place, "eagle3", target, "it")
    (place / "config.json").write_text("[]")
    with pytest.raises(CheckpointUnsupported, match="expected keys and values"):
        load_eagle(place, "eagle3", target, "it")


class _Runs:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("ran"),))


def test_a_pickle_that_runs_code_is_refused(
    target: DraftTarget, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    (place / "config.json").write_text('{"medusa_num_heads": 1, "medusa_num_layers": 1}')
    torch.save({"0.0.linear.weight": _Runs()}, place / "medusa_lm_head.pt")
    with pytest.raises(CheckpointUnsupported, match="cannot be read"):
        load_medusa(place, target, "it")
    assert not (place / "ran").exists()
