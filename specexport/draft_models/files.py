"""The files of a published draft: config.json, and weights as safetensors or, with `weights_only`, as pickles.

Reads them whole; what the keys mean is for the formats to say.
"""

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from specexport.errors import CheckpointUnsupported, SourceError, shorten_reason

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
MEDUSA_NAME = "medusa_lm_head"
_WEIGHT_FILES = (
    WEIGHTS_NAME,
    f"{MEDUSA_NAME}.safetensors",
    "pytorch_model.bin",
    f"{MEDUSA_NAME}.pt",
)


@dataclass(frozen=True)
class DraftFiles:
    """What lies in a draft's directory. `name` is what messages call it."""

    name: str
    config: dict[str, Any]
    weights: dict[str, Tensor]


def read_draft_files(directory: Path, name: str) -> DraftFiles:
    """Raise `SourceError` for what is not there, `CheckpointUnsupported` for what cannot be read."""
    return DraftFiles(name, read_config(directory, name), _read_weights(directory, name))


def read_config(directory: Path, name: str) -> dict[str, Any]:
    """Return the draft's config.json. Raises as `read_draft_files`."""
    path = directory / CONFIG_NAME
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SourceError(
            f"{name}: its {CONFIG_NAME} cannot be read ({error.strerror}); expected one next to the weights"
        ) from None
    except ValueError as error:
        raise CheckpointUnsupported(f"{name}: its {CONFIG_NAME} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise CheckpointUnsupported(
            f"{name}: its {CONFIG_NAME} is a {type(config).__name__}, expected keys and values"
        )
    return config


def tensor_names(directory: Path) -> frozenset[str]:
    """Names of a draft's weights, which are not read; empty for pickles and files that `read_draft_files` refuses."""
    try:
        if (index := directory / INDEX_NAME).is_file():
            return frozenset(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        for file in (directory / name for name in _WEIGHT_FILES if name.endswith(".safetensors")):
            if file.is_file():
                with safe_open(file, "pt") as weights:
                    return frozenset(weights.keys())
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        pass
    return frozenset()


def _read_weights(directory: Path, name: str) -> dict[str, Tensor]:
    if (directory / INDEX_NAME).is_file():
        return _read_shards(directory, name)
    found = next((directory / file for file in _WEIGHT_FILES if (directory / file).is_file()), None)
    if found is None:
        raise SourceError(f"{name}: no weights of a draft in it, expected one of {', '.join(_WEIGHT_FILES)}")
    return _read_file(found, name)


def _read_shards(directory: Path, name: str) -> dict[str, Tensor]:
    try:
        shards = set(json.loads((directory / INDEX_NAME).read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointUnsupported(
            f"{name}: {INDEX_NAME} holds no weight_map; save the draft again"
        ) from None
    weights: dict[str, Tensor] = {}
    for shard in sorted(shards):
        if not isinstance(shard, str) or Path(shard).name != shard or not (directory / shard).is_file():
            raise SourceError(
                f"{name}: {INDEX_NAME} names {shard!r}, expected the name of a file next to it; fetch the draft again"
            )
        weights |= _read_file(directory / shard, name)
    return weights


def _read_file(path: Path, name: str) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, OSError, RuntimeError, EOFError, ValueError) as error:
        reason = shorten_reason((str(error).strip().splitlines() or [type(error).__name__])[0])
        raise CheckpointUnsupported(
            f"{name}: {path.name} cannot be read: {reason}; fetch it again, or save it as safetensors"
        ) from None
    if not isinstance(weights, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in weights.items()
    ):
        raise CheckpointUnsupported(
            f"{name}: {path.name} holds more than weights by name; save its state_dict"
        )
    return weights
