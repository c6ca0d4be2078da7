"""Whether a target's logits are what its LM head says of its last hidden state, and nothing after it.

Training stores that state and computes the rest from the LM head, so what a model does to its logits afterwards, a
scale or a cap, would be missing from what a draft learns and from what is drawn. Found by running the model.
"""

import torch
from transformers import PreTrainedModel

from specexport.errors import TrainingRefused

_PROBED_TOKENS = 8
_NOISE = 1e-4  # of the largest logit: sums in another order; scales and caps of real models are far above it


def require_plain_logits(model: PreTrainedModel) -> None:
    """Raises `TrainingRefused` for a `model` that scales or caps what its LM head says."""
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
