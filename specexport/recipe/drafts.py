"""The part of a recipe that says what drafts: one class per kind. A new kind joins the union `Draft`.

Here the kinds that propose a chain; `recipe_feature_drafts` has those that read the target's features.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, NonNegativeInt, PositiveInt, Tag, model_validator

from specexport.recipe.sources import DraftSource, ModelSource, RecipePart, absolute_address
from specexport.recipe.trees import Drafted, DynamicTree, Lengths, LookupWindow, StaticTree, ascending_widths
from specexport.recipe.weights import OwnGraph
from specexport.trees import Tree, chain_of
from specruntime.manifest.numbers import MAX_LAYERS, Share

_DEFAULT_K = 4


class RandomEagle(RecipePart):
    """An EAGLE layer of random weights, as wide as the target, for tests."""

    seed: NonNegativeInt = 0
    draft_vocab_size: PositiveInt | None = Field(None, examples=[8192])
    """EAGLE-3: tokens the draft knows; all of the target's where it is not given."""


class RandomMedusa(RecipePart):
    """Heads of random weights on the target's own LM head, for tests."""

    seed: NonNegativeInt = 0
    heads: Annotated[int, Field(ge=1, le=64)] = 4
    """Heads, each a depth further."""
    layers: Annotated[int, Field(ge=1, le=16)] = 1
    """Residual blocks of a head."""


class RandomEagleSource(RecipePart):
    """Weights from a seed."""

    random: RandomEagle


class RandomMedusaSource(RecipePart):
    """Weights from a seed."""

    random: RandomMedusa


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


def _eagle_form(value: Any) -> str:
    return "RandomEagleSource" if isinstance(value, (dict, RandomEagleSource)) else "Address"


def _medusa_form(value: Any) -> str:
    return "RandomMedusaSource" if isinstance(value, (dict, RandomMedusaSource)) else "Address"


Address = Annotated[str, AfterValidator(absolute_address), Tag("Address")]
EagleSource = Annotated[
    Address | Annotated[RandomEagleSource, Tag("RandomEagleSource")], Discriminator(_eagle_form)
]
MedusaSource = Annotated[
    Address | Annotated[RandomMedusaSource, Tag("RandomMedusaSource")], Discriminator(_medusa_form)
]


class MedusaDraft(OwnGraph, Lengths):
    """Further LM heads on the target's last hidden state, one for each depth of a static tree."""

    kind: Literal["medusa"]
    source: Annotated[MedusaSource, Field(examples=["./my-draft"])]
    """The heads: ./directory, hub://org/name@revision, or a seed."""
    k: Drafted | None = Field(None, examples=[3])
    """Tokens drafted per round where they are a chain, one for each head."""
    tree: StaticTree | None = None
    """Tokens drafted per round where they are a tree."""

    @property
    def shape(self) -> Tree:
        """The drafted tokens in window order."""
        return self.tree.shape if self.tree is not None else chain_of(self.k or 0)

    @property
    def nodes(self) -> int:
        """Most drafted tokens of a window."""
        return len(self.shape.parents)

    @property
    def depth(self) -> int:
        """Most drafted tokens that one round can accept."""
        return max(self.shape.depths)

    @property
    def default_widths(self) -> tuple[int, ...]:
        """The whole tree, and parts of it where the length follows acceptance."""
        return ascending_widths(self.nodes, self)

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        if (self.k is None) is (self.tree is None):
            found = "neither k nor tree" if self.k is None else "both k and tree"
            raise ValueError(f"tree: found {found}, expected one of them: a tree, or a chain of k tokens")
        return self


