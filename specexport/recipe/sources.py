"""The part of a recipe that says where a model's weights come from; what is refused about them after the recipe was
read names the recipe's file and the key that has to change.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    NonNegativeInt,
    Tag,
    ValidationInfo,
    model_validator,
)

from specexport.checkpoints.address import LocalGguf, WheelMember, parse_address
from specexport.errors import (
    CheckpointUnsupported,
    FidelityError,
    ParityError,
    SourceError,
    TokenizerMismatch,
)

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class RecipePart(BaseModel):
    """Base of every part of a recipe: no unknown keys, no changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class RandomModel(RecipePart):
    """A model with random weights, for tests."""

    architecture: Annotated[str, Field(examples=["llama"])]
    """A transformers model type of a decoder-only language model, for example llama."""
    sizes: dict[str, JsonValue] = Field(default_factory=dict)
    """Keys of that model type's config; the rest keep their defaults."""
    seed: NonNegativeInt = 0


class RandomSource(RecipePart):
    """Weights from a seed."""

    random: RandomModel


class Noise(RecipePart):
    """Gaussian noise on every weight."""

    scale: Annotated[float, Field(ge=0, examples=[0.1])]
    """In units of each weight tensor's own standard deviation."""
    seed: NonNegativeInt = 0


class NoiseSource(RecipePart):
    """The target itself with declared noise, for tests."""

    noise_of_target: Noise


def absolute_address(text: str, info: ValidationInfo) -> str:
    """Return an address in full; a local one is taken from the directory of the recipe that is being read."""
    directory = info.context.get("directory") if info.context else None
    return str(parse_address(text, directory))


def _target_form(value: Any) -> str:
    return "RandomSource" if isinstance(value, (dict, RandomSource)) else "Address"


def _draft_form(value: Any) -> str:
    names_noise = isinstance(value, NoiseSource) or (isinstance(value, dict) and "noise_of_target" in value)
    return "NoiseSource" if names_noise else _target_form(value)


Address = Annotated[str, AfterValidator(absolute_address), Tag("Address")]
_Random = Annotated[RandomSource, Tag("RandomSource")]
_Noise = Annotated[NoiseSource, Tag("NoiseSource")]
TargetSource = Annotated[Address | _Random, Discriminator(_target_form)]
DraftSource = Annotated[Address | _Random | _Noise, Discriminator(_draft_form)]


class ModelSource(RecipePart):
    """A checkpoint: ./directory, ./file.gguf, hub://org/name@revision, pypi://dist==version/file.gguf, or a seed."""

    source: Annotated[TargetSource | DraftSource, Field(examples=["./my-model"])]
    """Local paths are taken from the recipe's own directory."""
    sha256: Sha256 | None = None
    """What a single .gguf file must hash to."""
    trust_remote_code: bool = False
    """Run Python code that the checkpoint brings along."""

    @model_validator(mode="after")
    def _check_hash(self) -> Self:
        source = self.source
        is_file = isinstance(source, str) and isinstance(parse_address(source), (LocalGguf, WheelMember))
        if self.sha256 is not None and not is_file:
            raise ValueError(
                "sha256: found with a source of many files, allowed with a .gguf file; remove the key"
            )
        return self


class Target(ModelSource):
    """The model whose output the bundle reproduces."""

    source: Annotated[TargetSource, Field(examples=["./my-model"])]


@contextmanager
def naming_source(side: str) -> Iterator[None]:
    """Begin a refusal of the checkpoint of `side` ("target" or "draft") with the key that names it.

    One about a key below, `source.random.seed`, gets the rest of the path; one that has its key stays.
    """
    try:
        yield
    except (SourceError, CheckpointUnsupported) as error:
        if error.key is None:
            raise type(error)(error.message, key=f"{side}.source") from error
        if not error.key.startswith("source."):
            raise
        raise type(error)(error.message, key=f"{side}.{error.key}") from error


@contextmanager
def naming_file(path: Path | str) -> Iterator[None]:
    """Begin a refusal that has a key of the recipe, or is of its two vocabularies, with the recipe's file."""
    try:
        yield
    except (SourceError, CheckpointUnsupported, TokenizerMismatch, ParityError, FidelityError) as error:
        if error.key is None and not isinstance(error, TokenizerMismatch):
            raise
        raise type(error)(f"{path}: {error}") from error
