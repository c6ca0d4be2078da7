"""Writes a draft in the form recipes/drafts ship: model.safetensors in fp16, and config.json, which names its target.

What the target has (embeddings, a shared LM head) is left out; the names of weights are the published ones, so that
other software reads the files as well.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specexport.cache.entries import new_scratch, remove_dead_scratches, remove_tree
from specexport.draft_models.configs import embeddings_sha256
from specexport.draft_models.eagle import Eagle1Draft, Eagle3Draft
from specexport.draft_models.eagle_formats import EMBEDDINGS, SHA256_KEY
from specexport.draft_models.files import CONFIG_NAME, WEIGHTS_NAME
from specexport.draft_models.medusa import HEADS_KEY, LAYERS_KEY, MedusaHeads
from specexport.draft_models.tapped_layers import LAYER_IDS_KEY, MEANING_KEY

STORED = torch.float16
# Of a LlamaConfig: what decides the shape and the arithmetic of its layers.
LAYER_KEYS = (
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


def write_draft_files(
    directory: Path, weights: Mapping[str, Tensor], config: dict[str, Any], extra: dict[str, Any] | None
) -> None:
    """Weights that are not numbers with a fraction stay as they are. `extra` are further keys of the config.

    A draft that lies in `directory` already is replaced when both files are whole.
    """
    directory.mkdir(parents=True, exist_ok=True)
    remove_dead_scratches(directory)
    scratch = new_scratch(directory)
    try:
        stored = {key: _stored(tensor) for key, tensor in weights.items()}
        save_file(stored, scratch / WEIGHTS_NAME, metadata={"format": "pt"})
        text = json.dumps(config | (extra or {}), indent=2, ensure_ascii=False)
        (scratch / CONFIG_NAME).write_text(text + "\n", encoding="utf-8")
        for name in (WEIGHTS_NAME, CONFIG_NAME):
            (scratch / name).replace(directory / name)
    finally:
        remove_tree(scratch)


def _stored(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return (tensor.to(STORED) if tensor.is_floating_point() else tensor).contiguous().clone()


def save_draft(
    draft: Eagle1Draft | Eagle3Draft | MedusaHeads, directory: Path, *, extra: dict[str, Any] | None = None
) -> None:
    """Write into `directory` the files that `load_eagle` and `load_medusa` read back.

    `extra` are further keys of the config, for people: what the draft was trained on, and how.
    """
    config = _medusa_config(draft) if isinstance(draft, MedusaHeads) else _eagle_config(draft)
    write_draft_files(directory, _weights(draft), config, extra)


def _weights(draft: Eagle1Draft | Eagle3Draft | MedusaHeads) -> dict[str, Tensor]:
    left_out = set()
    if not isinstance(draft, Eagle3Draft):
        left_out |= {"lm_head.weight", "lm_head.bias"}
    if not isinstance(draft, MedusaHeads) and not draft.config.own_embeddings:
        left_out.add(EMBEDDINGS)
    return {key: tensor for key, tensor in draft.state_dict().items() if key not in left_out}


def _eagle_config(draft: Eagle1Draft | Eagle3Draft) -> dict[str, Any]:
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
