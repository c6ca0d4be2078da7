"""What eager PyTorch computes for a fixed random token sequence, cached with the canonical graph.

Taken once while the checkpoint is loaded for its export, so that no later stage needs the weights in PyTorch again.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from specexport.export import find_residual_stream, watching

REFERENCE_NAME = "reference.npz"
Rows = NDArray[np.float32]
_SEED = 20240601


@dataclass(frozen=True)
class ParityReference:
    """`ids` [T]; `logits` [T, vocab] of real tokens; `keys` and `values` per layer [kv_heads, T, head_dim].

    `hidden` is [T, hidden] by the name of the canonical output; empty where the layers could not be identified.
    """

    ids: NDArray[np.int64]
    logits: NDArray[np.float32]
    keys: tuple[NDArray[np.float32], ...]
    values: tuple[NDArray[np.float32], ...]
    hidden: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)


def take_reference(model: PreTrainedModel, *, vocab_size: int, tokens: int) -> ParityReference:
    """One forward pass over `tokens` random ids; sliding windows are applied by mask, so every row is kept."""
    ids = np.random.default_rng(_SEED).integers(0, vocab_size, tokens)
    cache = DynamicCache()
    stream = find_residual_stream(model)
    watched = nullcontext() if isinstance(stream, str) else watching(model, stream)
    with watched as states, torch.no_grad():
        logits = model(input_ids=torch.from_numpy(ids)[None], past_key_values=cache, use_cache=True).logits
    layers = [layer for layer in cache.layers if isinstance(layer, DynamicLayer)]
    return ParityReference(
        ids,
        logits[0, :, :vocab_size].float().numpy(),
        tuple(_rows(layer.keys) for layer in layers),
        tuple(_rows(layer.values) for layer in layers),
        {name: _rows(state) for name, state in (states.by_name() if states is not None else {}).items()},
    )


def _rows(tensor: torch.Tensor | None) -> NDArray[np.float32]:
    assert tensor is not None, "the pass above filled every layer"
    rows: NDArray[np.float32] = tensor[0].float().numpy()
    return rows


def save_reference(reference: ParityReference, directory: Path) -> None:
    """Write `REFERENCE_NAME` into `directory`."""
    rows = {**named_rows(reference.keys, reference.values), **reference.hidden}
    np.savez(
        directory / REFERENCE_NAME, allow_pickle=False, ids=reference.ids, logits=reference.logits, **rows
    )


def load_reference(directory: Path) -> ParityReference:
    """Return what `save_reference` wrote."""
    with np.load(directory / REFERENCE_NAME, allow_pickle=False) as file:
        return ParityReference(
            file["ids"],
            file["logits"],
            *rows_of(file),
            {name: file[name] for name in file.files if name.startswith("hidden.")},
        )


def named_rows(keys: Sequence[Rows], values: Sequence[Rows]) -> dict[str, Rows]:
    """Return the KV rows of every layer, by the names they have in a file."""
    kinds = {"key": keys, "value": values}
    return {f"{kind}.{n}": rows for kind, layers in kinds.items() for n, rows in enumerate(layers)}


def rows_of(file: Mapping[str, Rows]) -> tuple[tuple[Rows, ...], tuple[Rows, ...]]:
    """Keys and values by layer of a file that was written with `named_rows`."""
    layers = range(sum(name.startswith("key.") for name in file))
    return tuple(file[f"key.{n}"] for n in layers), tuple(file[f"value.{n}"] for n in layers)
