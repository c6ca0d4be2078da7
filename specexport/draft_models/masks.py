"""Attention masks of EAGLE training: several unrolled steps over one sequence."""

import torch
from torch import Tensor


def unrolled_mask(width: int, step: int) -> Tensor:
    """[1, 1, width, (step + 1) * width] bool: what the queries of unrolled step `step` see.

    The keys are those of step 0, then step 1, and so on, as a cache that appends holds them. Row t of step s stands for
    the position t + s, drafted s tokens past what the target computed: it sees the step-0 keys up to t, and of each
    later step only its own row. (EAGLE-3, training-time test.)
    """
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    own_row = torch.eye(width, dtype=torch.bool)
    return torch.cat([causal, *[own_row] * step], dim=1)[None, None]
