"""The target as training runs it: in bfloat16 where the processor multiplies that fast."""

import copy

import torch
from transformers import PreTrainedModel


def fast_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; elsewhere it is slower than float32."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def fast_copy(model: PreTrainedModel) -> PreTrainedModel:
    """`model` itself, or a copy with bfloat16 weights. Buffers keep their type: rotary frequencies need it."""
    if not fast_bfloat16():
        return model
    copied: PreTrainedModel = copy.deepcopy(model)
    for parameter in copied.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    copied.eval()
    return copied
