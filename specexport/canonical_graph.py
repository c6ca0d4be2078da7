"""The canonical graph of a checkpoint, kept in the cache: what every backend's variant is derived from.

Kept under a key of everything that went into it, so that a build with an unchanged checkpoint and capacity loads no
weights into PyTorch and traces nothing.
"""

import gc
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from shutil import copytree

from specexport.checkpoint import Checkpoint, check_context
from specexport.digests import code_digest
from specexport.export import check_supported, freeze_rope, trace_graph
from specexport.graph_files import GraphFacts, save_graph
from specexport.parity_reference import save_reference, take_reference
from specexport.quiet import quiet
from specexport.sources.cache import cache_directory, cached_entry, discard_entry, file_sha256, text_sha256

RECORD_NAME = "record.json"
TOKENIZER_DIRECTORY = "tokenizer"
_LIBRARIES = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript")


@dataclass(frozen=True)
class CanonicalGraph:
    """A traced graph on disk and what is known of the checkpoint it came from."""

    key: str
    directory: Path  # GRAPH_NAME and WEIGHTS_NAME
    name: str
    facts: GraphFacts
    tokenizer: Path | None
    eos_token_ids: tuple[int, ...]
    rope: str | None


def canonical_key(digest: str, *, precision: str, capacity: int, reference_tokens: int) -> str:
    """Hex digest of all that decides a canonical graph and its reference; `digest` is the checkpoint's."""
    parts = {
        "checkpoint": digest,
        "precision": precision,
        "capacity": capacity,
        "reference_tokens": reference_tokens,
        "code": code_digest("export/*.py", "graph_files.py", "canonical_graph.py", "parity_reference.py"),
        **{library: version(library) for library in _LIBRARIES},
    }
    return text_sha256(json.dumps(parts, sort_keys=True))


def export_canonical(
    key: str, load: Callable[[], Checkpoint], *, capacity: int, reference_tokens: int, force: bool = False
) -> CanonicalGraph:
    """The canonical graph of `key`, and `reference_tokens` positions of what PyTorch computes (at most the capacity).

    `load` is called only when the cache does not hold them intact (or `force`).

    Raises `CheckpointUnsupported` or `SourceError`.
    """
    place = cache_directory() / "canonical" / key
    if force or not is_intact(place):
        discard_entry(place)
    cached_entry(place, lambda directory: _write_entry(load(), directory, capacity, reference_tokens))
    gc.collect()  # the traced program is full of cycles that hold tensors
    return _read_entry(place, key)


def _write_entry(checkpoint: Checkpoint, directory: Path, capacity: int, reference_tokens: int) -> None:
    check_context(checkpoint, capacity)
    with quiet():
        layout = check_supported(checkpoint.model)
        rope = freeze_rope(checkpoint.model, capacity)
        tokens = min(reference_tokens, capacity)
        save_reference(
            take_reference(checkpoint.model, vocab_size=checkpoint.vocab_size, tokens=tokens), directory
        )
        traced = trace_graph(checkpoint.model, layout, capacity=capacity, vocab_size=checkpoint.vocab_size)
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
    }
    write_record(directory, record)


def _read_entry(place: Path, key: str) -> CanonicalGraph:
    record = json.loads((place / RECORD_NAME).read_text())
    tokenizer = place / TOKENIZER_DIRECTORY
    return CanonicalGraph(
        key=key,
        directory=place,
        name=record["name"],
        facts=GraphFacts(**record["facts"]),
        tokenizer=tokenizer if tokenizer.is_dir() else None,
        eos_token_ids=tuple(record["eos_token_ids"]),
        rope=record["rope"],
    )


def write_record(directory: Path, record: Mapping[str, object]) -> None:
    """`record` and the hashes of the files already in `directory`, for `is_intact`."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    hashes = {path.relative_to(directory).as_posix(): file_sha256(path) for path in paths}
    (directory / RECORD_NAME).write_text(json.dumps({**record, "sha256": hashes}, indent=1))


def is_intact(place: Path) -> bool:
    """Whether a cached entry still holds the bytes it was written with."""
    try:
        record = json.loads((place / RECORD_NAME).read_text())
        return all(file_sha256(place / name) == digest for name, digest in record["sha256"].items())
    except (OSError, ValueError, KeyError):
        return False
