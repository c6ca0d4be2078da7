"""A pruned draft model: some of the target's layers, trained further, that scores a part of the vocabulary.

Its files hold the layers, the final norm and `draft_ids`, the target ids it can say. The embeddings and the LM head's
rows of those ids are the target's, identified by hash. To an export it is a Llama model with the target's vocabulary.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from specexport.checkpoints.local import FORMAT, FORMAT_KEY
from specexport.checkpoints.refusals import require_finite_weights
from specexport.draft_models.configs import describing_layers, embeddings_sha256
from specexport.draft_models.files import CONFIG_NAME, DraftFiles, read_draft_files
from specexport.draft_models.key_sets import fill_module
from specexport.draft_models.loading import cast_weights
from specexport.draft_models.saving import LAYER_KEYS, write_draft_files
from specexport.draft_models.targets import DraftTarget
from specexport.errors import CheckpointUnsupported

IDS_KEY = "draft_ids"
EMBEDDINGS_KEY, HEAD_KEY = "embeddings_sha256", "head_sha256"
_CONFIG_KEYS = (*LAYER_KEYS, "vocab_size")
UNSAID = -1e4  # a logit that fp16 holds and no softmax sees


class PartialHead(nn.Module):
    """[..., h] -> [..., padded vocabulary of the target]; ids that the draft cannot say get `UNSAID`."""

    places: Tensor
    draft_ids: Tensor

    def __init__(self, head: nn.Linear, draft_ids: Tensor) -> None:
        """`head` is the target's, `draft_ids` [V] ascending."""
        super().__init__()
        self.rows = nn.Linear(head.weight.shape[1], len(draft_ids), bias=False)
        self.rows.weight = nn.Parameter(head.weight.detach()[draft_ids], requires_grad=False)
        padded = int(head.weight.shape[0])
        places = torch.full((padded,), len(draft_ids))
        places[draft_ids] = torch.arange(len(draft_ids))
        self.register_buffer(
            "places", places, persistent=False
        )  # [padded]: a row, or the column after the last
        self.register_buffer("draft_ids", draft_ids, persistent=False)

    @property
    def weight(self) -> Tensor:
        """A tensor of a whole LM head's shape, without its numbers."""
        return torch.empty(len(self.places), self.rows.in_features, device="meta")

    def forward(self, hidden: Tensor) -> Tensor:
        scores = self.rows(hidden)
        unsaid = torch.full_like(scores[..., :1], UNSAID)
        return torch.cat((scores, unsaid), dim=-1)[..., self.places]


class PrunedForCausalLM(LlamaForCausalLM):
    """A Llama model with a `PartialHead`; made by `new_pruned` and `load_pruned`."""

    lm_head: PartialHead


def new_pruned(config: LlamaConfig, target: DraftTarget, draft_ids: Tensor) -> PrunedForCausalLM:
    """Return a draft of `config` for `target`, its layers of random weights, in float32."""
    model = PrunedForCausalLM(config)
    model.model.embed_tokens.weight = nn.Parameter(target.embeddings.detach(), requires_grad=False)
    model.lm_head = PartialHead(target.head, draft_ids)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def save_pruned(
    model: PrunedForCausalLM, target: DraftTarget, directory: Path, *, extra: dict[str, Any] | None = None
) -> None:
    """Write the files that `load_pruned` reads. `extra` are keys for people."""
    weights = _own(model) | {IDS_KEY: model.lm_head.draft_ids.to(torch.int32)}
    stated = model.config.to_dict()
    config = {key: stated[key] for key in _CONFIG_KEYS} | {
        FORMAT_KEY: FORMAT,
        EMBEDDINGS_KEY: embeddings_sha256(target.embeddings),
        HEAD_KEY: embeddings_sha256(target.head.weight),
    }
    write_draft_files(directory, weights, config, extra)


def load_pruned(directory: Path, target: DraftTarget, name: str) -> PrunedForCausalLM:
    """Return the draft in `directory`, in the target's precision. `name` is what messages call it.

    Raises `SourceError` for files that cannot be had, `CheckpointUnsupported` for a draft that is not `target`'s.
    """
    files = read_draft_files(directory, name)
    config = _read_config(files, target)
    _require_same_tables(files, target)
    ids = _read_ids(files, target)
    with describing_layers(name):
        model = new_pruned(config, target, ids)
    cast_weights(model, target.dtype)
    weights = {key: tensor for key, tensor in files.weights.items() if key != IDS_KEY}
    fill_module(model, weights, {key: key for key in _own(model)}, name)
    require_finite_weights(name, model)
    return model


def _own(model: PrunedForCausalLM) -> dict[str, Tensor]:
    shared = ("lm_head.", "model.embed_tokens.")
    return {key: tensor for key, tensor in model.state_dict().items() if not key.startswith(shared)}


def _read_config(files: DraftFiles, target: DraftTarget) -> LlamaConfig:
    missing = [key for key in (*_CONFIG_KEYS, EMBEDDINGS_KEY, HEAD_KEY) if key not in files.config]
    if missing:
        raise CheckpointUnsupported(
            f"{files.name}: its {CONFIG_NAME} lacks {missing[0]}; save the draft again"
        )
    with describing_layers(files.name):
        config = LlamaConfig(**{key: files.config[key] for key in _CONFIG_KEYS})
    for key, found, expected in (
        ("hidden_size", config.hidden_size, target.hidden_size),
        ("vocab_size", config.vocab_size, target.padded_vocab_size),
    ):
        if found != expected:
            raise CheckpointUnsupported(
                f"{files.name}: {key} is {found}, expected {expected}, that of the target {target.name}; "
                "the draft is for another target"
            )
    config.tie_word_embeddings = False
    config.pad_token_id = None
    return config


def _require_same_tables(files: DraftFiles, target: DraftTarget) -> None:
    tables = ((EMBEDDINGS_KEY, target.embeddings, "embeddings"), (HEAD_KEY, target.head.weight, "LM head"))
    for key, table, noun in tables:
        if (found := embeddings_sha256(table)) != files.config[key]:
            raise CheckpointUnsupported(
                f"{files.name}: {key} is {files.config[key]}, and the {noun} of the target {target.name} hash to "
                f"{found}; the draft was trained on another target"
            )


def _read_ids(files: DraftFiles, target: DraftTarget) -> Tensor:
    ids = files.weights.get(IDS_KEY)
    if ids is None or ids.ndim != 1 or ids.dtype not in (torch.int32, torch.int64) or not len(ids):
        raise CheckpointUnsupported(
            f"{files.name}: lacks {IDS_KEY}, the target ids it can say; save the draft again"
        )
    ids = ids.long()
    if bool((ids[1:] <= ids[:-1]).any()) or int(ids[0]) < 0 or int(ids[-1]) >= target.vocab_size:
        raise CheckpointUnsupported(
            f"{files.name}: {IDS_KEY} runs from {int(ids[0])} to {int(ids[-1])}, expected ascending ids within "
            f"0..{target.vocab_size - 1}, the vocabulary of the target {target.name}"
        )
    return ids
