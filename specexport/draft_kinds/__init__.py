"""The build side of each kind of draft.

A kind is one module here: its section of the recipe, its checkpoint, what it asks of the target's graph, how its own
graph is traced, compared and run, and what the manifest says of it. `register` adds one that another distribution
brings.
"""

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_
from typing import Annotated, Any

from pydantic import BaseModel, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from specexport.draft_kinds.eagle import EagleRecipe
from specexport.draft_kinds.kind import DraftKind
from specexport.draft_kinds.layer_skip import LayerSkipRecipe
from specexport.draft_kinds.lookup import NgramRecipe, NoneRecipe
from specexport.draft_kinds.medusa import MedusaRecipe
from specexport.draft_kinds.model import ModelRecipe
from specruntime.drafts.kind import add_kind

__all__ = [
    "KINDS",
    "AnyKind",
    "DraftKind",
    "EagleRecipe",
    "LayerSkipRecipe",
    "MedusaRecipe",
    "ModelRecipe",
    "NgramRecipe",
    "NoneRecipe",
    "register",
]

KINDS: list[type[DraftKind]] = [
    NoneRecipe,
    NgramRecipe,
    ModelRecipe,
    LayerSkipRecipe,
    MedusaRecipe,
    EagleRecipe,
]


class AnyKind:
    """In the annotation of a field: one of the kinds that are known when the schema is made, chosen by `kind`."""

    def members(self) -> Iterable[type[BaseModel]]:
        """Return the models that the field may hold."""
        return KINDS

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(Annotated[reduce(or_, KINDS), Field(discriminator="kind")])


def register(kind: type[DraftKind]) -> Callable[[], None]:
    """Add a kind: recipes may have its section from now on. What is returned takes it out again.

    Raises `InvalidArgument` where another kind has one of its names.
    """
    return add_kind(KINDS, kind, _renew_schema)


def _renew_schema() -> None:
    from specexport.recipe.schema import Recipe  # which imports the kinds

    Recipe.model_rebuild(force=True)
