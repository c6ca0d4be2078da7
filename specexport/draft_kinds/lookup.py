"""Kinds `none` and `ngram`: nothing drafts, or the text itself does. Neither has a checkpoint or a graph."""

from typing import TYPE_CHECKING, ClassVar, Literal

from specexport.draft_kinds.kind import DraftKind
from specexport.recipe.trees import LookupWindow
from specruntime import drafts as manifest
from specruntime.drafts import DraftSpec
from specruntime.manifest.graph import GraphSpec

if TYPE_CHECKING:
    from specexport.graph.canonical import CanonicalGraph

_NARROW_WIDTH = 4


class NoneRecipe(DraftKind):
    """Plain decoding."""

    kind: Literal["none"]

    def spec(self, graph: GraphSpec | None, canonical: "CanonicalGraph | None") -> DraftSpec:
        return manifest.NoneDraft()


class NgramRecipe(LookupWindow, DraftKind):
    """Copies the tokens that followed the last n tokens where they occurred before."""

    vllm_methods: ClassVar = {"ngram": "ngram"}

    kind: Literal["ngram"]
    adaptive: bool = False
    """The number of drafted tokens follows recent acceptance and the measured step times; 0 where drafts do not pay."""

    @property
    def nodes(self) -> int:
        return self.k

    @property
    def default_widths(self) -> tuple[int, ...]:
        """A find is often short, so a narrow window is compiled next to the full one."""
        full = self.k + 1
        return (_NARROW_WIDTH, full) if full > _NARROW_WIDTH + 2 else (full,)

    @property
    def follows_acceptance(self) -> bool:
        return self.adaptive

    def spec(self, graph: GraphSpec | None, canonical: "CanonicalGraph | None") -> DraftSpec:
        return lookup_spec(self)


def lookup_spec(window: LookupWindow) -> manifest.NgramDraft:
    """Prompt lookup as the manifest has it, by itself or next to another draft."""
    return manifest.NgramDraft(k=window.k, max_n=window.max_n, min_n=window.min_n)
