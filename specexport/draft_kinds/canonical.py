"""The canonical graph of a draft on the target's features, kept in the cache like the target's own.

Kept under a key of everything that went into it: the draft's files, the target it takes embeddings and LM head from,
precision, capacity, how many candidates it names.
"""

import gc
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from specexport.cache.code_digest import code_digest
from specexport.cache.entries import cache_directory, cached_entry, read_record, text_sha256, write_record
from specexport.context import quiet
from specexport.draft_kinds.kind import DraftKind
from specexport.draft_models import DraftTarget, Eagle1Draft, Eagle3Draft, TappedFeatures
from specexport.export import freeze_rope
from specexport.export.trace_draft import trace_eagle
from specexport.graph.canonical import LOADER, CanonicalGraph
from specexport.graph.files import GraphFacts, save_graph
from specexport.graph.plan import FeatureSpec
from specexport.parity.draft_reference import save_draft_reference, take_layer_reference

PROJECTION_NAME = "projection.npy"
_LIBRARIES = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript")
_NORMED = "hidden.norm"


@dataclass(frozen=True)
class TracedDraft:
    """A draft module as a canonical graph, and what is known of it.

    `save` writes into a directory what the kind's `compare` reads there.
    `taps`: outputs of the target's canonical graph whose concatenation it reads; `projection` [F, sizes of the taps] is
    multiplied onto them by the target.
    `layers`: KV caches of its own. `heads`: of Medusa heads. `tapped`: the layers that an EAGLE-3 reads.
    """

    model: ir.Model
    save: Callable[[Path], None]
    taps: tuple[str, ...] = (_NORMED,)
    projection: NDArray[np.float32] | None = None
    layers: int = 0
    rope: str | None = None
    heads: int | None = None
    tapped: TappedFeatures | None = None


def canonical_draft_key(
    digest: str,
    target_digest: str,
    *,
    precision: str,
    capacity: int,
    candidates: int,
    reference_tokens: int,
    made_by: str = LOADER,
) -> str:
    """Hex digest of all that decides a draft's canonical graph; the digests are those of both checkpoints.

    `made_by`: the module of its kind.
    """
    parts = {
        "draft": digest,
        "target": target_digest,
        "precision": precision,
        "capacity": capacity,
        "candidates": candidates,
        "reference_tokens": reference_tokens,
        "code": code_digest(__name__, LOADER, made_by),
        **{library: version(library) for library in _LIBRARIES},
    }
    return text_sha256(json.dumps(parts, sort_keys=True))


def export_canonical_draft(
    key: str,
    kind: DraftKind,
    load: Callable[[], tuple[Any, DraftTarget]],
    *,
    capacity: int,
    reference_tokens: int,
    force: bool = False,
) -> CanonicalGraph:
    """Return the canonical graph of `key`, and what PyTorch computes for `reference_tokens` random rows.

    `load` is called only when the cache does not hold them intact (or `force`). Raises what it raises, and
    `CheckpointUnsupported`.
    """
    place = cache_directory() / "canonical" / key

    def fill(directory: Path) -> None:
        module, target = load()
        tokens = max(1, min(reference_tokens, capacity // 2))
        with quiet():
            traced = kind.trace(module, target, capacity=capacity, tokens=tokens)
            _write_entry(traced, target, directory, capacity)
        gc.collect()  # the traced program is full of cycles that hold tensors

    cached_entry(place, fill, force=force)
    record = read_record(place)
    return CanonicalGraph(
        key=key,
        directory=place,
        name=kind.source_name or kind.kind,
        facts=GraphFacts(**record["facts"]),
        tokenizer=None,
        eos_token_ids=(),
        rope=record["rope"],
        heads=record["heads"],
    )


def read_features(draft: CanonicalGraph) -> FeatureSpec:
    """Return what the target must compute for the draft: with EAGLE-3 the projection of its taps as well."""
    record = read_record(draft.directory)
    projection: NDArray[np.float32] | None = None
    if (draft.directory / PROJECTION_NAME).is_file():
        projection = np.load(draft.directory / PROJECTION_NAME, allow_pickle=False)
    return FeatureSpec(taps=tuple(record["taps"]), projection=projection)


def read_tapped(draft: CanonicalGraph) -> TappedFeatures | None:
    """Return the layers of the target that an EAGLE-3 draft reads, and how that is known; None for other kinds."""
    found = read_record(draft.directory)["tapped"]
    return TappedFeatures(tuple(found["entering"]), found["reason"], found["doubt"]) if found else None


def trace_layer(
    draft: Eagle1Draft | Eagle3Draft, target: DraftTarget, *, capacity: int, candidates: int, tokens: int
) -> TracedDraft:
    """Return the canonical graph of an EAGLE layer; the target projects the features that EAGLE-3 reads."""
    rope = freeze_rope(draft, capacity)
    sizes = {"vocab_size": target.vocab_size, "padded_vocab_size": target.padded_vocab_size}
    reference = take_layer_reference(draft, tokens=tokens, **sizes)
    save = partial(save_draft_reference, reference)
    model = trace_eagle(draft, capacity=capacity, candidates=candidates, **sizes)
    layers = draft.config.layer.num_hidden_layers
    if not isinstance(draft, Eagle3Draft):
        return TracedDraft(model, save, layers=layers, rope=rope)
    return TracedDraft(
        model,
        save,
        taps=tuple(f"hidden.{layer}" for layer in draft.config.layer_ids),
        projection=draft.fc.weight.detach().float().numpy(),
        layers=layers,
        rope=rope,
        tapped=draft.config.tapped,
    )


def _write_entry(traced: TracedDraft, target: DraftTarget, directory: Path, capacity: int) -> None:
    traced.save(directory)
    save_graph(traced.model, directory)
    if traced.projection is not None:
        np.save(directory / PROJECTION_NAME, traced.projection)
    write_record(
        directory,
        {
            "facts": {
                "capacity": capacity,
                "layers": traced.layers,
                "vocab_size": target.vocab_size,
                "padded_vocab_size": target.padded_vocab_size,
            },
            "rope": traced.rope,
            "taps": list(traced.taps),
            "tapped": asdict(traced.tapped) if traced.tapped is not None else None,
            "heads": traced.heads,
        },
    )
