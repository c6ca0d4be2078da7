"""The reduced vocabulary of a draft: which target ids its LM head scores, told by `d2t` and `t2d`."""

import torch
from torch import Tensor

from specexport.errors import CheckpointUnsupported


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
