"""The recipe: everything that decides what a bundle is, as one closed schema.

Owns the keys, their ranges and the rules between them. Knows nothing of torch, files or networks: a recipe can be
checked on any machine. `load_recipe` reads one from YAML; mistakes are worded in `recipe_errors`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    NonNegativeInt,
    PositiveInt,
    Tag,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from specexport.errors import RecipeError
from specexport.recipe_errors import explain, read_yaml
from specexport.sources.address import LocalGguf, WheelMember, parse_address

MAX_DRAFTED = 64
MIN_SEQUENCE = 8
DEFAULT_TOLERANCE = {"fp32": 1e-3, "fp16": 5e-2, "bf16": 3e-1}

Precision = Literal["fp32", "fp16", "bf16"]
Drafted = Annotated[int, Field(ge=1, le=MAX_DRAFTED)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _absolute(text: str, info: ValidationInfo) -> str:
    directory = info.context.get("directory") if info.context else None
    return str(parse_address(text, directory))


class RandomModel(_Closed):
    """A model of `architecture` (a transformers model type) with random weights; `sizes` are its config's keys."""

    architecture: str
    sizes: dict[str, JsonValue] = Field(default_factory=dict)
    seed: NonNegativeInt = 0


class RandomSource(_Closed):
    random: RandomModel


class Noise(_Closed):
    """Gaussian noise, in units of each weight tensor's own standard deviation."""

    scale: Annotated[float, Field(ge=0)]
    seed: NonNegativeInt = 0


class NoiseSource(_Closed):
    noise_of_target: Noise


def _source_form(value: Any) -> str:
    if isinstance(value, (RandomSource, NoiseSource)):
        return type(value).__name__
    if isinstance(value, dict):
        return "NoiseSource" if "noise_of_target" in value else "RandomSource"
    return "Address"


AddressText = Annotated[str, AfterValidator(_absolute)]
TargetSource = Annotated[
    Annotated[AddressText, Tag("Address")] | Annotated[RandomSource, Tag("RandomSource")],
    Discriminator(lambda value: "Address" if _source_form(value) == "Address" else "RandomSource"),
]
DraftSource = Annotated[
    Annotated[AddressText, Tag("Address")]
    | Annotated[RandomSource, Tag("RandomSource")]
    | Annotated[NoiseSource, Tag("NoiseSource")],
    Discriminator(_source_form),
]


class _Checkpoint(_Closed):
    sha256: Sha256 | None = None
    trust_remote_code: bool = False


def _require_file_for_hash(source: object, sha256: str | None) -> None:
    is_file = isinstance(source, str) and isinstance(parse_address(source), (LocalGguf, WheelMember))
    if sha256 is not None and not is_file:
        raise ValueError(
            "sha256: found with a source of many files, allowed for a .gguf file only; remove the key"
        )


class Target(_Checkpoint):
    """The model whose output the bundle reproduces."""

    source: TargetSource

    @model_validator(mode="after")
    def _check_hash(self) -> Self:
        _require_file_for_hash(self.source, self.sha256)
        return self


class NoneDraft(_Closed):
    kind: Literal["none"]


class NgramDraft(_Closed):
    """Copies up to `k` tokens that followed the last n tokens before; n goes from `max_n` down to `min_n`."""

    kind: Literal["ngram"]
    k: Drafted = 10
    max_n: Annotated[int, Field(ge=1, le=16)] = 3
    min_n: Annotated[int, Field(ge=1, le=16)] = 1

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min_n > self.max_n:
            raise ValueError(f"min_n: found {self.min_n}, expected at most max_n = {self.max_n}")
        return self


class ModelDraft(_Checkpoint):
    """A smaller checkpoint with the target's tokenizer proposes `k` tokens."""

    kind: Literal["model"]
    source: DraftSource
    k: Drafted = 4
    capacity: PositiveInt | None = None

    @model_validator(mode="after")
    def _check_hash(self) -> Self:
        _require_file_for_hash(self.source, self.sha256)
        return self


Draft = Annotated[NoneDraft | NgramDraft | ModelDraft, Field(discriminator="kind")]


class OnnxRuntimeBackend(_Closed):
    kind: Literal["onnxruntime"]
    provider: Literal["cpu", "cuda", "tensorrt"] = "cpu"
    threads: PositiveInt | None = None


