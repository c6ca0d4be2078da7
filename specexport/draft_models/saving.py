"""Writes a draft in the form recipes/drafts ship: model.safetensors in fp16, and config.json, which names its target.

What the target has (embeddings, a shared LM head) is left out; the names of weights are the published ones, so that
other software reads the files as well.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from specexport.draft_models.eagle import EagleDraft
from specexport.draft_models.eagle3 import Eagle3Draft
from specexport.draft_models.eagle_formats import EMBEDDINGS, SHA256_KEY
from specexport.draft_models.embeddings import embeddings_sha256
from specexport.draft_models.medusa import MedusaHeads
from specexport.draft_models.medusa_formats import HEADS_KEY, LAYERS_KEY
from specexport.draft_models.tapped_layers import LAYER_IDS_KEY, MEANING_KEY
from specexport.draft_models.writing import LAYER_KEYS, write_draft_files


def save_draft(
    draft: EagleDraft | Eagle3Draft | MedusaHeads, directory: Path, *, extra: dict[str, Any] | None = None
) -> None:
    """Writes into `directory` the files that `load_eagle` and `load_medusa` read back.

    `extra` are further keys of the config, for people: what the draft was trained on, and how.
    """
    config = _medusa_config(draft) if isinstance(draft, MedusaHeads) else _eagle_config(draft)
    write_draft_files(directory, _weights(draft), config, extra)


def _weights(draft: EagleDraft | Eagle3Draft | MedusaHeads) -> dict[str, Tensor]:
    left_out = set()
    if not isinstance(draft, Eagle3Draft):
        left_out |= {"lm_head.weight", "lm_head.bias"}
    if not isinstance(draft, MedusaHeads) and not draft.config.own_embeddings:
        left_out.add(EMBEDDINGS)
    return {key: tensor for key, tensor in draft.state_dict().items() if key not in left_out}


def _eagle_config(draft: EagleDraft | Eagle3Draft) -> dict[str, Any]:
    config, layer = draft.config, draft.config.layer.to_dict()
    assert not (config.extra_norms or config.input_norm), "the original format has no place for these norms"
    keys: dict[str, Any] = {"model_type": "llama"}
    keys |= {key: layer[key] for key in LAYER_KEYS if layer.get(key) is not None}
    keys |= {"vocab_size": config.target_vocab_size, "torch_dtype": "float16"}
    if isinstance(draft, Eagle3Draft):
        keys |= {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": config.draft_vocab_size,
            "target_hidden_size": config.target_hidden_size,
            "eagle_config": {
                LAYER_IDS_KEY: list(config.layer_ids),
                MEANING_KEY: "entering",
                "use_aux_hidden_state": True,
            },
            "norm_before_residual": config.norm_before_residual,
            "norm_output": config.norm_output,
        }
    else:
        keys |= {"architectures": ["LlamaForCausalLM"], "bias": config.fc_bias}
    if not config.own_embeddings:
        keys[SHA256_KEY] = embeddings_sha256(draft.embed_tokens.weight)
    return keys


def _medusa_config(draft: MedusaHeads) -> dict[str, Any]:
    config = draft.config
    return {
        HEADS_KEY: config.heads,
        LAYERS_KEY: config.layers,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "torch_dtype": "float16",
    }
