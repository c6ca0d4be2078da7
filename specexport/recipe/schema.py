"""The recipe: everything that decides what a bundle is, as one closed schema.

Owns the top-level keys and the rules between them; each kind of draft owns its section (`specexport.draft_kinds`), and
the other parts are the modules of this folder. Knows nothing of torch or networks: a recipe can be checked on any
machine. `load_recipe` reads one from YAML (`yaml`); mistakes are worded in `messages`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveInt,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from specexport.draft_kinds import AnyKind
from specexport.draft_kinds.kind import DraftKind
from specexport.errors import RecipeError
from specexport.recipe.backends import Backend, BatchSizes, OnnxRuntimeBackend, Precision
from specexport.recipe.messages import Conflicts, explain
from specexport.recipe.sources import (
    ModelSource,
    Noise,
    NoiseSource,
    RandomModel,
    RandomSource,
    RecipePart,
    Target,
)
from specexport.recipe.trees import most_drafted
from specexport.recipe.weights import EngineWeights, Fidelity, Weights
from specexport.recipe.yaml import read_yaml
from specruntime.manifest.numbers import Size

__all__ = [
    "Backend",
    "Check",
    "EngineWeights",
    "Fidelity",
    "ModelSource",
    "Noise",
    "NoiseSource",
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

MOST_CAPACITY = 2048
"""The largest default capacity: a recipe without `capacity` gets at most this."""
MOST_ANSWER = 64
USUAL_CHUNK = 128
CHECK_TEXT = "The quick brown fox jumps over the lazy dog. The quick brown fox"
DEFAULT_TOLERANCE: dict[Precision, float] = {"fp32": 1e-3, "fp16": 5e-2, "bf16": 3e-1}


def _usual_chunk(capacity: int) -> int:
    return USUAL_CHUNK if capacity >= USUAL_CHUNK + MIN_SEQUENCE else max(1, capacity // 4)


class Parity(RecipePart):
    """How closely the graph must agree with PyTorch."""

    tolerance: Annotated[float, Field(gt=0, examples=[1e-3])]
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


class Check(RecipePart):
    """What `specexport check` decodes."""

    prompts: Annotated[tuple[Prompt, ...], Field(min_length=1, examples=[[[1, 2, 3]]])] = (CHECK_TEXT,)
    """Texts, or lists of token ids. Default: a built-in prompt that repeats a sentence, or ids without a tokenizer."""
    max_new_tokens: PositiveInt = MOST_ANSWER
    chat: bool = False
    """Wrap text prompts in the tokenizer's chat template."""


