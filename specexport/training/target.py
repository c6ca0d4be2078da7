"""The target as training runs it: in bfloat16 where the processor multiplies that fast."""

import copy

import torch
from transformers import PreTrainedModel

from specexport.errors import TrainingRefused


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


_PROBED_TOKENS = 8
_NOISE = 1e-4  # of the largest logit: sums in another order; scales and caps of real models are far above it


def require_plain_logits(model: PreTrainedModel) -> None:
    """Raise `TrainingRefused` for a `model` that scales or caps what its LM head says."""
    ids = torch.arange(1, _PROBED_TOKENS + 1)[None]
    with torch.inference_mode():
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        by_head = model.get_output_embeddings()(hidden).float()
        logits = model(input_ids=ids, use_cache=False).logits.float()
    if (by_head - logits).abs().max() > _NOISE * logits.abs().max():
        raise TrainingRefused(
            f"found a target ({model.config.model_type}) that scales or caps its logits after the LM head, expected "
            "the LM head's own, from which training computes what a draft learns; give the recipe a published draft, "
            "or n-grams"
        )
