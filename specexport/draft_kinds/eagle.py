"""Kinds `eagle` and `eagle3`: one decoder layer on the target's hidden states drafts a chain or a tree."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, NonNegativeInt, PositiveInt, Tag, model_validator

from specexport.draft_kinds.kind import FeatureKind
from specexport.graph.plan import DraftPlan, GraphPlan
from specexport.recipe.sources import Address, RecipePart
from specexport.recipe.trees import Drafted, DynamicTreeRecipe, StaticTree, ascending_widths, candidate_count
from specexport.trees import Tree
from specruntime import drafts as manifest
from specruntime.drafts import DraftSpec
from specruntime.drafts import eagle as runtime
from specruntime.manifest.draft import TreeSpec
from specruntime.manifest.graph import LEVEL, LOGITS_SUFFIX, STEP, GraphSpec, Profile
from specruntime.manifest.numbers import Share

if TYPE_CHECKING:
    from specexport.checkpoints.named import RecipeCheckpoints
    from specexport.context import BuildContext
    from specexport.draft_kinds.canonical import TracedDraft
    from specexport.draft_models import DraftTarget, Eagle3Draft, StatedLayers
    from specexport.draft_models import Eagle1Draft as EagleModule
    from specexport.graph.canonical import CanonicalGraph
    from specexport.parity.draft import DraftParityReport
    from specexport.recipe.schema import Recipe
    from specruntime.engines.protocol import Context


_DEFAULT_K = 4
LOGITS = "logits"


class RandomEagle(RecipePart):
    """An EAGLE layer of random weights, as wide as the target, for tests."""

    seed: NonNegativeInt = 0
    draft_vocab_size: PositiveInt | None = Field(None, examples=[8192])
    """EAGLE-3: tokens the draft knows; all of the target's where it is not given."""


class RandomEagleSource(RecipePart):
    """Weights from a seed."""

    random: RandomEagle


class LayerIds(RecipePart):
    """Three layers of the target by number, counted by what enters them or by what leaves them."""

    entering: tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt] | None = Field(
        None, examples=[[2, 15, 27]]
    )
    """The features are what enters these layers; the number of layers stands for what leaves the last."""
    leaving: tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt] | None = Field(
        None, examples=[[1, 14, 26]]
    )
    """The features are what leaves these layers."""

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        if (self.entering is None) is (self.leaving is None):
            found = "neither entering nor leaving" if self.entering is None else "both entering and leaving"
            raise ValueError(f"layer_ids: found {found}, expected one of them")
        return self

    def stated(self) -> "StatedLayers":
        """Return these layers as the loader of drafts takes them."""
        from specexport.draft_models import StatedLayers

        if self.entering is not None:
            return StatedLayers("entering", self.entering)
        return StatedLayers("leaving", self.leaving or ())


def _form(value: Any) -> str:
    return "RandomEagleSource" if isinstance(value, (dict, RandomEagleSource)) else "Address"


EagleSource = Annotated[
    Address | Annotated[RandomEagleSource, Tag("RandomEagleSource")], Discriminator(_form)
]


