"""The part of a recipe that says how weights are stored, and how much of the checkpoint must survive it."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from specexport.graph.plan import Activations, LinearPlan, WeightFormat, WeightPlan
from specexport.recipe.sources import RecipePart

_MOST_TEXT = 1 << 20


class LmHead(RecipePart):
    """The LM head; the embedding table is stored with it."""

    format: Literal["int8", "int4", "fp32"] = "int8"
    """The format of its weights."""
    activations: Literal["blocks", "fine"] | None = Field(
        default_factory=lambda data: None if data.get("format") == "fp32" else "fine"
    )
    """How the rows that meet integer weights are rounded; fine where it is not given."""

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        if (self.activations is None) is not (self.format == "fp32"):
            expected = "none, as rows that meet fp32 stay" if self.format == "fp32" else "blocks or fine"
            found = self.activations or "null"
            raise ValueError(f"activations: found {found} with format {self.format}, expected {expected}")
        return self


class Weights(RecipePart):
    """Integer weights. Activations between layers and the KV cache stay fp32."""

    format: Literal["int8", "int4"]
    """The format of every linear layer but the LM head. A checkpoint that was stored in 4-bit blocks keeps its own
    numbers.
    """
    activations: Activations = "blocks"
    """How the rows that meet the weights are rounded, always by scales of their own: blocks (8 bits, a scale per block
    of a row), fine (about 15 bits, twice the arithmetic) or rows (8 bits, one scale per row; int8 only)."""
    block: Literal[16, 32, 64, 128] = 32
    """Neighbouring weights of an output that share a scale."""
    lm_head: LmHead = LmHead()

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        if self.activations == "rows" and self.format != "int8":
            raise ValueError(
                f"activations: found rows with format {self.format}, expected blocks or fine: one scale per row meets "
                "int8 weights only"
            )
        return self

    def plan(self) -> WeightPlan:
        """Return these formats as the graph passes take them."""
        head: WeightFormat = self.lm_head.format
        return WeightPlan(
            linear=LinearPlan(self.format, self.activations),
            lm_head=LinearPlan(head, self.lm_head.activations or "blocks"),
            block=self.block,
        )


class RunningText(RecipePart):
    """A text that is read token by token."""

    text: Annotated[str, Field(min_length=1, max_length=_MOST_TEXT)]
    """The running text; `file: PATH` in its place reads it from a file next to the recipe."""
    tokens: Annotated[int, Field(ge=16)] = 1024
    """Tokens of it that are read."""

    @model_validator(mode="before")
    @classmethod
    def _read_file(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict) or "file" not in value:
            return value
        if "text" in value:
            raise ValueError("found file and text, expected one of them")
        rest = {key: item for key, item in value.items() if key != "file"}
        return {**rest, "text": _read_text(value["file"], info)}


class EngineWeights(RecipePart):
    """Weights of a TensorRT engine in fewer bits, by NVIDIA ModelOpt. LM head, embedding table, KV cache and a draft's
    graph stay in `precision`."""

    format: Literal["fp8", "int4-awq", "nvfp4"]
    """fp8: E4M3, weights and the rows that meet them, one scale each, fixed at build. int4-awq: 4-bit integers with a
    scale per block, rows in `precision`. nvfp4: E2M1, weights and rows, a scale per 16 neighbours."""
    block: Literal[32, 64, 128] | None = None
    """int4-awq: neighbouring weights of an output that share a scale; 128 where it is not given."""
    calibration: RunningText
    """What the scales are found on."""

    @model_validator(mode="after")
    def _check_block(self) -> Self:
        if self.block is not None and self.format != "int4-awq":
            raise ValueError(
                f"block: found {self.block} with format {self.format}, expected none: only int4-awq has a choice"
            )
        return self

    @property
    def block_size(self) -> int | None:
        """Numbers that share a scale along a row; None: all of a matrix."""
        if self.format == "fp8":
            return None
        return 16 if self.format == "nvfp4" else self.block or 128


class Fidelity(RunningText):
    """What the weights' format may cost, on running text, against the checkpoint in `precision`. A limit that is not
    kept stops the build."""

    top1_agreement: Annotated[float, Field(gt=0, le=1)] | None = Field(None, examples=[0.95])
    """Least share of positions with the same most likely token."""
    kl: Annotated[float, Field(gt=0)] | None = Field(None, examples=[0.02])
    """Largest mean KL divergence from the checkpoint's distribution, in nats per token."""
    perplexity_ratio: Annotated[float, Field(gt=0)] | None = Field(None, examples=[1.05])
    """Largest perplexity, as a multiple of the checkpoint's own."""


def _read_text(name: Any, info: ValidationInfo) -> str:
    if not isinstance(name, str):
        raise ValueError(f"file: found {name!r}, expected the path of a text file")
    directory = info.context.get("directory") if info.context else None
    path = (directory or Path()) / name
    if not path.is_file():
        raise ValueError(f"file: {path} is not a file; give the path of a text, relative to the recipe")
    with path.open("rb") as stream:
        raw = stream.read(_MOST_TEXT + 1)
    if len(raw) > _MOST_TEXT:
        raise ValueError(f"file: {path} is larger than {_MOST_TEXT >> 20} MB; give a shorter text")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"file: {path} is not UTF-8 text ({error.reason})") from None
