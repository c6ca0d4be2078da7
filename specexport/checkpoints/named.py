"""The checkpoints a recipe names: "target", and "draft" where another checkpoint drafts."""

from collections.abc import Callable
from typing import Any

from specexport.cache.context import Announce
from specexport.checkpoints.loading import Checkpoint, load_checkpoint
from specexport.checkpoints.outline import require_positions
from specexport.draft_models import DraftTarget, draft_target
from specexport.recipe.naming import naming_source
from specexport.recipe.schema import Recipe


class RecipeCheckpoints:
    """Loaded when first needed and kept as long as this object.

    Raises what `load_checkpoint` raises, and the kind of draft.
    """

    def __init__(self, recipe: Recipe, announce: Announce) -> None:
        self._recipe = recipe
        self._announce = announce
        self._loaded: dict[str, Checkpoint] = {}

    def loader(self, name: str) -> Callable[[], Checkpoint]:
        return lambda: self._load(name)

    def load_draft(self) -> tuple[Any, DraftTarget]:
        """Return the module of a draft on the target's hidden states, and what it takes from the target."""
        target = self._load("target")
        side = draft_target(target.model, name=target.name, vocab_size=target.vocab_size)
        self._announce("loading the draft into PyTorch")
        with naming_source("draft"):
            return self._recipe.draft.load(side), side

    def _load(self, name: str) -> Checkpoint:
        if name not in self._loaded:
            recipe = self._recipe
            target = self._load("target") if name == "draft" else None
            self._announce(f"loading the {name} into PyTorch")
            spec = (recipe.draft.checkpoint if name == "draft" else None) or recipe.target
            loaded = load_checkpoint(spec, recipe.precision, target=target)
            require_positions(recipe, name, loaded.name, loaded.config)
            self._loaded[name] = loaded
        return self._loaded[name]
