"""Loads a published draft for its target: format, exact weights, vocabulary, embeddings, or a refusal with both sides.

A loaded draft is in eval mode, on the CPU, in the target's precision.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from specexport.checkpoints.refusals import require_finite_weights
from specexport.draft_models.configs import EagleConfig, describing_layers, embeddings_sha256, target_ids
from specexport.draft_models.eagle import Eagle1Draft, Eagle3Draft
from specexport.draft_models.eagle_formats import (
    EMBEDDINGS,
    SHA256_KEY,
    EagleFormat,
    EagleKind,
    read_eagle_format,
)
from specexport.draft_models.files import DraftFiles, read_draft_files
from specexport.draft_models.key_sets import fill_module
from specexport.draft_models.medusa import MedusaHeads, read_medusa_format
from specexport.draft_models.tapped_layers import StatedLayers
from specexport.draft_models.targets import DraftTarget
from specexport.errors import CheckpointUnsupported

D2T, T2D = "d2t", "t2d"


def load_eagle(
    directory: Path, kind: EagleKind, target: DraftTarget, name: str, stated: StatedLayers | None = None
) -> Eagle1Draft | Eagle3Draft:
    """Return the EAGLE draft in `directory`. `name` is what messages call it.

    `stated`: the target's layers whose hidden states an EAGLE-3 draft reads, in place of what its config says.

    Raises `SourceError` for files that cannot be had, `CheckpointUnsupported` for those that are no draft of `kind` for
    `target`.
    """
    files = read_draft_files(directory, name)
    found = read_eagle_format(files, kind, target, stated)
    _require_fit(found.config, target, name)
    with describing_layers(name):
        draft = Eagle3Draft(found.config) if kind == "eagle3" else Eagle1Draft(found.config)
    cast_weights(draft, target.dtype)
    _fill(draft, found, files)
    if isinstance(draft, Eagle3Draft):
        _fill_vocabulary(draft, files, target)
    require_finite_weights(name, draft)
    attach(draft, target, require_hash=files.config.get(SHA256_KEY), name=name)
    return draft.eval()


def load_medusa(directory: Path, target: DraftTarget, name: str) -> MedusaHeads:
    """Return the Medusa heads in `directory`. Raises as `load_eagle`."""
    files = read_draft_files(directory, name)
    found = read_medusa_format(files, target)
    heads = MedusaHeads(found.config)
    cast_weights(heads, target.dtype)
    expected = {key: found.file_key(key) for key in heads.state_dict() if not key.startswith("lm_head.")}
    fill_module(heads, files.weights, expected, name)
    require_finite_weights(name, heads)
    attach(heads, target, require_hash=None, name=name)
    return heads.eval()


def attach(
    draft: Eagle1Draft | Eagle3Draft | MedusaHeads, target: DraftTarget, *, require_hash: object, name: str
) -> None:
    """Give a draft the target's embeddings and LM head where it has none of its own.

    `require_hash`: what the draft says the target's embeddings hash to, None where it does not say. Raises
    `CheckpointUnsupported` with both hashes.
    """
    if isinstance(draft, (Eagle1Draft, Eagle3Draft)) and not draft.config.own_embeddings:
        if require_hash is not None and (found := embeddings_sha256(target.embeddings)) != require_hash:
            raise CheckpointUnsupported(
                f"{name}: {SHA256_KEY} is {require_hash}, and the embeddings of the target {target.name} hash to "
                f"{found}; the draft was trained on another target"
            )
        draft.embed_tokens.weight = nn.Parameter(target.embeddings.detach(), requires_grad=False)
    if not isinstance(draft, Eagle3Draft) and draft.lm_head is not None:
        draft.lm_head = target.head


def cast_weights(module: nn.Module, dtype: torch.dtype) -> None:
    """Weights only: rotary frequencies are buffers, and stay float32 as in the target."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)


def _require_fit(config: EagleConfig, target: DraftTarget, name: str) -> None:
    sides = [("target_hidden_size", config.target_hidden_size, target.hidden_size)]
    if not config.layer_ids or not config.own_embeddings:
        sides.append(("hidden_size", config.hidden_size, target.hidden_size))
    for key, found, expected in sides:
        if found != expected:
            raise CheckpointUnsupported(
                f"{name}: {key} is {found}, expected {expected}, the hidden size of the target {target.name}: "
                "the draft is for another target"
            )
    if config.layer_ids and config.layer.num_hidden_layers != 1:
        raise CheckpointUnsupported(
            f"{name}: num_hidden_layers is {config.layer.num_hidden_layers}, expected 1 for an EAGLE-3 draft"
        )
    rows = len(target.embeddings)
    if config.target_vocab_size != rows and not (
        config.own_embeddings and config.target_vocab_size >= target.vocab_size
    ):
        raise CheckpointUnsupported(
            f"{name}: vocab_size is {config.target_vocab_size}, expected {rows}, the rows of the embeddings of the "
            f"target {target.name}: the draft is for another target"
        )
    if config.draft_vocab_size > target.padded_vocab_size:
        raise CheckpointUnsupported(
            f"{name}: draft_vocab_size is {config.draft_vocab_size}, expected at most {target.padded_vocab_size}, the "
            f"vocabulary of the target {target.name}"
        )


def _fill(draft: Eagle1Draft | Eagle3Draft, found: EagleFormat, files: DraftFiles) -> None:
    expected = {key: found.file_key(key) for key in _own_parameters(draft)}
    weights = {key: tensor for key, tensor in files.weights.items() if key not in (D2T, T2D)}
    fill_module(draft, weights, expected, files.name)


def _own_parameters(draft: Eagle1Draft | Eagle3Draft) -> Iterator[str]:
    """Yield the parameters that the draft's files hold."""
    for key, _ in draft.named_parameters():
        shared_head = key.startswith("lm_head.") and isinstance(draft, Eagle1Draft)
        if not shared_head and (key != EMBEDDINGS or draft.config.own_embeddings):
            yield key


def _fill_vocabulary(draft: Eagle3Draft, files: DraftFiles, target: DraftTarget) -> None:
    """`d2t` may be absent only where the draft scores the whole vocabulary; `t2d` says the same once more."""
    size, rows = draft.config.draft_vocab_size, draft.config.target_vocab_size
    d2t, t2d = files.weights.get(D2T), files.weights.get(T2D)
    if d2t is None:
        if size != rows:
            raise CheckpointUnsupported(
                f"{files.name}: the table 'd2t' is missing, expected one offset for each of {size} draft tokens: the "
                f"target has {rows}"
            )
        d2t = torch.zeros(size, dtype=torch.long)
    if tuple(d2t.shape) != (size,):
        raise CheckpointUnsupported(
            f"{files.name}: d2t is {list(d2t.shape)}, expected [{size}] by draft_vocab_size"
        )
    ids: Tensor = target_ids(d2t, t2d, rows, target.padded_vocab_size, files.name)
    draft.set_vocabulary(ids)
