"""The canonical graph of a checkpoint, kept in the cache: what every backend's variant is derived from.

Kept under a key of everything that went into it, so that a build with an unchanged checkpoint and capacity loads no
weights into PyTorch and traces nothing. With it is kept what eager PyTorch computes for a fixed random token sequence,
taken while the checkpoint is loaded, so that no later stage needs the weights in PyTorch again.
"""

import gc
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from shutil import copytree

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from specexport.cache.code_digest import code_digest
from specexport.cache.entries import cache_directory, cached_entry, read_record, text_sha256, write_record
from specexport.checkpoints.loading import Checkpoint
from specexport.context import quiet
from specexport.export import check_supported, find_residual_stream, freeze_rope, trace_graph, watching
from specexport.graph.files import GraphFacts, save_graph

TOKENIZER_DIRECTORY = "tokenizer"
LOADER = "specexport.checkpoints.named"  # the module whose `load` a build gives to the canonical stages
_LIBRARIES = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript")
REFERENCE_NAME = "reference.npz"
Rows = NDArray[np.float32]
_SEED = 20240601


@dataclass(frozen=True)
class CanonicalGraph:
    """A traced graph on disk and what is known of the checkpoint it came from.

    `hidden_size` is the width of its `hidden.N` outputs; None where it has none, for the reason in `no_hidden`.
    """

    key: str
    directory: Path  # GRAPH_NAME and WEIGHTS_NAME
    name: str
    facts: GraphFacts
    tokenizer: Path | None
    eos_token_ids: tuple[int, ...]
    rope: str | None
    hidden_size: int | None = None
    no_hidden: str | None = None
    heads: int | None = None  # of Medusa heads
    notes: tuple[str, ...] = ()  # on its checkpoint, for the build to say


def canonical_key(digest: str, *, precision: str, capacity: int, reference_tokens: int) -> str:
    """Hex digest of all that decides a canonical graph and its reference; `digest` is the checkpoint's."""
    parts = {
        "checkpoint": digest,
        "precision": precision,
        "capacity": capacity,
        "reference_tokens": reference_tokens,
        "code": code_digest(__name__, LOADER),
        **{library: version(library) for library in _LIBRARIES},
    }
    return text_sha256(json.dumps(parts, sort_keys=True))


def is_exported(key: str) -> bool:
    """Whether the cache has an entry of `key`; whether it is intact is found when it is used."""
    return (cache_directory() / "canonical" / key).is_dir()


def export_canonical(
    key: str, load: Callable[[], Checkpoint], *, capacity: int, reference_tokens: int, force: bool = False
) -> CanonicalGraph:
    """Return the canonical graph of `key`, and `reference_tokens` positions of what PyTorch computes (at most the
    capacity).

    `load` is called only when the cache does not hold them intact (or `force`).

    Raises `CheckpointUnsupported` or `SourceError`.
    """
    place = cache_directory() / "canonical" / key

    def fill(directory: Path) -> None:
        _write_entry(load(), directory, capacity, reference_tokens)
        gc.collect()  # the traced program is full of cycles that hold tensors

    cached_entry(place, fill, force=force)
    return _read_entry(place, key)


def _write_entry(checkpoint: Checkpoint, directory: Path, capacity: int, reference_tokens: int) -> None:
    with quiet():
        layout = check_supported(checkpoint.model)
        rope = freeze_rope(checkpoint.model, capacity)
        tokens = min(reference_tokens, capacity)
        save_reference(
            take_reference(checkpoint.model, vocab_size=checkpoint.vocab_size, tokens=tokens), directory
        )
        traced = trace_graph(checkpoint.model, layout, capacity=capacity, vocab_size=checkpoint.vocab_size)
        stream = traced.stream
        save_graph(traced.model, directory)
    if checkpoint.tokenizer is not None:
        copytree(checkpoint.tokenizer, directory / TOKENIZER_DIRECTORY)
    record = {
        "name": checkpoint.name,
        "facts": {
            "capacity": capacity,
            "layers": layout.layers,
            "vocab_size": traced.vocab_size,
            "padded_vocab_size": traced.padded_vocab_size,
        },
        "eos_token_ids": list(checkpoint.eos_token_ids),
        "rope": rope,
        "hidden_size": None if isinstance(stream, str) else stream.hidden_size,
        "no_hidden": stream if isinstance(stream, str) else None,
        "notes": list(checkpoint.notes),
    }
    write_record(directory, record)


def _read_entry(place: Path, key: str) -> CanonicalGraph:
    record = read_record(place)
    tokenizer = place / TOKENIZER_DIRECTORY
    return CanonicalGraph(
        key=key,
        directory=place,
        name=record["name"],
        facts=GraphFacts(**record["facts"]),
        tokenizer=tokenizer if tokenizer.is_dir() else None,
        eos_token_ids=tuple(record["eos_token_ids"]),
        rope=record["rope"],
        hidden_size=record["hidden_size"],
        no_hidden=record["no_hidden"],
        notes=tuple(record["notes"]),
    )


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
