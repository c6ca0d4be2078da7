"""The checkpoints a recipe names ("target", and "draft" where another checkpoint drafts): their digests, and loading.

Digests take no library: what needs PyTorch is imported where weights are loaded.
"""

import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from specexport.cache.entries import text_sha256
from specexport.checkpoints.address import parse_address
from specexport.checkpoints.local import Located, is_pruned
from specexport.checkpoints.locate import locate
from specexport.context import Announce
from specexport.recipe.schema import ModelSource, NoiseSource, Recipe
from specexport.recipe.sources import naming_source

if TYPE_CHECKING:
    from specexport.checkpoints.loading import Checkpoint
    from specexport.draft_models import DraftTarget


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


class RecipeCheckpoints:
    """Loaded when first needed and kept as long as this object.

    Raises what `load_checkpoint` raises, and the kind of draft.
    """

    def __init__(self, recipe: Recipe, announce: Announce) -> None:
        self._recipe = recipe
        self._announce = announce
        self._loaded: dict[str, Checkpoint] = {}

    def loader(self, name: str) -> "Callable[[], Checkpoint]":
        return lambda: self._load(name)

    def load_draft(self) -> "tuple[Any, DraftTarget]":
        """Return the module of a draft on the target's hidden states, and what it takes from the target."""
        from specexport.draft_models import draft_target

        target = self._load("target")
        side = draft_target(target.model, name=target.name, vocab_size=target.vocab_size)
        self._announce("loading the draft into PyTorch")
        with naming_source("draft"):
            return self._recipe.draft.load(side), side

    def _load(self, name: str) -> "Checkpoint":
        from specexport.checkpoints.loading import load_checkpoint, require_positions

        if name not in self._loaded:
            recipe = self._recipe
            target = self._load("target") if name == "draft" else None
            self._announce(f"loading the {name} into PyTorch")
            spec = (recipe.draft.checkpoint if name == "draft" else None) or recipe.target
            loaded = load_checkpoint(spec, recipe.precision, target=target)
            require_positions(recipe, name, loaded.name, loaded.config)
            self._loaded[name] = loaded
        return self._loaded[name]