class EagleRecipe(FeatureKind):
    """One decoder layer on the target's features: a chain, a static tree, or one grown each round."""

    vllm_methods: ClassVar = {"eagle": "eagle", "eagle3": "eagle3"}

    kind: Literal["eagle", "eagle3"]
    source: Annotated[EagleSource, Field(examples=["./my-draft"])]
    """The draft: ./directory, hub://org/name@revision, or a seed."""
    layer_ids: LayerIds | None = None
    """EAGLE-3: the layers of the target that the draft reads, in place of what its config.json says or is taken to
    say."""
    tree: StaticTree | None = None
    """Tokens drafted per round where they are a tree of fixed shape."""
    dynamic_tree: DynamicTreeRecipe | None = None
    """Tokens drafted per round where their tree follows the draft's probabilities."""
    k: Drafted | None = Field(
        default_factory=lambda data: None if data["tree"] or data["dynamic_tree"] else _DEFAULT_K,
        examples=[_DEFAULT_K],
    )
    """Tokens drafted per round where they are a chain."""
    stop_below: Share | None = Field(None, examples=[0.3])
    """For a chain: stop drafting once the draft's own probability of its token falls below this."""

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        stated = [key for key in ("k", "tree", "dynamic_tree") if getattr(self, key) is not None]
        if len(stated) > 1:
            raise ValueError(
                f"{stated[-1]}: found together with {stated[0]}, expected one of k, tree and dynamic_tree"
            )
        if self.stop_below is not None and self.k is None:
            present = stated[0] if stated else "k: null"
            raise ValueError(
                f"stop_below: found {self.stop_below} with {present}, allowed with a chain (k); leave out one of them"
            )
        source = self.source
        if self.layer_ids is not None and (self.kind == "eagle" or not isinstance(source, str)):
            found = (
                "kind eagle, which reads the last hidden state" if self.kind == "eagle" else "random weights"
            )
            raise ValueError(f"layer_ids: found with {found}; allowed with the files of an eagle3 draft")
        if (
            self.kind == "eagle"
            and not isinstance(source, str)
            and source.random.draft_vocab_size is not None
        ):
            raise ValueError(
                "source.random.draft_vocab_size: found with kind eagle, which scores with the target's LM head; "
                "allowed with eagle3"
            )
        return self

    @property
    def shape(self) -> Tree | None:
        """The drafted tokens in window order; None where they are grown each round, or a chain."""
        return self.tree.shape if self.tree is not None else None

    @property
    def nodes(self) -> int:
        if self.dynamic_tree is not None:
            return self.dynamic_tree.nodes
        return len(self.shape.parents) if self.shape is not None else self.depth

    @property
    def depth(self) -> int:
        """Most drafted tokens that one round can accept."""
        if self.dynamic_tree is not None:
            return self.dynamic_tree.depth
        return max(self.shape.depths) if self.shape is not None else self.k or _DEFAULT_K

    @property
    def branch(self) -> int:
        """Nodes of a level that a dynamic tree expands; 0 for other drafts."""
        return self.dynamic_tree.branch if self.dynamic_tree is not None else 0

    @property
    def default_widths(self) -> tuple[int, ...]:
        """As of medusa."""
        return ascending_widths(self.nodes, self.lookup, adaptive=self.adaptive)

    @property
    def width_key(self) -> str:
        if self.dynamic_tree is not None:
            return "draft.dynamic_tree.nodes"
        return "the nodes of draft.tree" if self.tree is not None else "draft.k"

    @property
    def candidates(self) -> int:
        return candidate_count(self.shape.ranks if self.shape is not None else (), self.branch)

    def digest(self, target_digest: str) -> str:
        from specexport.cache.entries import text_sha256

        found, stated = super().digest(target_digest), self.layer_ids
        return found if stated is None else text_sha256(found + stated.model_dump_json())

    def check(self, target: str, layers: int | None) -> None:
        from specexport.checkpoints.locate import locate_draft
        from specexport.draft_models.eagle_formats import require_kind

        if isinstance(self.source, str):
            require_kind(locate_draft(self.source).directory, self.kind, self.source)

    def load(self, target: "DraftTarget") -> "EagleModule | Eagle3Draft":
        from specexport.checkpoints.locate import locate_draft
        from specexport.draft_models import load_eagle
        from specexport.draft_models.random_drafts import random_eagle

        if isinstance(self.source, str):
            stated = self.layer_ids.stated() if self.layer_ids is not None else None
            directory = locate_draft(self.source).directory
            return load_eagle(directory, self.kind, target, self.source_name, stated)
        made = self.source.random
        return random_eagle(self.kind, target, seed=made.seed, draft_vocab_size=made.draft_vocab_size)

    def export(
        self,
        recipe: "Recipe",
        checkpoints: "RecipeCheckpoints",
        digests: Mapping[str, str],
        context: "BuildContext",
    ) -> "CanonicalGraph":
        from specexport.draft_kinds.canonical import read_tapped

        found = super().export(recipe, checkpoints, digests, context)
        if (tapped := read_tapped(found)) is not None and tapped.doubt is not None:
            context.announce(f"warning: {tapped.doubt}")
        return found

    def trace(
        self, module: "EagleModule | Eagle3Draft", target: "DraftTarget", *, capacity: int, tokens: int
    ) -> "TracedDraft":
        from specexport.draft_kinds.canonical import trace_layer

        return trace_layer(module, target, capacity=capacity, candidates=self.candidates, tokens=tokens)

    def compare(self, context: "Context", directory: Path) -> "DraftParityReport":
        from specexport.parity.draft import compare_layer

        return compare_layer(context, directory)

    def plan(self, canonical: "Mapping[str, CanonicalGraph]", *, runs_parts: bool) -> DraftPlan:
        from specexport.draft_kinds.canonical import read_features

        trees = self.k is None
        return DraftPlan(
            GraphPlan(trees=trees, features=read_features(canonical["draft"])), GraphPlan(trees=trees)
        )

    def windows(self, prefill_chunk: int, outputs: Sequence[str]) -> tuple[Profile, ...]:
        from specexport.graph.files import prefill_ladder

        return eagle_profiles(
            outputs,
            prefill_ladder(prefill_chunk),
            k=self.depth,
            tree=self.shape,
            branch=self.branch,
            selective=bool(outputs),
        )

    def spec(self, graph: GraphSpec | None, canonical: "CanonicalGraph | None") -> DraftSpec:
        from specexport.draft_kinds.canonical import read_tapped

        assert graph is not None and canonical is not None, "this kind has a graph of its own"
        tapped, dynamic, shape = read_tapped(canonical), self.dynamic_tree, self.shape
        return manifest.EagleDraft(
            kind=self.kind,
            k=self.depth,
            tree=TreeSpec(parents=shape.parents, ranks=shape.ranks) if shape is not None else None,
            dynamic=runtime.DynamicTree(nodes=dynamic.nodes, branch=dynamic.branch) if dynamic else None,
            stop_below=self.stop_below,
            tapped=runtime.TappedLayers(entering=tapped.entering, reason=tapped.reason) if tapped else None,
            graph=graph,
        )


