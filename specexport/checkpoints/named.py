"""The checkpoints a recipe names: "target", and "draft" where another checkpoint drafts."""

from collections.abc import Callable

from specexport.cache.context import Announce
from specexport.checkpoints.loading import Checkpoint, load_checkpoint
from specexport.checkpoints.locate import locate_draft
from specexport.checkpoints.outline import require_positions
from specexport.draft_models import (
    DraftTarget,
    Eagle3Draft,
    EagleDraft,
    MedusaHeads,
    StatedLayers,
    draft_target,
    load_eagle,
    load_medusa,
)
from specexport.draft_models.random_drafts import random_eagle, random_medusa
from specexport.recipe.naming import naming_source
from specexport.recipe.schema import EagleDraft as EagleRecipe
from specexport.recipe.schema import MedusaDraft as MedusaRecipe
from specexport.recipe.schema import ModelDraft, Recipe

FeatureDraft = EagleDraft | Eagle3Draft | MedusaHeads


class RecipeCheckpoints:
    """Loaded when first needed and kept as long as this object.

    Raises what `load_checkpoint`, `load_eagle` and `load_medusa` raise.
    """

    def __init__(self, recipe: Recipe, announce: Announce) -> None:
        self._recipe = recipe
        self._announce = announce
        self._loaded: dict[str, Checkpoint] = {}

    def loader(self, name: str) -> Callable[[], Checkpoint]:
        return lambda: self._load(name)

    def load_feature_draft(self) -> tuple[FeatureDraft, DraftTarget]:
        """The draft of a recipe whose draft reads the target's features, and what it takes from the target."""
        draft, target = self._recipe.draft, self._load("target")
        assert isinstance(draft, (EagleRecipe, MedusaRecipe)), "only these read features"
        side = draft_target(target.model, name=target.name, vocab_size=target.vocab_size)
        self._announce("loading the draft into PyTorch")
        with naming_source("draft"):
            return _feature_draft(draft, side), side

    def _load(self, name: str) -> Checkpoint:
        if name not in self._loaded:
            recipe = self._recipe
            target = self._load("target") if name == "draft" else None
            self._announce(f"loading the {name} into PyTorch")
            spec = recipe.draft if name == "draft" and isinstance(recipe.draft, ModelDraft) else recipe.target
            loaded = load_checkpoint(spec, recipe.precision, target=target)
            require_positions(recipe, name, loaded.name, loaded.config)
            self._loaded[name] = loaded
        return self._loaded[name]


def feature_draft_name(draft: EagleRecipe | MedusaRecipe) -> str:
    """What messages and the build record call the draft."""
    source = draft.source
    return source if isinstance(source, str) else f"random {draft.kind} (seed {source.random.seed})"


def _feature_draft(draft: EagleRecipe | MedusaRecipe, target: DraftTarget) -> FeatureDraft:
    return _heads(draft, target) if isinstance(draft, MedusaRecipe) else _eagle(draft, target)


def _heads(draft: MedusaRecipe, target: DraftTarget) -> MedusaHeads:
    source = draft.source
    if isinstance(source, str):
        return load_medusa(locate_draft(source).directory, target, feature_draft_name(draft))
    made = source.random
    return random_medusa(target, seed=made.seed, heads=made.heads, layers=made.layers)


def _eagle(draft: EagleRecipe, target: DraftTarget) -> EagleDraft | Eagle3Draft:
    source = draft.source
    if isinstance(source, str):
        stated = _stated_layers(draft)
        return load_eagle(
            locate_draft(source).directory, draft.kind, target, feature_draft_name(draft), stated
        )
    made = source.random
    return random_eagle(draft.kind, target, seed=made.seed, draft_vocab_size=made.draft_vocab_size)


def _stated_layers(draft: EagleRecipe) -> StatedLayers | None:
    ids = draft.layer_ids
    if ids is None:
        return None
    return (
        StatedLayers("entering", ids.entering) if ids.entering else StatedLayers("leaving", ids.leaving or ())
    )
