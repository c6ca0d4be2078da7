"""Digests of the checkpoints that a build depends on. Imports neither torch nor onnx."""

import json
from collections.abc import Mapping
from importlib.metadata import version

from specexport.cache.entries import text_sha256
from specexport.checkpoints.address import parse_address
from specexport.checkpoints.local import Located, is_pruned
from specexport.checkpoints.locate import locate
from specexport.recipe.naming import naming_source
from specexport.recipe.schema import ModelSource, NoiseSource, Recipe


def source_digest(spec: ModelSource, target_digest: str = "") -> str:
    """Hex SHA-256 that changes when the checkpoint does, without loading it; files are fetched if need be.

    `target_digest` is the digest of the target that `noise_of_target` copies, or a pruned draft takes its tables from.
    Raises `SourceError`.
    """
    if isinstance(spec.source, str):
        return files_digest(locate(parse_address(spec.source), spec.sha256), spec, target_digest)
    made: dict[str, object] = {"source": spec.source.model_dump()}
    if isinstance(spec.source, NoiseSource):
        made["target"] = target_digest
    return made_digest(made, "torch", "transformers")


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
        if (own := recipe.draft.digest(digests["target"])) is not None:
            digests["draft"] = own
    return digests


def made_digest(made: Mapping[str, object], *libraries: str) -> str:
    """Hex SHA-256 of a checkpoint that is made here, and of the libraries that make it."""
    return text_sha256(json.dumps({**made, **{name: version(name) for name in libraries}}, sort_keys=True))