# A second backend turns this into `Annotated[A | B, Field(discriminator="kind")]`; nothing else changes.
Backend = OnnxRuntimeBackend


class Parity(_Closed):
    """`tolerance`: largest allowed difference of a logit from PyTorch; `tokens`: length of the compared sequence."""

    tolerance: Annotated[float, Field(gt=0)]
    tokens: Annotated[int, Field(ge=2)] = 48


def _prompt_form(value: Any) -> str:
    return "text" if isinstance(value, str) else "ids"


Prompt = Annotated[
    Annotated[str, Field(min_length=1), Tag("text")]
    | Annotated[tuple[NonNegativeInt, ...], Field(min_length=1), Tag("ids")],
    Discriminator(_prompt_form),
]


class Check(_Closed):
    """What `specexport check` decodes. `chat`: wrap text prompts in the tokenizer's chat template."""

    prompts: Annotated[tuple[Prompt, ...], Field(min_length=1)]
    max_new_tokens: PositiveInt = 64
    chat: bool = False


def default_verify_widths(draft: NoneDraft | NgramDraft | ModelDraft) -> tuple[int, ...]:
    """Window widths for judging drafts: an n-gram often finds few tokens, so it also gets a narrow one."""
    if draft.kind == "none":
        return ()
    widest = draft.k + 1
    return (4, widest) if draft.kind == "ngram" and widest > 6 else (widest,)


class Recipe(_Closed):
    """All of a recipe file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    target: Target
    precision: Precision = "fp32"
    capacity: PositiveInt
    prefill_chunk: PositiveInt = 128
    batch: PositiveInt = 1
    draft: Draft
    verify_widths: tuple[Annotated[int, Field(ge=2)], ...] = Field(
        default_factory=lambda data: default_verify_widths(data["draft"])
    )
    backend: Backend = OnnxRuntimeBackend(kind="onnxruntime")
    parity: Parity = Field(
        default_factory=lambda data: Parity(tolerance=DEFAULT_TOLERANCE[data["precision"]])
    )
    check: Check

    @property
    def widest_window(self) -> int:
        """Rows of the widest window any profile writes."""
        return max(self.prefill_chunk, *self.verify_widths, 1)

    @property
    def draft_capacity(self) -> int:
        """KV rows of the draft model's cache; the target's where the recipe does not say."""
        return (self.draft.capacity if isinstance(self.draft, ModelDraft) else None) or self.capacity

    @model_validator(mode="after")
    def _check_widths(self) -> Self:
        widths = self.verify_widths
        if isinstance(self.draft, NoneDraft):
            if widths:
                raise ValueError(f"verify_widths: found {list(widths)}, expected none with draft.kind none")
            return self
        widest = self.draft.k + 1
        if list(widths) != sorted(set(widths)) or not widths or widths[-1] != widest:
            raise ValueError(
                f"verify_widths: found {list(widths)}, expected ascending widths that end with draft.k + 1 = {widest}"
            )
        return self

    @model_validator(mode="after")
    def _check_capacity(self) -> Self:
        least = self.widest_window + MIN_SEQUENCE
        for key, found in (("capacity", self.capacity), ("draft.capacity", self.draft_capacity)):
            if found < least:
                raise ValueError(
                    f"{key}: found {found}, expected at least {least}: the widest window "
                    f"(prefill_chunk or draft.k + 1) is {self.widest_window} and {MIN_SEQUENCE} tokens must fit before it"
                )
        if self.draft_capacity > self.capacity:
            raise ValueError(
                f"draft.capacity: found {self.draft_capacity}, expected at most capacity = {self.capacity}"
            )
        if self.check.max_new_tokens >= self.capacity:
            raise ValueError(
                f"check.max_new_tokens: found {self.check.max_new_tokens}, expected less than capacity = {self.capacity}"
            )
        return self

    @model_validator(mode="after")
    def _check_precision(self) -> Self:
        if self.precision == "bf16" and self.backend.provider == "cpu":
            raise ValueError(
                "precision: found bf16 with backend.provider cpu, expected fp32 or fp16: "
                "ONNX Runtime's CPU provider has no bf16 kernels"
            )
        return self


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