class Recipe(RecipePart):
    """All of a recipe file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", examples=["my-model-ngram"])]
    """Names the bundle: ./<name>.bundle unless the command says otherwise."""
    target: Annotated[Target, Field(examples=[{"source": "./my-model"}])]
    precision: Precision = "fp32"
    """Number format of weights, activations and KV cache; `weights` stores the weights in fewer bits."""
    weights: Annotated[Weights | EngineWeights, Field(discriminator="format")] | None = None
    """How weights are stored where they take fewer bits than `precision`: int8 and int4 of target and draft for ONNX
    Runtime, fp8, int4-awq and nvfp4 of the target for TensorRT."""
    cache: Literal["fp32", "int8"] = "fp32"
    """How rows of the KV cache are stored where the operators of specruntime-kernels run: int8 with a scale a row and
    head, a quarter of the memory and of its reading; the plain graph keeps `precision`."""
    capacity: Size = MOST_CAPACITY
    """KV rows of a session: prompt, answer and one window. Left out: the positions that the checkpoint knows, at most
    this many."""
    prefill_chunk: PositiveInt = Field(
        default_factory=lambda data: _usual_chunk(data["capacity"]),
        examples=[USUAL_CHUNK],
        json_schema_extra={"default": USUAL_CHUNK},
    )
    """Prompt tokens per prefill window."""
    batch: BatchSizes = (1,)
    """Numbers of sequences that one engine call may hold, ascending from 1; a number n: 1, 2, 4, ... and n."""
    draft: Annotated[DraftKind, AnyKind(), Field(examples=[{"kind": "ngram"}])]
    verify_widths: tuple[Annotated[int, Field(ge=2)], ...] = Field(
        default_factory=lambda data: data["draft"].default_widths, examples=[[4, 11]]
    )
    """Widths of the windows that judge drafts, ascending; the last holds all drafted tokens and the one before them."""
    backend: Backend = OnnxRuntimeBackend(kind="onnxruntime")
    parity: Parity = Field(
        default_factory=lambda data: Parity(tolerance=DEFAULT_TOLERANCE[data["precision"]])
    )
    check: Annotated[
        Check,
        Field(validate_default=True, examples=[{"prompts": ["Once upon a time"], "max_new_tokens": 32}]),
    ] = Check()
    fidelity: Fidelity | None = None
    """What `weights` may cost."""

    @property
    def widest_window(self) -> int:
        """Rows of the widest window any profile writes."""
        return max(self.prefill_chunk, *self.verify_widths, 1)

    @property
    def draft_capacity(self) -> int:
        """KV rows of the draft model's cache."""
        return self.draft.own_capacity or self.capacity

    @property
    def left_to_checkpoint(self) -> tuple[str, ...]:
        """Keys without a value of the recipe's own, which its checkpoint decides: see `recipe_fitting`."""
        left = () if "capacity" in self.model_fields_set else ("capacity",)
        return left if "prompts" in self.check.model_fields_set else (*left, "check.prompts")

    @field_validator("check")
    @classmethod
    def _shorten_answers(cls, check: Check, info: ValidationInfo) -> Check:
        """Answer as long as `capacity` leaves room for, where the recipe does not say how long."""
        capacity = info.data.get("capacity", MOST_CAPACITY)
        if "max_new_tokens" in check.model_fields_set or check.max_new_tokens < capacity:
            return check
        return check.model_copy(update={"max_new_tokens": max(1, capacity // 2)})

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        if found := list(conflicts(self)):
            raise Conflicts(*found)
        return self

    def weights_of(self, graph: str) -> Weights | None:
        """How the weights of "target" or "draft" are stored as integers for ONNX Runtime; None: they are not."""
        own = self.draft.own_weights if graph == "draft" else None
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
    """Read and check a recipe; local sources become absolute, taken from the recipe's directory.

    Raises `RecipeError` with one line per mistake: key, what was found, what is allowed, nearest spelling.
    """
    path = Path(path)
    document = read_yaml(path)
    try:
        return Recipe.model_validate_json(document, strict=True, context={"directory": path.parent})
    except ValidationError as error:
        raise RecipeError(*(f"{path}: {line}" for line in explain(error, Recipe))) from None


MIN_SEQUENCE = 8


def conflicts(recipe: "Recipe") -> Iterator[str]:
    """One line per rule that is not kept: key, what was found, what was expected."""
    yield from _batch(recipe)
    yield from _widths(recipe)
    yield from _capacity(recipe)
    yield from _precision(recipe)
    yield from _weights(recipe)
    yield from _cache(recipe)
    yield from _engine(recipe)


def _found(part: BaseModel, key: str) -> str:
    """`found 4`, or what stands in for a key that was not written."""
    value = getattr(part, key)
    return f"found {value}" if key in part.model_fields_set else f"defaults to {value}"


def _batch(recipe: "Recipe") -> Iterator[str]:
    if list(recipe.batch) != sorted({1, *recipe.batch}):
        yield f"batch: found {list(recipe.batch)}, expected ascending sizes that begin with 1, such as [1, 2, 4]"


def _widths(recipe: "Recipe") -> Iterator[str]:
    widths = recipe.verify_widths
    if not recipe.draft.nodes:
        if widths:
            yield f"verify_widths: found {list(widths)}, expected none with draft.kind {recipe.draft.kind}"
        return
    widest = most_drafted(recipe.draft.nodes, recipe.draft.extra_lookup) + 1
    if list(widths) != sorted(set(widths)) or widths[-1:] != (widest,):
        yield (
            f"verify_widths: found {list(widths)}, expected ascending widths that end with "
            f"{_widest_key(recipe.draft)} + 1 = {widest}{_by_default(recipe.draft)}"
        )


def _capacity(recipe: "Recipe") -> Iterator[str]:
    widest = recipe.widest_window
    least = widest + MIN_SEQUENCE
    chunk = "" if "prefill_chunk" in recipe.model_fields_set else f", {recipe.prefill_chunk} if left out,"
    window = (
        f"{MIN_SEQUENCE} tokens and the widest window, which is {widest} rows (prefill_chunk{chunk} or "
        f"{_widest_key(recipe.draft)} + 1{_by_default(recipe.draft)})"
    )
    if recipe.capacity < least:
        yield f"capacity: {_found(recipe, 'capacity')}, expected at least {least}: {window}"
    if (found := recipe.draft.own_capacity) is not None:
        if found < least:
            yield f"draft.capacity: found {found}, expected at least {least}: {window}"
        if found > recipe.capacity:
            said = "" if "capacity" in recipe.model_fields_set else ", which was left out; write it"
            yield f"draft.capacity: found {found}, expected at most capacity = {recipe.capacity}{said}"
    if recipe.check.max_new_tokens >= recipe.capacity:
        said = "" if "capacity" in recipe.model_fields_set else ", which was left out; write it"
        yield (
            f"check.max_new_tokens: {_found(recipe.check, 'max_new_tokens')}, "
            f"expected less than capacity = {recipe.capacity}{said}"
        )


def _precision(recipe: "Recipe") -> Iterator[str]:
    if recipe.precision not in recipe.backend.precisions:
        yield (
            f"precision: {_found(recipe, 'precision')}, allowed with this backend: "
            f"{', '.join(recipe.backend.precisions)}; {recipe.backend.precision_advice}"
        )


def _weights(recipe: "Recipe") -> Iterator[str]:
    if recipe.weights is None and recipe.cache == "fp32" and recipe.fidelity is not None:
        yield "fidelity: found without weights, which it judges; name a weights.format or leave it out"
    for key, weights in (("weights", recipe.weights), ("draft.weights", recipe.weights_of("draft"))):
        if not isinstance(weights, Weights) or (key == "draft.weights" and weights is recipe.weights):
            continue
        if not recipe.backend.takes_integers:
            yield (
                f"{key}: found {weights.format} with this backend, expected backend.kind onnxruntime with "
                f"provider cpu, whose kernels take them; leave {key} out elsewhere, or give tensorrt and "
                "tensorrt_rtx weights.format fp8, int4-awq or nvfp4"
            )
        elif recipe.precision != "fp32":
            yield f"precision: found {recipe.precision} with {key}, expected fp32: activations and KV cache stay fp32"


def _cache(recipe: "Recipe") -> Iterator[str]:
    if recipe.cache == "int8" and not (recipe.backend.runs_kernels and recipe.precision == "fp32"):
        yield (
            "cache: found int8, expected backend.kind onnxruntime with provider cpu and kernels true, and precision "
            "fp32: only the operators of specruntime-kernels read such caches"
        )


def _engine(recipe: "Recipe") -> Iterator[str]:
    yield from recipe.backend.weight_conflicts(
        recipe.engine_weights, recipe.precision, _found(recipe, "precision"), recipe.stored_formats
    )


def _widest_key(draft: DraftKind) -> str:
    """Return what decides how many drafted tokens a window holds, by its key."""
    lookup = draft.extra_lookup
    return "draft.lookup.k" if lookup is not None and lookup.k > draft.nodes else draft.width_key


def _by_default(draft: DraftKind) -> str:
    """Return what to add where the widest key is a `k` that the recipe leaves out."""
    key, lookup = _widest_key(draft), draft.extra_lookup
    if not (draft.nodes and key.endswith(".k")):
        return ""
    beside = key == "draft.lookup.k" and lookup is not None
    part, k = (lookup, lookup.k) if beside and lookup is not None else (draft, draft.nodes)
    return "" if "k" in part.model_fields_set else f"; {key} is {k} if left out"
