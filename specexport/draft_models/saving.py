"""Writes a draft in the form recipes/drafts ship: model.safetensors in fp16, and config.json, which names its target.

What the target has (embeddings, a shared LM head) is left out; the names of weights are the published ones, so that
other software reads the files as well.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specexport.draft_models.eagle import EagleDraft
from specexport.draft_models.eagle3 import Eagle3Draft
from specexport.draft_models.eagle_formats import EMBEDDINGS, LAYER_IDS_KEY, SHA256_KEY
from specexport.draft_models.embeddings import embeddings_sha256
from specexport.draft_models.files import CONFIG_NAME, WEIGHTS_NAME
from specexport.draft_models.medusa import MedusaHeads
from specexport.draft_models.medusa_formats import HEADS_KEY, LAYERS_KEY

STORED = torch.float16
_LAYER_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "attention_bias",
    "mlp_bias",
)


def save_draft(
    draft: EagleDraft | Eagle3Draft | MedusaHeads, directory: Path, *, extra: dict[str, Any] | None = None
) -> None:
    """Writes `WEIGHTS_NAME` and `CONFIG_NAME` into `directory`; `load_eagle` and `load_medusa` read them back.

    `extra` are further keys of the config, for people: what the draft was trained on, and how.
    """
    directory.mkdir(parents=True, exist_ok=True)
    save_file(_weights(draft), directory / WEIGHTS_NAME, metadata={"format": "pt"})
    config = _medusa_config(draft) if isinstance(draft, MedusaHeads) else _eagle_config(draft)
    text = json.dumps(config | (extra or {}), indent=2, ensure_ascii=False)
    (directory / CONFIG_NAME).write_text(text + "\n", encoding="utf-8")


def _weights(draft: EagleDraft | Eagle3Draft | MedusaHeads) -> dict[str, Tensor]:
    left_out = set()
    if not isinstance(draft, Eagle3Draft):
        left_out |= {"lm_head.weight", "lm_head.bias"}
    if not isinstance(draft, MedusaHeads) and not draft.config.own_embeddings:
        left_out.add(EMBEDDINGS)
    return {key: _stored(tensor) for key, tensor in draft.state_dict().items() if key not in left_out}


def _stored(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return (tensor.to(STORED) if tensor.is_floating_point() else tensor).contiguous().clone()


def _eagle_config(draft: EagleDraft | Eagle3Draft) -> dict[str, Any]:
    config, layer = draft.config, draft.config.layer.to_dict()
    assert not (config.extra_norms or config.input_norm), "the original format has no place for these norms"
    keys: dict[str, Any] = {"model_type": "llama"}
    keys |= {key: layer[key] for key in _LAYER_KEYS if layer.get(key) is not None}
    keys |= {"vocab_size": config.target_vocab_size, "torch_dtype": "float16"}
    if isinstance(draft, Eagle3Draft):
        keys |= {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": config.draft_vocab_size,
            "target_hidden_size": config.target_hidden_size,
            "eagle_config": {LAYER_IDS_KEY: list(config.layer_ids), "use_aux_hidden_state": True},
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
