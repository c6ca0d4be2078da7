"""What is saved loads as it was, from one file or from shards."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specexport.draft_models import (
    DraftTarget,
    Eagle1Draft,
    Eagle3Draft,
    MedusaHeads,
    embeddings_sha256,
    load_eagle,
    load_medusa,
    save_draft,
)
from specexport.draft_models import saving as writing
from specexport.draft_models.random_drafts import random_eagle
from specexport.errors import SourceError
from tests.specexport.draft_models.draft_files import Weights, require_same, stored_in


def test_what_is_saved_loads(
    eagle3: Eagle3Draft, eagle: Eagle1Draft, heads: MedusaHeads, target: DraftTarget, place: Path
) -> None:
    for kind, draft in (("eagle3", eagle3), ("eagle", eagle), ("medusa", heads)):
        save_draft(draft, place / kind)
    require_same(load_eagle(place / "eagle3", "eagle3", target, "it"), eagle3)
    require_same(load_eagle(place / "eagle", "eagle", target, "it"), eagle)
    require_same(load_medusa(place / "medusa", target, "it"), heads)


def test_saved_files_hold_only_what_the_target_has_not(
    eagle3: Eagle3Draft, eagle: Eagle1Draft, heads: MedusaHeads, place: Path
) -> None:
    expected_layer = {
        *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
        *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
        "post_attention_layernorm.weight",
    }
    _, weights = stored_in(eagle3, place / "eagle3")
    layer = {*expected_layer, "input_layernorm.weight", "hidden_norm.weight"}
    assert weights.keys() == {
        "fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d", *(f"midlayer.{name}" for name in layer)
    }  # fmt: skip
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16, torch.int64, torch.bool}
    _, weights = stored_in(eagle, place / "eagle")
    assert weights.keys() == {"fc.weight", "fc.bias", *(f"layers.0.{name}" for name in expected_layer)}
    _, weights = stored_in(heads, place / "medusa")
    assert weights.keys() == {
        f"medusa_head.{head}.{block}.linear.{kind}"
        for head in range(3)
        for block in range(2)
        for kind in ("weight", "bias")
    }  # fmt: skip


def test_shards_are_joined(eagle3: Eagle3Draft, target: DraftTarget, place: Path) -> None:
    _, weights = stored_in(eagle3, place)
    (place / "model.safetensors").unlink()
    names = sorted(weights)
    shards = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(names)}
    for shard in set(shards.values()):
        save_file({name: weights[name] for name in names if shards[name] == shard}, place / shard)
    index = place / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    require_same(load_eagle(place, "eagle3", target, "it"), eagle3)
    index.write_text(json.dumps({"weight_map": {"fc.weight": "../part-0.safetensors"}}))
    with pytest.raises(SourceError, match="part-0"):
        load_eagle(place, "eagle3", target, "it")


def test_the_hash_is_of_values_not_of_types(target: DraftTarget) -> None:
    table = target.embeddings.detach()
    assert embeddings_sha256(table.half()) == embeddings_sha256(table.half().float())
    assert embeddings_sha256(table.bfloat16()) == embeddings_sha256(table.bfloat16().float())
    changed = table.clone()
    changed[271, 31] += 1
    assert embeddings_sha256(changed) != embeddings_sha256(table)


def test_a_draft_that_cannot_be_written_whole_leaves_the_old_one(
    eagle3: Eagle3Draft, target: DraftTarget, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_draft(eagle3, place)
    before = {path.name: path.read_bytes() for path in place.iterdir()}

    def interrupted(weights: Weights, path: Path, **options: object) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_draft(random_eagle("eagle3", target, seed=2, draft_vocab_size=50), place)
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before
