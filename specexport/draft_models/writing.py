"""Writes the two files of a draft: model.safetensors in fp16 and config.json. What the keys mean is for others."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specexport.draft_models.files import CONFIG_NAME, WEIGHTS_NAME
from specexport.sources.scratch import new_scratch, remove_dead_scratches, remove_tree

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
