"""A draft's files as tests take them apart and put them together again."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specexport.draft_models import Eagle1Draft, Eagle3Draft, MedusaHeads, save_draft

Weights = dict[str, Tensor]


def stored_in(
    draft: Eagle3Draft | Eagle1Draft | MedusaHeads, directory: Path
) -> tuple[dict[str, Any], Weights]:
    save_draft(draft, directory)
    config = json.loads((directory / "config.json").read_text())
    return config, load_file(directory / "model.safetensors")


def write_files(
    directory: Path, config: dict[str, Any], weights: Weights, name: str = "model.safetensors"
) -> None:
    for path in directory.iterdir():
        path.unlink()
    (directory / "config.json").write_text(json.dumps(config))
    if name.endswith(".safetensors"):
        save_file(weights, directory / name)
    else:
        torch.save(weights, directory / name)


def require_same(found: torch.nn.Module, expected: torch.nn.Module) -> None:
    """Equal weights, up to the fp16 they were stored in."""
    for key, tensor in expected.state_dict().items():
        rounded = tensor.half().to(tensor.dtype) if tensor.is_floating_point() else tensor
        kept = tensor if key.startswith(("embed_tokens", "lm_head")) else rounded
        value = found.state_dict()[key]
        assert torch.equal(value, rounded) or torch.equal(value, kept), key
