"""Digests of what a build depends on: checkpoints and this package's own sources. Imports neither torch nor onnx."""

import hashlib
import json
from functools import cache
from importlib.metadata import version
from pathlib import Path

import specexport
from specexport.recipe import EagleDraft, MedusaDraft, ModelDraft, ModelSource, NoiseSource, Recipe
from specexport.recipe_naming import naming_source
from specexport.sources import locate
from specexport.sources.address import parse_address
from specexport.sources.cache import text_sha256
from specexport.sources.drafts import locate_draft
from specexport.sources.pruned import is_pruned


def source_digest(spec: ModelSource, target_digest: str = "") -> str:
    """Hex SHA-256 that changes when the checkpoint does, without loading it; files are fetched if need be.

    `target_digest` is the digest of the target that `noise_of_target` copies, or a pruned draft takes its tables from.
    Raises `SourceError`.
    """
    if isinstance(spec.source, str):
        located = locate(parse_address(spec.source), spec.sha256)
        return text_sha256(located.digest + target_digest) if is_pruned(located.directory) else located.digest
    made = {
        "source": spec.source.model_dump(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
    target_part = target_digest if isinstance(spec.source, NoiseSource) else ""
    return text_sha256(json.dumps(made, sort_keys=True) + target_part)


def checkpoint_digests(recipe: Recipe) -> dict[str, str]:
    """`source_digest` of each checkpoint a recipe names: "target", and "draft" where another one drafts."""
    with naming_source("target"):
        digests = {"target": source_digest(recipe.target)}
    with naming_source("draft"):
        if isinstance(recipe.draft, ModelDraft):
            digests["draft"] = source_digest(recipe.draft, digests["target"])
        if isinstance(recipe.draft, (EagleDraft, MedusaDraft)):
            digests["draft"] = feature_draft_digest(recipe.draft)
    return digests


def feature_draft_digest(draft: EagleDraft | MedusaDraft) -> str:
    """Hex SHA-256 that changes when the files of a draft on the target's features do, or the layers it is said to read.

    Raises `SourceError`.
    """
    if isinstance(draft.source, str):
        digest = locate_draft(draft.source).digest
        stated = draft.layer_ids if isinstance(draft, EagleDraft) else None
        return digest if stated is None else text_sha256(digest + stated.model_dump_json())
    made = {"kind": draft.kind, "source": draft.source.model_dump(), "torch": version("torch")}
    return text_sha256(json.dumps(made, sort_keys=True))


@cache
def code_digest(*patterns: str) -> str:
    """Of this package's sources that match, so that a changed exporter does not reuse what an older one made."""
    root = Path(specexport.__file__).parent
    paths = sorted(path for pattern in patterns for path in root.glob(pattern))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
