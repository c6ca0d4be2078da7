"""The checkpoints a recipe names, by the graph each becomes: "target", and "draft" where a model drafts."""

from collections.abc import Callable

from specexport.checkpoint import Checkpoint, load_checkpoint
from specexport.digests import checkpoint_digests
from specexport.recipe import ModelDraft, Recipe

Announce = Callable[[str], None]


class RecipeCheckpoints:
    """Loaded when first needed and kept until `release`; the digests cost no loading.

    Raises what `load_checkpoint` and `checkpoint_digests` raise.
    """

    def __init__(self, recipe: Recipe, announce: Announce) -> None:
        self._recipe = recipe
        self._announce = announce
        self._loaded: dict[str, Checkpoint] = {}
        self.digests = checkpoint_digests(recipe)

    def loader(self, name: str) -> Callable[[], Checkpoint]:
        return lambda: self._load(name)

    def release(self) -> None:
        """Frees the PyTorch weights."""
        self._loaded.clear()

    def _load(self, name: str) -> Checkpoint:
        if name not in self._loaded:
            recipe = self._recipe
            target = self._load("target") if name == "draft" else None
            self._announce(f"loading the {name} into PyTorch")
            spec = recipe.draft if name == "draft" and isinstance(recipe.draft, ModelDraft) else recipe.target
            self._loaded[name] = load_checkpoint(spec, recipe.precision, target=target)
        return self._loaded[name]
