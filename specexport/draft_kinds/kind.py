"""What a build must know of a kind of draft: one class, which is the recipe's `draft:` section as well.

Light to import, as every recipe is checked with it: what needs PyTorch is imported inside the methods that build.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

from pydantic import model_validator

from specexport.graph.plan import DraftPlan
from specexport.recipe.sources import ModelSource, RecipePart
from specexport.recipe.trees import LookupWindow
from specexport.recipe.weights import Weights
from specruntime.drafts import DraftSpec
from specruntime.manifest.graph import GraphSpec, Profile

if TYPE_CHECKING:
    from specexport.checkpoints.named import RecipeCheckpoints
    from specexport.context import BuildContext
    from specexport.draft_kinds.canonical import TracedDraft
    from specexport.draft_models import DraftTarget
    from specexport.graph.canonical import CanonicalGraph
    from specexport.parity.draft import DraftParityReport
    from specexport.recipe.schema import Recipe
    from specruntime.engines.protocol import Context


class DraftKind(RecipePart):
    """A kind of draft. Its fields are the keys of its section, `kind` among them as a `Literal` of its names.

    The methods say what depends on the kind; those that are not overridden are right for a kind without a checkpoint
    and without a graph, which drafts nothing.
    """

    vllm_methods: ClassVar[Mapping[str, str]] = {}
    """Its names by what vLLM calls them in `speculative_config`."""
    own_reference: ClassVar[bool] = False
    """Its graph is compared with a PyTorch module of its own by `compare`, not with a language model."""

    if TYPE_CHECKING:  # each kind has it as a field
        kind: str

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the values of `kind` that this class describes."""
        return get_args(cls.model_fields["kind"].annotation)

    @property
    def nodes(self) -> int:
        """Most drafted tokens of a window; 0: it drafts nothing."""
        return 0

    @property
    def default_widths(self) -> tuple[int, ...]:
        """Widths of the windows that drafts are judged in."""
        return ()

    @property
    def width_key(self) -> str:
        """What decides how many drafted tokens a window holds, by its key."""
        return "draft.k"

    @property
    def follows_acceptance(self) -> bool:
        """Whether the number of drafted tokens follows recent acceptance."""
        return False

    @property
    def extra_lookup(self) -> LookupWindow | None:
        """Prompt lookup where it promises more than the draft itself."""
        return None

    @property
    def own_weights(self) -> Weights | None:
        """How the weights of its graph are stored; None: as the target's."""
        return None

    @property
    def own_capacity(self) -> int | None:
        """KV rows of its own cache; None: as many as the target's."""
        return None

    @property
    def source_name(self) -> str | None:
        """What messages and the build record call its checkpoint; None for a kind without one."""
        return None

    @property
    def checkpoint(self) -> ModelSource | None:
        """Its checkpoint where that is a language model."""
        return None

    def digest(self, target_digest: str) -> str | None:
        """Hex SHA-256 that changes when its checkpoint does, `target_digest` being the target's; None without one.

        Imports neither torch nor onnx. Raises `SourceError`.
        """
        return None

    def check(self, target: str, layers: int | None) -> None:
        """Hold what the recipe asks against sizes and small files, before any weights are read.

        `target`: what messages call the target, of `layers` layers where that is known. Raises `CheckpointUnsupported`.
        """

    def load(self, target: "DraftTarget") -> Any:
        """Its PyTorch module, where that is not a language model."""
        raise NotImplementedError

    def export(
        self,
        recipe: "Recipe",
        checkpoints: "RecipeCheckpoints",
        digests: Mapping[str, str],
        context: "BuildContext",
    ) -> "CanonicalGraph | None":
        """Return the canonical graph of the module that `load` makes; None for a kind without one."""
        return None

    def trace(self, module: Any, target: "DraftTarget", *, capacity: int, tokens: int) -> "TracedDraft":
        """Return the canonical graph of `module`, and what PyTorch computes for `tokens` random rows.

        `capacity`: rows of its own cache. Raises `CheckpointUnsupported`.
        """
        raise NotImplementedError

    def compare(self, context: "Context", directory: Path) -> "DraftParityReport":
        """Every window of its graph against the reference in `directory`, which `trace` took."""
        raise NotImplementedError

    def plan(self, canonical: "Mapping[str, CanonicalGraph]", *, runs_parts: bool) -> DraftPlan:
        """Return what it asks of the target's graph and of its own.

        `canonical`: those of the recipe's checkpoints. `runs_parts`: an engine computes only what a profile lists.
        Raises `CheckpointUnsupported` where its checkpoint cannot do what the recipe asks.
        """
        return DraftPlan()

    def windows(self, prefill_chunk: int, outputs: Sequence[str]) -> tuple[Profile, ...]:
        """Return the windows that its own graph is run at.

        `outputs`: of the graph, where a window may compute some of them only; else none.
        """
        return ()

    def spec(self, graph: GraphSpec | None, canonical: "CanonicalGraph | None") -> DraftSpec:
        """Its entry in the manifest; `graph` and `canonical` are those of its own graph, where it has one."""
        raise NotImplementedError

    def step_times(self, times: Mapping[str, Mapping[str, float]]) -> Mapping[str, float]:
        """Milliseconds of the windows that it drafts with; `times` are of each graph by name, by profile."""
        return times.get("draft", {})


