"""Kind `medusa`: heads on the target's last hidden state draft, one for each depth of a static tree."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, NonNegativeInt, Tag, model_validator

from specexport.draft_kinds.kind import FeatureKind
from specexport.graph.plan import DraftPlan, GraphPlan
from specexport.recipe.sources import Address, RecipePart
from specexport.recipe.trees import Drafted, StaticTree, ascending_widths, candidate_count
from specexport.trees import Tree, chain_of
from specruntime import drafts as manifest
from specruntime.drafts import DraftSpec
from specruntime.drafts.medusa import HEADS
from specruntime.manifest.draft import TreeSpec
from specruntime.manifest.graph import GraphSpec, Profile

if TYPE_CHECKING:
    from specexport.draft_kinds.canonical import TracedDraft
    from specexport.draft_models import DraftTarget, MedusaHeads
    from specexport.graph.canonical import CanonicalGraph
    from specexport.parity.draft import DraftParityReport
    from specruntime.engines.protocol import Context


class RandomMedusa(RecipePart):
    """Heads of random weights on the target's own LM head, for tests."""

    seed: NonNegativeInt = 0
    heads: Annotated[int, Field(ge=1, le=64)] = 4
    """Heads, each a depth further."""
    layers: Annotated[int, Field(ge=1, le=16)] = 1
    """Residual blocks of a head."""


class RandomMedusaSource(RecipePart):
    """Weights from a seed."""

    random: RandomMedusa


def _form(value: Any) -> str:
    return "RandomMedusaSource" if isinstance(value, (dict, RandomMedusaSource)) else "Address"


MedusaSource = Annotated[
    Address | Annotated[RandomMedusaSource, Tag("RandomMedusaSource")], Discriminator(_form)
]


class MedusaRecipe(FeatureKind):
    """Further LM heads on the target's last hidden state, one for each depth of a static tree."""

    vllm_methods: ClassVar = {"medusa": "medusa"}

    kind: Literal["medusa"]
    source: Annotated[MedusaSource, Field(examples=["./my-draft"])]
    """The heads: ./directory, hub://org/name@revision, or a seed."""
    k: Drafted | None = Field(None, examples=[3])
    """Tokens drafted per round where they are a chain, one for each head."""
    tree: StaticTree | None = None
    """Tokens drafted per round where they are a tree."""

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        if (self.k is None) is (self.tree is None):
            found = "neither k nor tree" if self.k is None else "both k and tree"
            raise ValueError(f"tree: found {found}, expected one of them: a tree, or a chain of k tokens")
        return self

    @property
    def shape(self) -> Tree:
        """The drafted tokens in window order."""
        return self.tree.shape if self.tree is not None else chain_of(self.k or 0)

    @property
    def nodes(self) -> int:
        return len(self.shape.parents)

    @property
    def depth(self) -> int:
        """Most drafted tokens that one round can accept."""
        return max(self.shape.depths)

    @property
    def default_widths(self) -> tuple[int, ...]:
        """The whole tree, and parts of it where the length follows acceptance."""
        return ascending_widths(self.nodes, self.lookup, adaptive=self.adaptive)

    @property
    def width_key(self) -> str:
        return "the nodes of draft.tree" if self.tree is not None else "draft.k"

    @property
    def candidates(self) -> int:
        return candidate_count(self.shape.ranks)

    def check(self, target: str, layers: int | None) -> None:
        from specexport.checkpoints.locate import locate_draft
        from specexport.draft_models.medusa import stated_heads

        if isinstance(self.source, str):
            heads = stated_heads(locate_draft(self.source).directory, self.source)
        else:
            heads = self.source.random.heads
        self._require_heads(heads, self.source_name)

    def _require_heads(self, heads: int, name: str) -> None:
        from specexport.errors import CheckpointUnsupported

        if self.depth > heads:
            raise CheckpointUnsupported(
                f"found {self.depth}, expected at most {heads}, the heads of {name}: each drafts the tokens of one "
                "depth",
                key="draft.k" if self.tree is None else "the depth of draft.tree",
            )

    def load(self, target: "DraftTarget") -> "MedusaHeads":
        from specexport.checkpoints.locate import locate_draft
        from specexport.draft_models import load_medusa
        from specexport.draft_models.random_drafts import random_medusa

        if isinstance(self.source, str):
            return load_medusa(locate_draft(self.source).directory, target, self.source_name)
        made = self.source.random
        return random_medusa(target, seed=made.seed, heads=made.heads, layers=made.layers)

    def trace(
        self, module: "MedusaHeads", target: "DraftTarget", *, capacity: int, tokens: int
    ) -> "TracedDraft":
        from specexport.draft_kinds.canonical import TracedDraft
        from specexport.export.trace_draft import trace_medusa
        from specexport.parity.draft_reference import save_draft_reference, take_heads_reference

        reference = take_heads_reference(module, vocab_size=target.vocab_size, tokens=tokens)
        graph = trace_medusa(
            module,
            vocab_size=target.vocab_size,
            padded_vocab_size=target.padded_vocab_size,
            candidates=self.candidates,
        )
        return TracedDraft(graph, partial(save_draft_reference, reference), heads=module.config.heads)

    def compare(self, context: "Context", directory: Path) -> "DraftParityReport":
        from specexport.parity.draft import compare_heads

        return compare_heads(context, directory)

    def plan(self, canonical: "Mapping[str, CanonicalGraph]", *, runs_parts: bool) -> DraftPlan:
        from specexport.draft_kinds.canonical import read_features

        own = canonical["draft"]
        self._require_heads(own.heads or 0, own.name)
        # Heads always propose a tree, be it a chain.
        return DraftPlan(GraphPlan(trees=True, features=read_features(own)), GraphPlan())

    def windows(self, prefill_chunk: int, outputs: Sequence[str]) -> tuple[Profile, ...]:
        """One row of features, every head."""
        return (Profile(name=HEADS, width=1, rows=1),)

    def spec(self, graph: GraphSpec | None, canonical: "CanonicalGraph | None") -> DraftSpec:
        assert graph is not None, "this kind has a graph of its own"
        heads = next(tensor.shape[2] for tensor in graph.outputs if tensor.name == "topk_ids")
        assert isinstance(heads, int), "the number of heads is static"
        tree = TreeSpec(parents=self.shape.parents, ranks=self.shape.ranks)
        return manifest.MedusaDraft(heads=heads, tree=tree, graph=graph)
