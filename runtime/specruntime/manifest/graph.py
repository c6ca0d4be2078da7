"""What a compiled graph is to the runtime: tensors, alias pairs, profiles and the engine that runs it.

Names, dtypes and shapes of tensors are written here once and travel by manifest. Knows nothing of drafts or files.
"""

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field

from specruntime.manifest.numbers import MAX_PROFILES, Closed, Index, RelativePath, Size
from specruntime.manifest.onnxruntime import OnnxRuntimeEngine, PrepackedWeights, WindowGraph
from specruntime.manifest.tensorrt import TensorRTEngine

DType = Literal["float32", "float16", "bfloat16", "int64", "int32", "int8", "bool"]
Dimension = Size | Literal["B", "W", "R"]
# A window of at least this many tokens of which only one is judged is a piece of a prompt: it is full by itself, and
# rows next to it would be padded to its width.
PROMPT_WIDTH = 16
EngineSpec = Annotated[OnnxRuntimeEngine | TensorRTEngine, Field(discriminator="kind")]
# Names of profiles, which decide what a draft runs them for. Manifests hold them, so they never change.
STEP = "step"  # one token
LEVEL = "level_"  # and a depth: the nodes of a tree down to it are asked for their children
LOGITS_SUFFIX = "_law"  # the same window with the logits over the target's vocabulary, which sampling needs
SELF_PROFILE = "draft"  # of a target that drafts for itself
SCALE_BYTES = 4  # of the float32 scale behind the levels of an int8 cache row


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
    packed: PrepackedWeights | None = getattr(graph.engine, "prepacked", None)
    return packed


def window_of(graph: GraphSpec) -> WindowGraph | None:
    """Return the graph over the operators of `specruntime-kernels` that was built with this one."""
    window: WindowGraph | None = getattr(graph.engine, "window", None)
    return window


def stated_threads(graph: GraphSpec) -> int | None:
    """CPU threads the recipe gave the graph's engine; None where it gave none or the engine uses no CPU threads."""
    threads: int | None = getattr(graph.engine, "threads", None)
    return threads


def over_operators(graph: GraphSpec) -> GraphSpec:
    """Return the graph as its window graph has it: other files, and rows of an int8 cache where it keeps one."""
    window = window_of(graph)
    assert window is not None, "asked for graphs that have a window graph alone"
    changes = {
        "file": window.file,
        "weights": window.weights,
        "profiles": tuple(
            profile
            if profile.file is None
            else profile.model_copy(update={"file": window.paths[profile.file]})
            for profile in graph.profiles
        ),
    }
    if window.cache == "int8":
        cached = {name for pair in graph.aliases for name in (pair.input, pair.output)}
        changes |= {
            key: tuple(_int8_row(tensor) if tensor.name in cached else tensor for tensor in tensors)
            for key, tensors in (("inputs", graph.inputs), ("outputs", graph.outputs))
        }
    return graph.model_copy(update=changes)


def _int8_row(tensor: TensorSpec) -> TensorSpec:
    *sizes, head_size = tensor.shape
    assert isinstance(head_size, int), "the sizes of a cache are fixed"
    return tensor.model_copy(update={"dtype": "int8", "shape": (*sizes, head_size + SCALE_BYTES)})