class EagleDraft(OwnGraph, Lengths):
    """One decoder layer on the target's features: a chain, a static tree, or one grown each round."""

    kind: Literal["eagle", "eagle3"]
    source: Annotated[EagleSource, Field(examples=["./my-draft"])]
    """The draft: ./directory, hub://org/name@revision, or a seed."""
    layer_ids: LayerIds | None = None
    """EAGLE-3: the layers of the target that the draft reads, in place of what its config.json says or is taken to
    say."""
    tree: StaticTree | None = None
    """Tokens drafted per round where they are a tree of fixed shape."""
    dynamic_tree: DynamicTree | None = None
    """Tokens drafted per round where their tree follows the draft's probabilities."""
    k: Drafted | None = Field(
        default_factory=lambda data: None if data["tree"] or data["dynamic_tree"] else _DEFAULT_K,
        examples=[_DEFAULT_K],
    )
    """Tokens drafted per round where they are a chain."""
    stop_below: Share | None = Field(None, examples=[0.3])
    """Of a chain: draft no further once the draft's own probability of its token falls below this."""

    @property
    def shape(self) -> Tree | None:
        """The drafted tokens in window order; None where they are grown each round, or a chain."""
        return self.tree.shape if self.tree is not None else None

    @property
    def nodes(self) -> int:
        """Most drafted tokens of a window."""
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
    def default_widths(self) -> tuple[int, ...]:
        """As of medusa."""
        return ascending_widths(self.nodes, self)

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        stated = [key for key in ("k", "tree", "dynamic_tree") if getattr(self, key) is not None]
        if len(stated) > 1:
            raise ValueError(
                f"{stated[-1]}: found beside {stated[0]}, expected one of k, tree and dynamic_tree"
            )
        if self.stop_below is not None and self.k is None:
            beside = stated[0] if stated else "k: null"
            raise ValueError(
                f"stop_below: found {self.stop_below} beside {beside}, allowed with a chain (k); leave out one of them"
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


_NARROW_WIDTH = 4


class NoneDraft(RecipePart):
    """Plain decoding."""

    kind: Literal["none"]

    @property
    def default_widths(self) -> tuple[int, ...]:
        """Widths of the windows that drafts are judged in."""
        return ()


class NgramDraft(LookupWindow):
    """Copies the tokens that followed the last n tokens where they occurred before."""

    kind: Literal["ngram"]
    adaptive: bool = False
    """The number of drafted tokens follows recent acceptance and the measured step times; 0 where drafts do not pay."""

    @property
    def nodes(self) -> int:
        """Most drafted tokens of a window."""
        return self.k

    @property
    def default_widths(self) -> tuple[int, ...]:
        """A find is often short, so a narrow window stands beside the full one."""
        full = self.k + 1
        return (_NARROW_WIDTH, full) if full > _NARROW_WIDTH + 2 else (full,)


class ModelDraft(ModelSource, OwnGraph, Lengths):
    """A smaller checkpoint with the target's tokenizer."""

    kind: Literal["model"]
    source: Annotated[DraftSource, Field(examples=["./my-draft"])]
    k: Drafted = 4
    """Tokens drafted per round."""
    capacity: Annotated[PositiveInt | None, Field(examples=[1024])] = None
    """KV rows of the draft's cache; the target's capacity where it is not given."""
    fused: bool = False
    """All k steps in one graph and one launch, always greedy; pays where a launch costs more than a step."""
    stop_below: Annotated[Share | None, Field(examples=[0.3])] = None
    """Draft no further once the draft's own probability of its token falls below this."""

    @property
    def nodes(self) -> int:
        """Most drafted tokens of a window."""
        return self.k

    @property
    def default_widths(self) -> tuple[int, ...]:
        """A draft model fills its window nearly always, unless its length follows acceptance."""
        return ascending_widths(self.k, self)

    @model_validator(mode="after")
    def _check_fused(self) -> Self:
        if self.fused and self.stop_below is not None:
            raise ValueError(
                f"stop_below: found {self.stop_below} with fused: true, whose steps are one launch; "
                "leave out one of them"
            )
        return self


class LayerSkipDraft(Lengths):
    """The target itself with some of its layers, sharing its weights and its KV cache."""

    kind: Literal["layer_skip"]
    k: Drafted = 3
    """Tokens drafted per round."""
    exit_after: Annotated[int, Field(ge=1, le=MAX_LAYERS)] | None = Field(None, examples=[8])
    """How many of the first layers draft: an early exit."""
    layers: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, max_length=MAX_LAYERS)] | None = Field(
        None, examples=[[0, 1, 5]]
    )
    """The layers that draft, ascending; in place of exit_after."""

    @property
    def kept_layers(self) -> tuple[int, ...]:
        """The layers that draft, ascending."""
        return self.layers if self.layers is not None else tuple(range(self.exit_after or 0))

    @property
    def nodes(self) -> int:
        """Most drafted tokens of a window."""
        return self.k

    @property
    def default_widths(self) -> tuple[int, ...]:
        """As a draft model."""
        return ascending_widths(self.k, self)

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        if (self.exit_after is None) is (self.layers is None):
            found = "neither exit_after nor layers" if self.layers is None else "both exit_after and layers"
            raise ValueError(f"exit_after: found {found}, expected one of them")
        if self.layers is not None and list(self.layers) != sorted(set(self.layers)):
            raise ValueError(f"layers: found {list(self.layers)}, expected ascending layers, each once")
        return self


Draft = Annotated[
    NoneDraft | NgramDraft | ModelDraft | LayerSkipDraft | MedusaDraft | EagleDraft,
    Field(discriminator="kind"),
]
