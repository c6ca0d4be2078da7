"""Targets of random weights, from 10 million to 1.5 billion parameters: what they are, and what a window of them needs.

They come from the project's own `random:` source through its own export and passes, and stop short of a bundle: time
does not depend on what the weights say, so nothing is compared with PyTorch and no prompt is decoded.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from shutil import disk_usage

from limits import Need

from specexport.backends import backend_of
from specexport.cache.entries import cache_directory
from specexport.checkpoints.named import RecipeCheckpoints, checkpoint_digests
from specexport.graph.canonical import canonical_key, export_canonical
from specexport.graph.compiled import CompiledGraph, compile_graph
from specexport.graph.files import WEIGHTS_NAME
from specexport.graph.plan import GraphPlan
from specexport.recipe.schema import Recipe
from specexport.recipe.weights import LmHead, Weights
from specruntime.manifest.schema import Profile

PRECISIONS = ("fp32", "int8")
# As recipes/smollm2-135m-int8-fast.yaml has them.
_WEIGHTS = Weights(format="int8", activations="blocks", lm_head=LmHead(format="int8", activations="fine"))
_REFERENCE_TOKENS = 2
_FP32 = 4
_HEADROOM = 4  # GB that stay free on the disk


@dataclass(frozen=True)
class Shape:
    """A llama with the embedding table as its head."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int
    head_dim: int = 64

    @property
    def linear(self) -> int:
        """Weights of all linear layers but the head."""
        queries, pairs = self.heads * self.head_dim, 2 * self.kv_heads * self.head_dim
        attention = self.hidden * (2 * queries + pairs)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def table(self) -> int:
        return self.hidden * self.vocab

    @property
    def parameters(self) -> int:
        return self.linear + self.table + (2 * self.layers + 1) * self.hidden

    @property
    def row_bytes(self) -> int:
        """Bytes of one token in the KV cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim * _FP32

    def need(
        self, weights: int, precision: str, *, width: int, rows: int, context: int, batch: int = 1
    ) -> Need:
        """The need of a launch of `batch` windows, each after `context` tokens; `rows` of each meet the head."""
        head_rows = (
            rows if precision == "fp32" else 2 * rows
        )  # `fine`: what 8 bits leave of a row is a second row
        linear = 2 * batch * (width * self.linear + head_rows * self.table)
        seen = sum(context + place + 1 for place in range(width))
        attention = 4 * batch * self.layers * self.heads * self.head_dim * seen
        cache = batch * self.row_bytes * (context + width)
        if precision == "fp32":
            return Need(weights + cache, linear + attention, 0)
        return Need(weights + cache, attention, linear)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("10M", 10, 256, 768, 4, 2, 8192),
        Shape("135M", 30, 576, 1536, 9, 3, 49152),
        Shape("360M", 32, 960, 2560, 15, 5, 49152),
        Shape("1.5B", 24, 2048, 8192, 32, 8, 49152),
    )
}


@dataclass(frozen=True)
class Made:
    """A graph that can be opened, and the bytes of its weights."""

    shape: Shape
    precision: str
    graph: CompiledGraph

    @property
    def directory(self) -> Path:
        return self.graph.directory

    @property
    def weights(self) -> int:
        return (self.directory / WEIGHTS_NAME).stat().st_size


def make(
    shape: Shape, precision: str, *, capacity: int, profiles: tuple[Profile, ...], batch: int = 1
) -> Made:
    """The compiled graph, from the cache where it has been made before.

    Raises `SystemExit` where the disk is too full for it.
    """
    recipe = _recipe(shape, capacity, batch)
    checkpoints = RecipeCheckpoints(recipe, lambda stage: None)
    key = canonical_key(
        checkpoint_digests(recipe)["target"],
        precision=recipe.precision,
        capacity=capacity,
        reference_tokens=_REFERENCE_TOKENS,
    )
    _require_disk(shape)
    canonical = export_canonical(
        key, checkpoints.loader("target"), capacity=capacity, reference_tokens=_REFERENCE_TOKENS
    )
    plan = GraphPlan(weights=None if precision == "fp32" else _WEIGHTS.plan())
    graph = compile_graph(
        canonical, backend_of(recipe.backend), profiles=profiles, batch=recipe.batch[-1], plan=plan
    )
    sized = graph.spec.model_copy(update={"batch_sizes": recipe.batch})
    return Made(shape, precision, replace(graph, spec=sized))


def _recipe(shape: Shape, capacity: int, batch: int) -> Recipe:
    sizes = {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": capacity,
        "tie_word_embeddings": True,
    }
    return Recipe.model_validate(
        {
            "name": f"scaling-{shape.name}",
            "target": {"source": {"random": {"architecture": "llama", "sizes": sizes, "seed": 0}}},
            "capacity": capacity,
            "batch": batch,
            "draft": {"kind": "none"},
            "check": {"prompts": [[1, 2, 3]]},
        }
    )


def _require_disk(shape: Shape) -> None:
    """The traced graph and its variant lie on the disk side by side."""
    cache_directory().mkdir(parents=True, exist_ok=True)
    free, needed = disk_usage(cache_directory()).free / 1e9, 2 * _FP32 * shape.parameters / 1e9 + _HEADROOM
    if free < needed:
        raise SystemExit(
            f"{shape.name} needs {needed:.0f} GB of disk at {cache_directory()} and {free:.0f} are free: "
            "make room, or leave it out with --models"
        )
