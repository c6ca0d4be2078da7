"""A graph on disk: the ONNX file, its weights next to it, and the `GraphSpec` a runtime needs to bind it.

Weights always go to one external file, each tensor once. Owns the profile list of a graph; knows nothing of recipes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import onnx_ir as ir
from onnx_ir.passes.common import DeduplicateInitializersPass, RemoveUnusedNodesPass

from specexport.context import quiet
from specexport.passes.layer_path import full_outputs, path_outputs
from specruntime.manifest.graph import STEP as STEP_NAME
from specruntime.manifest.schema import (
    AliasPair,
    Dimension,
    DType,
    EngineSpec,
    GraphSpec,
    Profile,
    TensorSpec,
)

GRAPH_NAME = "graph.onnx"
WEIGHTS_NAME = "graph.weights"
PATH_NAME = "draft_path.onnx"
NARROWEST_PREFILL = 16
CATCH_UP_WIDTH = 2
STEP = Profile(name=STEP_NAME, width=1, rows=1)

_DTYPES: dict[ir.DataType, DType] = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
    ir.DataType.INT64: "int64",
    ir.DataType.INT32: "int32",
    ir.DataType.BOOL: "bool",
}


@dataclass(frozen=True)
class FileNames:
    """The files of one variant of a graph: the ONNX file, its weights, and a draft path on the same weights."""

    graph: str = GRAPH_NAME
    weights: str = WEIGHTS_NAME
    path: str = PATH_NAME


PLAIN_FILES = FileNames()
WINDOW_FILES = FileNames("window.onnx", "window.weights", "window_path.onnx")
"""Of the graph over the operators of `specruntime_kernels`, next to the plain one."""
_PAGE = 4096  # where a mapping of a weight begins


@dataclass(frozen=True)
class GraphFacts:
    """What a graph's tensors do not say: rows of its cache, layers, and how many ids are real tokens."""

    capacity: int
    layers: int
    vocab_size: int
    padded_vocab_size: int


def save_graph(model: ir.Model, directory: Path, names: FileNames = PLAIN_FILES) -> None:
    """Write the ONNX file and its weights into `directory`; equal initializers (tied embeddings) are stored once.

    Weights of a window graph begin at pages.
    """
    RemoveUnusedNodesPass()(model)
    DeduplicateInitializersPass()(model)
    alignment = _PAGE if names == WINDOW_FILES else None
    ir.save(
        model, directory / names.graph, external_data=names.weights, alignment=alignment, align_threshold=0
    )


def target_profiles(verify_widths: Sequence[int], prefill_chunk: int) -> tuple[Profile, ...]:
    """Return a plain step, one window per verify width with all its rows judged, and the prefill ladder."""
    verify = tuple(Profile(name=f"verify_{width}", width=width, rows=width) for width in verify_widths)
    return (STEP, *verify, *prefill_ladder(prefill_chunk))


def draft_profiles(prefill_chunk: int) -> tuple[Profile, ...]:
    """Return a step, the two-token window that catches up after full acceptance, and the prefill ladder."""
    catch_up = Profile(name="catch_up", width=CATCH_UP_WIDTH, rows=1)
    return (STEP, catch_up, *prefill_ladder(prefill_chunk))


def fused_draft_profiles(prefill_chunk: int) -> tuple[Profile, ...]:
    """Return the two-token window that every proposal of a fused draft is, and the prefill ladder."""
    return (Profile(name="draft", width=CATCH_UP_WIDTH, rows=1), *prefill_ladder(prefill_chunk))


def prefill_ladder(chunk: int) -> tuple[Profile, ...]:
    """`chunk` and its halves, so that the end of a prompt is not padded to a whole chunk."""
    widths = {chunk}
    while chunk // 2 >= NARROWEST_PREFILL:
        chunk //= 2
        widths.add(chunk)
    return tuple(Profile(name=f"prefill_{width}", width=width, rows=1) for width in sorted(widths))


def describe_graph(
    model: ir.Model,
    facts: GraphFacts,
    *,
    file: str,
    profiles: tuple[Profile, ...],
    batch: int,
    engine: EngineSpec,
) -> GraphSpec:
    """Return the manifest entry of a saved graph; `file` is its path inside the bundle."""
    inputs = tuple(_describe_tensor(value) for value in model.graph.inputs)
    outputs = tuple(_describe_tensor(value) for value in model.graph.outputs)
    taken = {tensor.name for tensor in inputs}
    aliases = tuple(
        AliasPair(input=past, output=tensor.name)
        for tensor in outputs
        if "present_" in tensor.name and (past := _past_of(tensor.name)) in taken
    )
    return GraphSpec(
        file=file,
        inputs=inputs,
        outputs=outputs,
        aliases=aliases,
        profiles=profiles,
        batch=batch,
        capacity=facts.capacity,
        layers=facts.layers,
        vocab_size=facts.vocab_size,
        padded_vocab_size=facts.padded_vocab_size,
        engine=engine,
    )


def _past_of(present: str) -> str:
    """Return the cache that an output writes: present_key.N, and draft_present_key.N of a draft path, write
    past_key.N.
    """
    return f"past_{present.partition('present_')[2]}"


def _describe_tensor(value: ir.Value) -> TensorSpec:
    assert value.name is not None and value.shape is not None and value.dtype is not None
    shape = tuple(cast(Dimension, dim if isinstance(dim, int) else str(dim.value)) for dim in value.shape)
    return TensorSpec(name=value.name, dtype=_DTYPES[value.dtype], shape=shape)


def split_paths(directory: Path, layers: Sequence[int], names: FileNames = PLAIN_FILES) -> None:
    """Leave the full path in the graph's file and write the draft's to one of its own; the weights file stays."""
    outputs = [value.name or "" for value in ir.load(directory / names.graph).graph.outputs]
    _write(directory, names.graph, names.path, path_outputs(outputs, layers))
    _write(directory, names.graph, names.graph, full_outputs(outputs))


def _write(directory: Path, source: str, name: str, outputs: Sequence[str]) -> None:
    model = ir.load(directory / source)
    for value in list(model.graph.outputs):
        if value.name not in outputs:
            model.graph.outputs.remove(value)
    with quiet():
        RemoveUnusedNodesPass()(model)
    ir.save(model, directory / name)
