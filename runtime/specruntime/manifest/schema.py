"""The schema of `manifest.json`: everything a runtime needs to know about a bundle.

Owns vocabulary, check prompts, measured times and file hashes; `graph` owns graphs, `drafts` each kind of draft. Knows
nothing of how an engine runs. Unknown keys are refused; a bundle of a newer schema version is refused before its other
keys are looked at.
"""

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, GetCoreSchemaHandler, NonNegativeInt
from pydantic_core import CoreSchema

from specruntime.drafts import KINDS, DraftSpec, NgramDraft
from specruntime.manifest.draft import TreeSpec
from specruntime.manifest.graph import (
    AliasPair,
    Dimension,
    DType,
    EngineSpec,
    GraphSpec,
    Profile,
    TensorSpec,
    prepacked_of,
    stated_threads,
    window_of,
)
from specruntime.manifest.numbers import MAX_FILES, MAX_PROFILES, Closed, Index, RelativePath, Sha256, Size
from specruntime.manifest.onnxruntime import OnnxRuntimeEngine, PrepackedWeights, WindowGraph

__all__ = [
    "MANIFEST_NAME",
    "SCHEMA_VERSION",
    "AdaptiveSpec",
    "AliasPair",
    "CheckPrompt",
    "CheckSpec",
    "DType",
    "Dimension",
    "DraftSpec",
    "EngineSpec",
    "FileRecord",
    "GraphSpec",
    "Manifest",
    "OnnxRuntimeEngine",
    "PrepackedWeights",
    "Profile",
    "RelativePath",
    "Sha256",
    "TensorSpec",
    "TokenizerSpec",
    "TreeSpec",
    "WindowGraph",
    "prepacked_of",
    "stated_threads",
    "window_of",
]

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"

Milliseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
StepTimes = Annotated[dict[str, Milliseconds], Field(max_length=MAX_PROFILES)]


class AdaptiveSpec(Closed):
    """The draft's length follows acceptance and these step times, measured on the build host, by profile name.

    With `lookup` prompt lookup drafts wherever that promises more than the bundle's own draft.
    """

    step_ms: StepTimes  # of the target
    draft_ms: StepTimes
    lookup: NgramDraft | None = None


class TokenizerSpec(Closed):
    """Tokenizer files inside the bundle; `sha256` identifies the token table shared by target and draft."""

    file: RelativePath
    sha256: Sha256
    chat_template: RelativePath | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    # Further special tokens that a chat template may name, such as "unk_token".
    other_tokens: dict[str, str] = Field(default_factory=dict, max_length=64)

    @property
    def special_tokens(self) -> dict[str, str]:
        """By the names that chat templates use; a tokenizer that lacks one leaves it undefined there."""
        ends = {"bos_token": self.bos_token, "eos_token": self.eos_token}
        return self.other_tokens | {name: token for name, token in ends.items() if token is not None}


class CheckPrompt(Closed):
    """A prompt that `check` decodes: text for bundles with a tokenizer, ids for those without."""

    id: str
    text: str | None = None
    ids: tuple[Index, ...] | None = None
    chat: bool = True


class CheckSpec(Closed):
    prompts: tuple[CheckPrompt, ...]
    max_new_tokens: Size


class FileRecord(Closed):
    sha256: Sha256
    bytes: NonNegativeInt


class _AnyKind:
    """The kinds of draft that are known when the schema is made, discriminated by `kind`."""

    def members(self) -> Iterable[type[BaseModel]]:
        return KINDS

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(Annotated[reduce(or_, KINDS), Field(discriminator="kind")])


class Manifest(Closed):
    """All of `manifest.json`."""

    schema_version: int
    name: str
    producer: str
    precision: Literal["fp32", "fp16", "bf16", "int8", "int4", "fp8", "int4-awq", "nvfp4"]
    """Number format of everything, or, int8 and int4, of the weights, with activations and KV cache in fp32; fp8,
    int4-awq and nvfp4 are formats of an engine's linear layers, the rest is in the dtype of the cache."""
    target: GraphSpec
    draft: Annotated[DraftSpec, _AnyKind()]
    adaptive: AdaptiveSpec | None = None
    eos_token_ids: tuple[Index, ...]
    tokenizer: TokenizerSpec | None = None
    rope: str | None = None
    check: CheckSpec
    files: Annotated[dict[RelativePath, FileRecord], Field(max_length=MAX_FILES)]
