"""The recipe: everything that decides what a bundle is, as one closed schema.

Owns the top-level keys and the rules between them; the parts are in `recipe_sources`, `recipe_drafts` and
`recipe_backends`. Knows nothing of torch or networks: a recipe can be checked on any machine. `load_recipe` reads
one from YAML (`recipe_yaml`); mistakes are worded in `recipe_errors`.
"""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, NonNegativeInt, PositiveInt, Tag, ValidationError, model_validator

from specexport.errors import RecipeError
from specexport.recipe_backends import Backend, OnnxRuntimeBackend, Precision
from specexport.recipe_batch import BatchSizes
from specexport.recipe_drafts import Draft, LayerSkipDraft, ModelDraft, NgramDraft, NoneDraft
from specexport.recipe_errors import explain
from specexport.recipe_feature_drafts import EagleDraft, MedusaDraft
from specexport.recipe_lengths import Lengths, LookupWindow, most_drafted
from specexport.recipe_sources import (
    Closed,
    ModelSource,
    Noise,
    NoiseSource,
    RandomModel,
    RandomSource,
    Target,
)
from specexport.recipe_weights import EngineWeights, Fidelity, OwnGraph, Weights
from specexport.recipe_yaml import read_yaml
from specexport.tensorrt.capability import capable_names
from specexport.tensorrt.options import TensorRTBackend
from specruntime.schema_numbers import Size

__all__ = [
    "Backend",
    "Check",
    "Draft",
    "EagleDraft",
    "EngineWeights",
    "Fidelity",
    "LayerSkipDraft",
    "MedusaDraft",
    "ModelDraft",
    "ModelSource",
    "NgramDraft",
    "Noise",
    "NoiseSource",
    "NoneDraft",
    "OnnxRuntimeBackend",
    "Parity",
    "Precision",
    "Prompt",
    "RandomModel",
    "RandomSource",
    "Recipe",
    "Target",
    "Weights",
    "load_recipe",
]

MIN_SEQUENCE = 8
DEFAULT_TOLERANCE: dict[Precision, float] = {"fp32": 1e-3, "fp16": 5e-2, "bf16": 3e-1}


class Parity(Closed):
    """How closely the graph must agree with PyTorch."""

    tolerance: Annotated[float, Field(gt=0)]
    """Largest allowed difference of a logit."""
    tokens: Annotated[int, Field(ge=2)] = 48
    """Length of the sequence that is compared."""


def _prompt_form(value: Any) -> str:
    return "ids" if isinstance(value, (list, tuple)) else "text"


Prompt = Annotated[
    Annotated[str, Field(min_length=1), Tag("text")]
    | Annotated[tuple[NonNegativeInt, ...], Field(min_length=1), Tag("ids")],
    Discriminator(_prompt_form),
]


class Check(Closed):
    """What `specexport check` decodes."""

    prompts: Annotated[tuple[Prompt, ...], Field(min_length=1)]
    """Texts, or lists of token ids."""
    max_new_tokens: PositiveInt = 64
    chat: bool = False
    """Wrap text prompts in the tokenizer's chat template."""