class Lengths(DraftKind):
    """What a kind with a draft of its own says of its length."""

    adaptive: bool = False
    """The number of drafted tokens follows recent acceptance and the measured step times; 0 where drafts do not pay."""
    lookup: LookupWindow | None = None
    """With adaptive: prompt lookup in addition to the draft, used whenever it is expected to be faster."""

    @property
    def follows_acceptance(self) -> bool:
        return self.adaptive

    @property
    def extra_lookup(self) -> LookupWindow | None:
        return self.lookup

    @model_validator(mode="after")
    def _check_lookup(self) -> Self:
        if self.lookup is not None and not self.adaptive:
            raise ValueError("lookup: found without adaptive: true, which chooses between the two; add that")
        return self


class OwnGraph(RecipePart):
    """What a kind whose draft is a graph of its own says of that graph's weights."""

    weights: Weights | None = None
    """How the draft's weights are stored, whatever the target's are; the recipe's `weights` where it is not given. A
    draft's rounding costs acceptance and never changes a token."""

    @property
    def own_weights(self) -> Weights | None:
        """The same, by the name that every kind has."""
        return self.weights


class FeatureKind(OwnGraph, Lengths):
    """A kind that drafts with a module on the target's hidden states: files of its own, a graph of its own."""

    own_reference: ClassVar[bool] = True

    if TYPE_CHECKING:  # each kind has it as a field
        source: Any

    @property
    def source_name(self) -> str:
        source = self.source
        return source if isinstance(source, str) else f"random {self.kind} (seed {source.random.seed})"

    @property
    def candidates(self) -> int:
        """Tokens that its graph names for each row."""
        raise NotImplementedError

    def digest(self, target_digest: str) -> str:
        from specexport.checkpoints.locate import locate_draft
        from specexport.checkpoints.named import made_digest

        if isinstance(self.source, str):
            return locate_draft(self.source).digest
        return made_digest({"kind": self.kind, "source": self.source.model_dump()}, "torch")

    def export(
        self,
        recipe: "Recipe",
        checkpoints: "RecipeCheckpoints",
        digests: Mapping[str, str],
        context: "BuildContext",
    ) -> "CanonicalGraph":
        from specexport.draft_kinds.canonical import canonical_draft_key, export_canonical_draft

        key = canonical_draft_key(
            digests["draft"],
            digests["target"],
            precision=recipe.precision,
            capacity=recipe.draft_capacity,
            candidates=self.candidates,
            reference_tokens=recipe.parity.tokens,
            made_by=type(self).__module__,
        )
        return export_canonical_draft(
            key,
            self,
            checkpoints.load_draft,
            capacity=recipe.draft_capacity,
            reference_tokens=recipe.parity.tokens,
            force=context.force,
        )
