"""The schema of `manifest.json`: everything a runtime needs to know about a bundle.

Owns names, dtypes, shapes, alias pairs, profiles, vocabulary and file hashes. Knows nothing of how an engine runs.
Unknown keys are refused; a bundle of a newer schema version is refused before its other keys are looked at.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from specruntime.schema_numbers import MAX_FILES, MAX_PATH, MAX_PROFILES, Index, Size, Threads, Version
from specruntime.tensorrt_spec import TensorRTEngine

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"

DType = Literal["float32", "float16", "bfloat16", "int64", "int32", "bool"]
Dimension = Size | Literal["B", "W", "R"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
RelativePath = Annotated[str, Field(min_length=1, max_length=MAX_PATH)]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TensorSpec(_Closed):
    """One engine input or output. Symbols: B batch rows, W window width, R rows that get logits."""

    name: str
    dtype: DType
    shape: tuple[Dimension, ...]


class AliasPair(_Closed):
    """An input and an output that are the same memory (a KV cache written in place)."""

    input: str
    output: str


class Profile(_Closed):
    """One static shape the engine is run at: W = `width`, R = `rows`."""

    name: str
    width: Size
    rows: Size


class OnnxRuntimeEngine(_Closed):
    kind: Literal["onnxruntime"] = "onnxruntime"
    provider: Literal["cpu", "cuda", "tensorrt"] = "cpu"
    minimum_version: Version
    threads: Threads | None = None


EngineSpec = Annotated[OnnxRuntimeEngine | TensorRTEngine, Field(discriminator="kind")]


class GraphSpec(_Closed):
    """One compiled graph with its own KV cache: the target, or a draft model."""

    file: RelativePath
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    aliases: tuple[AliasPair, ...]
    profiles: Annotated[tuple[Profile, ...], Field(min_length=1, max_length=MAX_PROFILES)]
    batch: Size
    capacity: Size
    layers: Size
    vocab_size: Size
    padded_vocab_size: Size
    engine: EngineSpec

    @property
    def drafted(self) -> int:
        """Ids that one judged row answers with: 1, or the k of a fused draft, which writes k - 1 rows more."""
        columns = next(tensor.shape[1] for tensor in self.outputs if tensor.name == "top_ids")
        return columns if isinstance(columns, int) else 1

    def profile(self, name: str) -> Profile:
        """The profile called `name`; KeyError when the graph has none."""
        return next(p for p in self.profiles if p.name == name)


def stated_threads(graph: GraphSpec) -> int | None:
    """CPU threads the recipe gave the graph's engine; None where it gave none or the engine uses no CPU threads."""
    return graph.engine.threads if isinstance(graph.engine, OnnxRuntimeEngine) else None


class NoneDraft(_Closed):
    kind: Literal["none"] = "none"


class NgramDraft(_Closed):
    """Prompt lookup: match the last n tokens (n from `max_n` down to `min_n`) and copy up to `k` that followed."""

    kind: Literal["ngram"] = "ngram"
    k: Size
    max_n: Size
    min_n: Size


class ModelDraft(_Closed):
    """A smaller checkpoint that proposes `k` tokens: one step each, or all of them in one `fused` launch."""

    kind: Literal["model"] = "model"
    k: Size
    fused: bool = False
    graph: GraphSpec


DraftSpec = Annotated[NoneDraft | NgramDraft | ModelDraft, Field(discriminator="kind")]


class TokenizerSpec(_Closed):
    """Tokenizer files inside the bundle; `sha256` identifies the token table shared by target and draft."""

    file: RelativePath
    sha256: Sha256
    chat_template: RelativePath | None = None
    bos_token: str | None = None
    eos_token: str | None = None


class CheckPrompt(_Closed):
    """A prompt that `check` decodes: text for bundles with a tokenizer, ids for those without."""

    id: str
    text: str | None = None
    ids: tuple[Index, ...] | None = None
    chat: bool = True


class CheckSpec(_Closed):
    prompts: tuple[CheckPrompt, ...]
    max_new_tokens: Size


class FileRecord(_Closed):
    sha256: Sha256
    bytes: NonNegativeInt


class Manifest(_Closed):
    """All of `manifest.json`."""

    schema_version: int
    name: str
    producer: str
    precision: Literal["fp32", "fp16", "bf16"]
    target: GraphSpec
    draft: DraftSpec
    eos_token_ids: tuple[Index, ...]
    tokenizer: TokenizerSpec | None = None
    rope: str | None = None
    check: CheckSpec
    files: Annotated[dict[RelativePath, FileRecord], Field(max_length=MAX_FILES)]
