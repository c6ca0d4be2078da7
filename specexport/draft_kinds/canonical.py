"""The canonical graph of a draft on the target's features, kept in the cache like the target's own.

Kept under a key of everything that went into it: the draft's files, the target it takes embeddings and LM head from,
precision, capacity, how many candidates it names.
"""

import gc
import json
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specexport.cache.code_digest import code_digest
from specexport.cache.entries import cache_directory, cached_entry, read_record, text_sha256, write_record
from specexport.draft_models import DraftTarget, Eagle3Draft, EagleDraft, MedusaHeads, TappedFeatures
from specexport.export import freeze_rope
from specexport.export.trace_draft import trace_eagle, trace_medusa
from specexport.graph.canonical import LOADER, CanonicalGraph
from specexport.graph.files import GraphFacts, save_graph
from specexport.graph.plan import FeatureSpec
from specexport.parity.draft_reference import save_draft_reference, take_draft_reference
from specexport.quiet import quiet

PROJECTION_NAME = "projection.npy"
_LIBRARIES = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript")
_NORMED = "hidden.norm"

HeadDraft = EagleDraft | Eagle3Draft | MedusaHeads


def canonical_draft_key(
    digest: str, target_digest: str, *, precision: str, capacity: int, candidates: int, reference_tokens: int
) -> str:
    """Hex digest of all that decides a draft's canonical graph; the digests are those of both checkpoints."""
    parts = {
        "draft": digest,
        "target": target_digest,
        "precision": precision,
        "capacity": capacity,
        "candidates": candidates,
        "reference_tokens": reference_tokens,
        "code": code_digest(__name__, LOADER),
        **{library: version(library) for library in _LIBRARIES},
    }
    return text_sha256(json.dumps(parts, sort_keys=True))


def export_canonical_draft(
    key: str,
    load: Callable[[], tuple[HeadDraft, DraftTarget]],
    *,
    name: str,
    capacity: int,
    candidates: int,
    reference_tokens: int,
    force: bool = False,
) -> CanonicalGraph:
    """The canonical graph of `key`, and what PyTorch computes for `reference_tokens` random rows.

    `load` is called only when the cache does not hold them intact (or `force`). Raises what it raises, and
    `CheckpointUnsupported`.
    """
    place = cache_directory() / "canonical" / key

    def fill(directory: Path) -> None:
        draft, target = load()
        with quiet():
            _write_entry(draft, target, directory, capacity, candidates, reference_tokens)
        gc.collect()  # the traced program is full of cycles that hold tensors

    cached_entry(place, fill, force=force)
    record = read_record(place)
    return CanonicalGraph(
        key=key,
        directory=place,
        name=name,
        facts=GraphFacts(**record["facts"]),
        tokenizer=None,
        eos_token_ids=(),
        rope=record["rope"],
        heads=record["heads"],
    )


def read_features(draft: CanonicalGraph) -> FeatureSpec:
    """What the target must compute for the draft: with EAGLE-3 the projection of its taps as well."""
    record = read_record(draft.directory)
    projection: NDArray[np.float32] | None = None
    if (draft.directory / PROJECTION_NAME).is_file():
        projection = np.load(draft.directory / PROJECTION_NAME, allow_pickle=False)
    return FeatureSpec(taps=tuple(record["taps"]), projection=projection)


def read_tapped(draft: CanonicalGraph) -> TappedFeatures | None:
    """The layers of the target that an EAGLE-3 draft reads, and how that is known; None for other kinds."""
    found = read_record(draft.directory)["tapped"]
    return TappedFeatures(tuple(found["entering"]), found["reason"], found["doubt"]) if found else None


def _write_entry(
    draft: HeadDraft,
    target: DraftTarget,
    directory: Path,
    capacity: int,
    candidates: int,
    reference_tokens: int,
) -> None:
    vocab, padded = target.vocab_size, target.padded_vocab_size
    rope = None if isinstance(draft, MedusaHeads) else freeze_rope(draft, capacity)
    tokens = max(1, min(reference_tokens, capacity // 2))
    reference = take_draft_reference(draft, vocab_size=vocab, padded_vocab_size=padded, tokens=tokens)
    save_draft_reference(reference, directory)
    if isinstance(draft, MedusaHeads):
        model = trace_medusa(draft, vocab_size=vocab, padded_vocab_size=padded, candidates=candidates)
    else:
        model = trace_eagle(
            draft, capacity=capacity, vocab_size=vocab, padded_vocab_size=padded, candidates=candidates
        )
    save_graph(model, directory)
    taps = [_NORMED]
    if isinstance(draft, Eagle3Draft):
        taps = [f"hidden.{layer}" for layer in draft.config.layer_ids]
        np.save(directory / PROJECTION_NAME, draft.fc.weight.detach().float().numpy())
    facts = {
        "capacity": capacity,
        "layers": 0 if isinstance(draft, MedusaHeads) else draft.config.layer.num_hidden_layers,
        "vocab_size": vocab,
        "padded_vocab_size": padded,
    }
    heads = draft.config.heads if isinstance(draft, MedusaHeads) else None
    tapped = draft.config.tapped if isinstance(draft, Eagle3Draft) else None
    write_record(
        directory,
        {
            "facts": facts,
            "rope": rope,
            "taps": taps,
            "tapped": asdict(tapped) if tapped is not None else None,
            "heads": heads,
        },
    )
