"""What a graph's linear layers read on a text: the rows that quantisers are calibrated on.

Runs the graph in ONNX Runtime on the CPU, a bfloat16 graph as its float32 twin.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray

from specexport.compiled_graph import CompiledGraph
from specexport.graph_files import GRAPH_NAME
from specexport.passes import run_passes
from specexport.passes.widen_bfloat16 import WidenBfloat16

_LONGEST_PIECE = 512
_TYPES = {"float16": np.float16, "bfloat16": np.float32, "float32": np.float32}


def record_rows(
    graph: CompiledGraph, values: Collection[str], ids: Sequence[int]
) -> Mapping[str, NDArray[np.float32]]:
    """[tokens, K] of each named value of `graph` over the text `ids`, in pieces that each begin with an empty cache."""
    names = sorted(values)
    found: dict[str, list[NDArray[np.float32]]] = {name: [] for name in names}
    with TemporaryDirectory() as name:
        session = _open(graph, names, Path(name))
        piece = min(_LONGEST_PIECE, graph.spec.capacity)
        for begin in range(0, len(ids), piece):
            rows = session.run(names, _feeds(graph, ids[begin : begin + piece]))
            for key, value in zip(names, rows, strict=True):
                found[key].append(value.reshape(-1, value.shape[-1]).astype(np.float32))
    return {name: np.concatenate(pieces) for name, pieces in found.items()}


def _open(graph: CompiledGraph, names: Sequence[str], directory: Path) -> Any:
    model = ir.load(graph.directory / GRAPH_NAME)
    run_passes(model, (WidenBfloat16(),))
    values = {value.name: value for node in model.graph for value in node.outputs}
    for name in names:
        value = values[name]
        if value not in model.graph.outputs:
            model.graph.outputs.append(value)
    ir.save(model, directory / GRAPH_NAME, external_data=f"{GRAPH_NAME}.weights")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(directory / GRAPH_NAME, options, providers=["CPUExecutionProvider"])


def _feeds(graph: CompiledGraph, ids: Sequence[int]) -> dict[str, NDArray[Any]]:
    """A chain window of all of `ids` on an empty cache; no row is judged but the last."""
    count = len(ids)
    known: dict[str, NDArray[Any]] = {
        "input_ids": np.array([ids], np.int64),
        "position_ids": np.arange(count, dtype=np.int64)[None],
        "cache_length": np.zeros(1, np.int64),
        "window_mask": np.tri(count, dtype=np.bool_)[None],
        "logits_rows": np.array([[count - 1]], np.int64),
    }
    feeds: dict[str, NDArray[Any]] = {}
    for tensor in graph.spec.inputs:
        if tensor.name in known:
            feeds[tensor.name] = known[tensor.name]
            continue
        assert tensor.name.startswith("past_"), f"{tensor.name}: no input of a target"
        shape = [size if isinstance(size, int) else 1 for size in tensor.shape]
        feeds[tensor.name] = np.zeros(shape, _TYPES[tensor.dtype])
    return feeds
