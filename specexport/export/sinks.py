"""Attention with sinks: one learned logit per head joins the softmax and takes its weight away from every row.

ONNX `Attention` has no place for it, so it is written out in elementary operators.
"""

import torch
from torch import Tensor


def attention_with_sinks(
    query: Tensor,  # [B, heads, W, head_dim]
    key: Tensor,  # [B, kv_heads, capacity, head_dim]
    value: Tensor,  # [B, kv_heads, capacity, head_dim]
    mask: Tensor,  # [B, 1, W, capacity] bool
    sinks: Tensor,  # [heads]
    scaling: float | None,
    softcap: float | None,
) -> Tensor:
    """-> [B, W, heads, head_dim]. Query heads are folded into the rows of their KV head: the cache is not repeated."""
    batch, heads, width, head_dim = query.shape
    kv_heads, capacity = key.shape[1:3]
    folded = query.reshape(batch, kv_heads, heads // kv_heads * width, head_dim)
    scores = folded @ key.transpose(2, 3) * (head_dim**-0.5 if scaling is None else scaling)
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.reshape(batch, heads, width, capacity).masked_fill(~mask, torch.finfo(scores.dtype).min)
    sink_column = sinks.to(scores.dtype)[None, :, None, None].expand(batch, heads, width, 1)
    weights = torch.softmax(torch.cat([scores, sink_column], dim=-1), dim=-1)[..., :-1]
    output = weights.reshape(batch, kv_heads, -1, capacity) @ value
    return output.reshape(batch, heads, width, head_dim).transpose(1, 2)
