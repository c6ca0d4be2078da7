"""What decides the shape of a draft model. Owned by the draft's config.json; formats are read in `formats`."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig

from specexport.draft_models.tapped_layers import TappedFeatures
from specexport.errors import CheckpointUnsupported, shorten_reason


@contextmanager
def describing_layers(name: str) -> Iterator[None]:
    """Around what makes a config or layers of keys that came from a file; `name` is what messages call the draft.

    Raises `CheckpointUnsupported` for whatever transformers and torch raise on values that do not fit together.
    """
    try:
        yield
    except CheckpointUnsupported:
        raise
    except Exception as error:
        reason = shorten_reason(f"{type(error).__name__}: {error}")
        raise CheckpointUnsupported(f"{name}: its config.json describes no Llama layer: {reason}") from None


@dataclass(frozen=True)
class EagleConfig:
    """An EAGLE draft of any version.

    `layer` describes its decoder layers (sizes, rope, eps, how many); `target_hidden_size` and `target_vocab_size` are
    those of the model it drafts for.
    """

    layer: LlamaConfig
    target_hidden_size: int
    target_vocab_size: int
    draft_vocab_size: int
    """Rows of the draft's own LM head (EAGLE-3); the target's vocabulary where the head is shared."""
    tapped: TappedFeatures | None = None
    """EAGLE-3: which hidden states of the target are the features."""
    norm_before_residual: bool = False
    """EAGLE-3: the residual of the layer is the normed hidden state rather than the bare one."""
    norm_output: bool = False
    """EAGLE-3: the next step takes the normed hidden state (EAGLE-3.1) rather than the bare one."""
    fc_bias: bool = False
    """EAGLE-1/2: the joining projection has a bias."""
    extra_norms: bool = False
    """EAGLE-1/2: a norm on the embeddings and one before the LM head (HASS)."""
    input_norm: bool = False
    """EAGLE-1/2: the first decoder layer norms its input, as further layers always do."""
    own_embeddings: bool = False
    """The checkpoint brings its embedding table; else it is the target's."""

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The features are what enters these layers of the target; () for EAGLE-1/2."""
        return self.tapped.entering if self.tapped is not None else ()

    @property
    def hidden_size(self) -> int:
        """Width of the draft's hidden states."""
        return int(self.layer.hidden_size)


@dataclass(frozen=True)
class MedusaConfig:
    """Medusa heads: each `layers` residual blocks, then an LM head."""

    heads: int
    layers: int
    hidden_size: int
    vocab_size: int
    """Rows of the LM head, the target's padded vocabulary."""
    own_head: bool = True
    """Each head has an LM head of its own; else they share the target's."""


def target_ids(d2t: Tensor, t2d: Tensor | None, vocab_size: int, rows: int, name: str) -> Tensor:
    """[draft_vocab] int64: the target id of each draft id, from the offsets `d2t` (target id = draft id + offset).

    `vocab_size` are the rows of the table `t2d` [vocab_size] bool, `rows` those of the target's LM head. Raises
    `CheckpointUnsupported` for ids outside the target, ids that do not ascend, or two tables that disagree.
    """
    if d2t.dtype not in (torch.int64, torch.int32) or d2t.ndim != 1:
        raise CheckpointUnsupported(
            f"{name}: d2t is {list(d2t.shape)} of {d2t.dtype}, expected one integer offset per draft token"
        )
    ids = d2t.long() + torch.arange(len(d2t))
    outside = ((ids < 0) | (ids >= min(vocab_size, rows))).nonzero().flatten()
    if len(outside):
        first = int(outside[0])
        raise CheckpointUnsupported(
            f"{name}: d2t sends draft token {first} to target token {int(ids[first])}, "
            f"expected 0..{min(vocab_size, rows) - 1}, the target's vocabulary: the draft is for another target"
        )
    steps = (ids[1:] <= ids[:-1]).nonzero().flatten()
    if len(steps):
        first = int(steps[0])
        raise CheckpointUnsupported(
            f"{name}: d2t sends draft tokens {first} and {first + 1} to target tokens {int(ids[first])} and "
            f"{int(ids[first + 1])}, expected ascending ids: d2t holds offsets, not ids"
        )
    if t2d is not None:
        _require_agreement(ids, t2d, vocab_size, name)
    return ids


def _require_agreement(ids: Tensor, t2d: Tensor, vocab_size: int, name: str) -> None:
    if tuple(t2d.shape) != (vocab_size,):
        raise CheckpointUnsupported(
            f"{name}: t2d is {list(t2d.shape)}, expected [{vocab_size}], a flag per target token"
        )
    flagged = t2d.bool().nonzero().flatten()
    if not torch.equal(flagged, ids):
        raise CheckpointUnsupported(
            f"{name}: t2d flags {len(flagged)} target tokens and d2t names {len(ids)}, and they are not the same; "
            "the two tables belong to different drafts"
        )


_ROWS_AT_ONCE = 4096


def embeddings_sha256(table: Tensor) -> str:
    """Hex SHA-256 of the rows of `table` [vocab, hidden] as float32, little-endian, row after row.

    Float32 holds every fp16 and bf16 value, so a checkpoint hashes alike in whatever type of those it is loaded; one
    stored in float32 must be hashed as loaded in fp32.
    """
    digest = hashlib.sha256()
    for rows in table.detach().split(_ROWS_AT_ONCE):
        digest.update(rows.to(torch.float32).contiguous().numpy().astype("<f4", copy=False).tobytes())
    return digest.hexdigest()
