"""The identity of a target's embedding table, for drafts that take it instead of bringing their own."""

import hashlib

import torch
from torch import Tensor

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
