"""Digests of the checkpoints that a build depends on. Imports neither torch nor onnx."""

import json
from importlib.metadata import version

from specexport.cache.entries import text_sha256
from specexport.checkpoints.address import parse_address
from specexport.checkpoints.local import Located, is_pruned
from specexport.checkpoints.locate import locate, locate_draft
from specexport.recipe.naming import naming_source
from specexport.recipe.schema import EagleDraft, MedusaDraft, ModelDraft, ModelSource, NoiseSource, Recipe


def source_digest(spec: ModelSource, target_digest: str = "") -> str:
    """Hex SHA-256 that changes when the checkpoint does, without loading it; files are fetched if need be.

    `target_digest` is the digest of the target that `noise_of_target` copies, or a pruned draft takes its tables from.
    Raises `SourceError`.
    """
    if isinstance(spec.source, str):
        return files_digest(locate(parse_address(spec.source), spec.sha256), spec, target_digest)
    made = {
        "source": spec.source.model_dump(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
    target_part = target_digest if isinstance(spec.source, NoiseSource) else ""
    return text_sha256(json.dumps(made, sort_keys=True) + target_part)


def files_digest(located: Located, spec: ModelSource, target_digest: str = "") -> str:
    """`source_digest` of a checkpoint whose files are on this machine."""
    if is_pruned(located.directory):
        return text_sha256(located.digest + target_digest)
    # The code that comes with the files computes something else than that of transformers.
    return text_sha256(f"{located.digest} with its code") if spec.trust_remote_code else located.digest


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