def eagle_profiles(
    outputs: Sequence[str],
    prefill: tuple[Profile, ...],
    *,
    k: int,
    tree: Tree | None = None,
    branch: int = 0,
    selective: bool,
) -> tuple[Profile, ...]:
    """Windows of an EAGLE draft of depth `k`: a chain, the static `tree`, or a dynamic one of `branch` nodes per level.

    `outputs` are those of the graph. `selective`: the backend computes only what a profile lists, so each window but
    the prefill's has a counterpart that computes the logits over the target's vocabulary too, which sampling needs.
    """
    extend = tuple(Profile(name=f"extend_{width}", width=width, rows=1) for width in _ladder(k + 1))
    levels = tuple(
        Profile(name=f"{LEVEL}{depth}", width=width, rows=rows)
        for depth, (width, rows) in enumerate(_levels(k, tree, branch), start=1)
    )
    windows = (Profile(name=STEP, width=1, rows=1), *extend, *levels)
    if not selective:
        return (*windows, *prefill)
    plain = tuple(name for name in outputs if name != LOGITS)
    return (
        *(window.model_copy(update={"outputs": plain}) for window in (*windows, *prefill)),
        *(window.model_copy(update={"name": window.name + LOGITS_SUFFIX}) for window in windows),
    )


def _ladder(widest: int) -> list[int]:
    """2, 3, 5, 9, ... and `widest`: windows of what one round can commit, none more than half padding."""
    widths, width = {widest}, 2
    while width < widest:
        widths.add(width)
        width = 2 * width - 1
    return sorted(widths - {1})


def _levels(k: int, tree: Tree | None, branch: int) -> list[tuple[int, int]]:
    """(width, rows) of the window that asks the nodes of each depth for their children; all nodes asked so far fit."""
    if tree is None:
        return [(branch * depth, branch) for depth in range(1, k)] if branch else []
    inner = {parent for parent in tree.parents if parent}
    rows = [sum(tree.depths[row - 1] == depth for row in inner) for depth in range(1, k)]
    return [(sum(rows[: depth + 1]), count) for depth, count in enumerate(rows)]
