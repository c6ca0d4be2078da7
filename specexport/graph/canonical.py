"""The canonical graph of a checkpoint, kept in the cache: what every backend's variant is derived from.

Kept under a key of everything that went into it, so that a build with an unchanged checkpoint and capacity loads no
weights into PyTorch and traces nothing.
"""

import gc
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from shutil import copytree

from specexport.cache.code_digest import code_digest
from specexport.cache.entries import cache_directory, cached_entry, read_record, text_sha256, write_record
from specexport.checkpoints.loading import Checkpoint
from specexport.export import check_supported, freeze_rope, trace_graph
from specexport.graph.files import GraphFacts, save_graph
from specexport.parity.reference import save_reference, take_reference
from specexport.quiet import quiet

TOKENIZER_DIRECTORY = "tokenizer"
LOADER = "specexport.checkpoints.named"  # the module whose `load` a build gives to the canonical stages
_LIBRARIES = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript")


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
