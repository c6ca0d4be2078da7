"""What a compiled graph is to the runtime: tensors, alias pairs, profiles and the engine that runs it.

Names, dtypes and shapes of tensors are written here once and travel by manifest. Knows nothing of drafts or files.
"""

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from specruntime.manifest.numbers import MAX_PATH, MAX_PROFILES, Index, Size, Threads, Version
from specruntime.manifest.tensorrt import TensorRTEngine

DType = Literal["float32", "float16", "bfloat16", "int64", "int32", "int8", "bool"]
Dimension = Size | Literal["B", "W", "R"]
# A window of at least this many tokens of which only one is judged is a piece of a prompt: it is full by itself, and
# rows next to it would be padded to its width.
PROMPT_WIDTH = 16
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
RelativePath = Annotated[str, Field(min_length=1, max_length=MAX_PATH)]


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TensorSpec(Closed):
    """One engine input or output. Symbols: B batch rows, W window width, R rows that get logits."""

    name: str
    dtype: DType
    shape: tuple[Dimension, ...]


class AliasPair(Closed):
    """An input and an output that are the same memory (a KV cache written in place)."""

    input: str
    output: str


class Profile(Closed):
    """One static shape the engine is run at: W = `width`, R = `rows`.

    `outputs` names what a run of it fills; None: every output of the graph. `file` is the ONNX file of a path that is
    run without the rest of the graph, next to the graph's own and on the same weights; None: the graph's own file.
    """

    name: str
    width: Size
    rows: Size
    outputs: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    file: RelativePath | None = None

    def computes(self, output: str) -> bool:
        """Whether a run fills this output of the graph."""
        return self.outputs is None or output in self.outputs

    @property
    def feeds_prompts(self) -> bool:
        """Whether it is wide and judges one row: such windows are run for one sequence at a time."""
        return self.rows == 1 and self.width >= PROMPT_WIDTH


class PrepackedWeights(Closed):
    """Weights in the layout of ONNX Runtime's CPU kernels, saved at build behind the plain ones, in the same file.

    `file` is the optimised graph that names both, next to the graph's own. It is for hosts with this `version` of the
    library, this `architecture` and exactly these processor `features`; others load the graph's own file and pack.
    """

    file: RelativePath
    version: Version
    architecture: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{1,20}$")]
    features: Annotated[tuple[Annotated[str, Field(pattern=r"^[a-z0-9_]{1,20}$")], ...], Field(max_length=64)]
    weights: RelativePath
    bytes: Annotated[int, Field(ge=1, le=2**63 - 1)]
    """By which the file `weights` is longer than the plain weights."""
    plain_sha256: Sha256
    """The sha256 of the plain weights."""


class WindowGraph(Closed):
    """The same graph over the operators of `specruntime-kernels`, next to the graph's own file.

    `weights` are its packed weights, then the target's where it shares some. `paths` names, by the `file` of a profile,
    the file of the same path over the operators. It takes inputs of the graph by name, not all of them; with `cache`
    int8 a cache row is int8 and 4 bytes longer: its levels, then their float32 scale. `exact`: every product and
    attention runs on the operators, so that a row's numbers do not depend on the window around it.
    """

    file: RelativePath
    weights: Annotated[tuple[RelativePath, ...], Field(min_length=1, max_length=2)]
    operators: Annotated[int, Field(ge=1, le=2**31 - 1)]
    layout: Annotated[int, Field(ge=1, le=2**31 - 1)]
    cache: Literal["fp32", "int8"] = "fp32"
    exact: bool = False
    paths: Annotated[dict[RelativePath, RelativePath], Field(max_length=MAX_PROFILES)] = Field(
        default_factory=dict
    )

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that it names."""
        return (self.file, *self.weights, *self.paths.values())


class OnnxRuntimeEngine(Closed):
    kind: Literal["onnxruntime"] = "onnxruntime"
    provider: Literal["cpu", "cuda", "tensorrt"] = "cpu"
    minimum_version: Version
    threads: Threads | None = None
    prepacked: PrepackedWeights | None = None
    window: WindowGraph | None = None

    @model_serializer(mode="wrap")
    def _leave_out_window(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write no key for a window graph that is not there: older runtimes refuse keys they do not know."""
        written: dict[str, Any] = serialise(self)
        return written if self.window is not None else {k: v for k, v in written.items() if k != "window"}


EngineSpec = Annotated[OnnxRuntimeEngine | TensorRTEngine, Field(discriminator="kind")]


class GraphSpec(Closed):
    """One compiled graph with its own KV cache: the target, or a draft. Heads on features have no cache and no layers.

    `batch_sizes`, ascending from 1 to `batch`, are the numbers of sequences that one launch may hold.
    """

    file: RelativePath
    weights: Annotated[tuple[RelativePath, ...], Field(max_length=2)] = ()
    """Its weight files, where they do not lie next to `file`: its own, then the target's, of which it shares some."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    aliases: tuple[AliasPair, ...]
    profiles: Annotated[tuple[Profile, ...], Field(min_length=1, max_length=MAX_PROFILES)]
    batch: Size
    batch_sizes: Annotated[tuple[Size, ...], Field(min_length=1, max_length=MAX_PROFILES)] = (1,)
    capacity: Size
    layers: Index
    vocab_size: Size
    padded_vocab_size: Size
    engine: EngineSpec

    @property
    def weights_directory(self) -> PurePosixPath:
        """Where its own weights lie, relative to the bundle."""
        return PurePosixPath(self.weights[0] if self.weights else self.file).parent

    @property
    def drafted(self) -> int:
        """Ids that one judged row answers with: 1, or the k of a fused draft, which writes k - 1 rows more."""
        shape = next((tensor.shape for tensor in self.outputs if tensor.name == "top_ids"), ())
        return shape[1] if len(shape) == 2 and isinstance(shape[1], int) else 1

    def sizes_of(self, profile: Profile) -> tuple[int, ...]:
        """How many sequences one launch of the profile may hold, ascending from 1."""
        return (1,) if profile.feeds_prompts else self.batch_sizes

    def for_one(self) -> "GraphSpec":
        """Return the same graph as a session of its own sees it: one sequence."""
        return self if self.batch == 1 else self.model_copy(update={"batch": 1, "batch_sizes": (1,)})

    def profile(self, name: str) -> Profile:
        """Return the profile called `name`; KeyError when the graph has none."""
        return next(p for p in self.profiles if p.name == name)


def prepacked_of(graph: GraphSpec) -> PrepackedWeights | None:
    """Return the packed weights that were saved with the graph."""
    return graph.engine.prepacked if isinstance(graph.engine, OnnxRuntimeEngine) else None


def window_of(graph: GraphSpec) -> WindowGraph | None:
    """Return the graph over the operators of `specruntime-kernels` that was built with this one."""
    return graph.engine.window if isinstance(graph.engine, OnnxRuntimeEngine) else None


def stated_threads(graph: GraphSpec) -> int | None:
    """CPU threads the recipe gave the graph's engine; None where it gave none or the engine uses no CPU threads."""
    return graph.engine.threads if isinstance(graph.engine, OnnxRuntimeEngine) else None
