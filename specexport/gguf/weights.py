"""Reads a GGUF file's tensors as a transformers model's weights: every tensor is used, or refused by name.

Numbers are those of the `gguf` package's dequantiser. Names, and what conversion changed about a tensor, are
transformers' tables.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig, modeling_gguf_pytorch_utils

from specexport.errors import CheckpointUnsupported
from specexport.gguf.metadata import rope_tables

# transformers' tables of tensors have rows for these by the file's own architecture names.
_PROCESSORS: Mapping[str, Any] = modeling_gguf_pytorch_utils.TENSOR_PROCESSORS


def gguf_weights(source: str, path: Path, config: PretrainedConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the weights by the names of the model that `config` describes, in `dtype`.

    Raises `CheckpointUnsupported` for a tensor that this model has no place for, or whose type the `gguf` package does
    not know.
    """
    reader = gguf.GGUFReader(str(path))
    architecture = reader.fields["general.architecture"].contents()
    kind = _PROCESSORS.get(architecture, modeling_gguf_pytorch_utils.TensorProcessor)
    processor = kind(config=config.to_dict())
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    names: dict[str, str] = modeling_gguf_pytorch_utils.get_gguf_hf_weights_map(model, processor)
    tensors = [tensor for tensor in reader.tensors if tensor.name not in rope_tables(architecture)]
    _require_places(source, [tensor.name for tensor in tensors], names, architecture)
    gathered: dict[str, Any] = {"tensors": {}}
    weights: dict[str, Tensor] = gathered["tensors"]
    for tensor in tensors:
        found = processor.process(
            weights=dequantised(source, tensor),
            name=tensor.name,
            tensor_key_mapping=names,
            parsed_parameters=gathered,
        )
        if found.name is not None:  # otherwise the processor has put it in `gathered`
            weights[names[found.name]] = torch.from_numpy(np.array(found.weights, np.float32)).to(dtype)
    return {name: weight.to(dtype) for name, weight in weights.items()}


def dequantised(source: str, tensor: gguf.ReaderTensor) -> NDArray[np.float32]:
    """Return the tensor's numbers. Raises `CheckpointUnsupported` for a type that the `gguf` package cannot read."""
    try:
        found: NDArray[np.float32] = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    except (NotImplementedError, KeyError):
        raise CheckpointUnsupported(
            f"{source}: {tensor.name} is stored as {tensor.tensor_type.name}, which the gguf package cannot read; "
            "take a file in another type"
        ) from None
    return found


def _require_places(source: str, found: list[str], names: Mapping[str, str], architecture: str) -> None:
    # A layer's experts are one tensor in the file, named without an ending in transformers' table.
    left = [name for name in found if name not in names and name.removesuffix(".weight") not in names]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise CheckpointUnsupported(
            f"{source}: the architecture {architecture} has no place for the tensor {left[0]}{more}, so what it does "
            "would be lost; take the original checkpoint as a directory"
        )