class Recipe(Closed):
    """All of a recipe file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Names the bundle: ./<name>.bundle unless the command says otherwise."""
    target: Target
    precision: Precision = "fp32"
    """Of weights, activations and KV cache; `weights` stores the former in fewer bits."""
    weights: Annotated[Weights | EngineWeights, Field(discriminator="format")] | None = None
    """How weights are stored where they take fewer bits than `precision`: int8 and int4 of target and draft for ONNX
    Runtime, fp8, int4-awq and nvfp4 of the target for TensorRT."""
    capacity: Size
    """KV rows of a session: prompt, answer and one window."""
    prefill_chunk: PositiveInt = 128
    """Prompt tokens per prefill window."""
    batch: BatchSizes = (1,)
    """Numbers of sequences that one engine call may hold, ascending from 1; a number n: 1, 2, 4, ... and n."""
    draft: Draft
    verify_widths: tuple[Annotated[int, Field(ge=2)], ...] = Field(
        default_factory=lambda data: data["draft"].default_widths
    )
    """Widths of the windows that judge drafts, ascending; the last holds all drafted tokens and the one before them."""
    backend: Backend = OnnxRuntimeBackend(kind="onnxruntime")
    parity: Parity = Field(
        default_factory=lambda data: Parity(tolerance=DEFAULT_TOLERANCE[data["precision"]])
    )
    check: Check
    fidelity: Fidelity | None = None
    """What `weights` may cost."""

    @property
    def widest_window(self) -> int:
        """Rows of the widest window any profile writes."""
        return max(self.prefill_chunk, *self.verify_widths, 1)

    @property
    def draft_capacity(self) -> int:
        """KV rows of the draft model's cache."""
        stated = self.draft.capacity if isinstance(self.draft, ModelDraft) else None
        return stated or self.capacity

    @property
    def _lookup(self) -> LookupWindow | None:
        """Prompt lookup beside the draft."""
        return self.draft.lookup if isinstance(self.draft, Lengths) else None

    @property
    def _widest_key(self) -> str:
        """What decides how many drafted tokens a window holds, by its key."""
        draft, lookup = self.draft, self._lookup
        if lookup is not None and not isinstance(draft, NoneDraft) and lookup.k > draft.nodes:
            return "draft.lookup.k"
        if isinstance(draft, EagleDraft) and draft.dynamic_tree is not None:
            return "draft.dynamic_tree.nodes"
        has_tree = isinstance(draft, (EagleDraft, MedusaDraft)) and draft.tree is not None
        return "the nodes of draft.tree" if has_tree else "draft.k"

    @model_validator(mode="after")
    def _check_batch(self) -> Self:
        if list(self.batch) != sorted({1, *self.batch}):
            raise ValueError(
                f"batch: found {list(self.batch)}, expected ascending sizes that begin with 1, such as [1, 2, 4]"
            )
        return self

    @model_validator(mode="after")
    def _check_widths(self) -> Self:
        widths = self.verify_widths
        if isinstance(self.draft, NoneDraft):
            if widths:
                raise ValueError(f"verify_widths: found {list(widths)}, expected none with draft.kind none")
            return self
        widest = most_drafted(self.draft.nodes, self._lookup) + 1
        if list(widths) != sorted(set(widths)) or widths[-1:] != (widest,):
            raise ValueError(
                f"verify_widths: found {list(widths)}, expected ascending widths that end with "
                f"{self._widest_key} + 1 = {widest}"
            )
        return self

    @model_validator(mode="after")
    def _check_capacity(self) -> Self:
        least = self.widest_window + MIN_SEQUENCE
        for key, found in (("capacity", self.capacity), ("draft.capacity", self.draft_capacity)):
            if found < least:
                raise ValueError(
                    f"{key}: found {found}, expected at least {least}: {MIN_SEQUENCE} tokens and the widest window, "
                    f"which is {self.widest_window} rows (prefill_chunk or {self._widest_key} + 1)"
                )
        if self.draft_capacity > self.capacity:
            raise ValueError(
                f"draft.capacity: found {self.draft_capacity}, expected at most capacity = {self.capacity}"
            )
        if self.check.max_new_tokens >= self.capacity:
            raise ValueError(
                f"check.max_new_tokens: found {self.check.max_new_tokens}, "
                f"expected less than capacity = {self.capacity}"
            )
        return self

    @model_validator(mode="after")
    def _check_precision(self) -> Self:
        if self.precision not in self.backend.precisions:
            raise ValueError(
                f"precision: found {self.precision}, allowed with this backend: "
                f"{', '.join(self.backend.precisions)}; {self.backend.precision_advice}"
            )
        return self

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if self.weights is None and self.fidelity is not None:
            raise ValueError(
                "fidelity: found without weights, which it judges; name a weights.format or leave it out"
            )
        runs_on_cpu = isinstance(self.backend, OnnxRuntimeBackend) and self.backend.provider == "cpu"
        for key, weights in (("weights", self.weights), ("draft.weights", self.weights_of("draft"))):
            if not isinstance(weights, Weights):
                continue
            if not runs_on_cpu:
                raise ValueError(
                    f"{key}: found {weights.format} with this backend, expected backend.kind onnxruntime with "
                    f"provider cpu, whose kernels take them; leave {key} out elsewhere, or give tensorrt and "
                    "tensorrt_rtx weights.format fp8, int4-awq or nvfp4"
                )
            if self.precision != "fp32":
                raise ValueError(
                    f"precision: found {self.precision} with {key}, expected fp32: activations and KV cache stay fp32"
                )
        return self

    @model_validator(mode="after")
    def _check_engine(self) -> Self:
        weights, backend = self.engine_weights, self.backend
        if weights is not None and not isinstance(backend, TensorRTBackend):
            raise ValueError(
                f"weights: found {weights.format} with this backend, expected backend.kind tensorrt or tensorrt_rtx; "
                "onnxruntime on the CPU takes int8 and int4"
            )
        if not isinstance(backend, TensorRTBackend):
            return self
        if weights is not None and self.precision == "fp32":
            raise ValueError(f"precision: found fp32 with weights {weights.format}, expected fp16 or bf16")
        if weights is not None and (backend.refit or backend.strip_weights):
            key = "refit" if backend.refit else "strip_weights"
            raise ValueError(
                f"backend.{key}: found true with weights {weights.format}; engines over them were never refitted, "
                "leave one of both out"
            )
        capable = capable_names(backend.kind, self.stored_formats)
        beyond = [name for name in backend.compute_capabilities if name not in capable]
        if beyond:
            raise ValueError(
                f"backend.compute_capabilities: found {', '.join(beyond)} with {' and '.join(self.stored_formats)}, "
                f"expected some of {', '.join(capable)}"
            )
        return self

    def weights_of(self, graph: str) -> Weights | None:
        """How the weights of "target" or "draft" are stored as integers for ONNX Runtime; None: they are not."""
        own = self.draft.weights if graph == "draft" and isinstance(self.draft, OwnGraph) else None
        return own or (self.weights if isinstance(self.weights, Weights) else None)

    @property
    def engine_weights(self) -> EngineWeights | None:
        """How the target's weights are stored in an engine; None: in `precision`."""
        return self.weights if isinstance(self.weights, EngineWeights) else None

    @property
    def stored_formats(self) -> tuple[str, ...]:
        """Every format that a device must have arithmetic for."""
        return (self.precision, *((self.engine_weights.format,) if self.engine_weights is not None else ()))

    @property
    def shown_precision(self) -> str:
        """What the manifest calls it: the weights' format, or the precision of everything."""
        return self.weights.format if self.weights is not None else self.precision


def load_recipe(path: Path | str) -> Recipe:
    """Reads and checks a recipe; local sources become absolute, taken from the recipe's directory.

    Raises `RecipeError` with one line per mistake: key, what was found, what is allowed, nearest spelling.
    """
    path = Path(path)
    document = read_yaml(path)
    try:
        return Recipe.model_validate_json(document, strict=True, context={"directory": path.parent})
    except ValidationError as error:
        raise RecipeError(*(f"{path}: {line}" for line in explain(error, Recipe))) from None
