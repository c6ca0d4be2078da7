"""The build stage of an engine's weights: a lowered graph in, the same over weights in fewer bits out, from the cache
where nothing that shapes it changed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from specexport.cache.code_digest import code_digest
from specexport.cache.entries import (
    cache_directory,
    cached_entry,
    entry_digest,
    read_record,
    text_sha256,
    write_record,
)
from specexport.checkpoints.fitting import encode_text
from specexport.errors import CheckpointUnsupported
from specexport.graph.compiled import CompiledGraph
from specexport.graph.files import GRAPH_NAME, WEIGHTS_NAME, save_graph
from specexport.passes import PassReport, run_passes
from specexport.passes.linear_layers import is_transposed
from specexport.recipe.weights import EngineWeights
from specexport.tensorrt.machine import MODELOPT, require_modelopt
from specexport.tensorrt.weights.quantise import quantise_linear, record_rows
from specexport.tensorrt.weights.store import Linear, StoreEngineWeights, stored_layers


def store_engine_weights(
    lowered: CompiledGraph, weights: EngineWeights, *, force: bool = False
) -> CompiledGraph:
    """`lowered` with its linear layers in the format of `weights`, calibrated on the recipe's text.

    Raises `BackendMissing` without ModelOpt, `CheckpointUnsupported` for a checkpoint without tokenizer, a text of less
    than two tokens, or a layer that the recipe's block does not divide.
    """
    library = require_modelopt(weights)
    ids = encode_text("weights.calibration", weights.calibration, lowered.canonical)
    parts = {
        "graph": entry_digest(lowered.directory),
        "weights": [weights.format, weights.block],
        "ids": ids,
        "code": code_digest(__name__),
        "libraries": [library, *(version(name) for name in ("torch", "onnxruntime"))],
    }
    key = text_sha256(json.dumps(parts, sort_keys=True))
    place = cache_directory() / "compiled" / key
    made_by = f"{MODELOPT} {library}, calibrated on {len(ids)} tokens"
    cached_entry(place, lambda directory: _fill(directory, lowered, weights, ids, made_by), force=force)
    (report,) = (
        PassReport(r["name"], r["changed"], tuple(r["reasons"])) for r in read_record(place)["passes"]
    )
    return replace(
        lowered,
        key=key,
        directory=place,
        files=(GRAPH_NAME, WEIGHTS_NAME),
        passes=(*lowered.passes, report),
    )


def _fill(
    directory: Path, lowered: CompiledGraph, weights: EngineWeights, ids: Sequence[int], made_by: str
) -> None:
    model = ir.load(lowered.directory / GRAPH_NAME)
    nodes = stored_layers(model.graph)
    for node in nodes:
        _require_divisible(node, weights)
    rows = record_rows(lowered, {_name(node.inputs[0]) for node in nodes}, ids)
    layers = _quantise(nodes, rows, weights)
    reports = run_passes(model, (StoreEngineWeights(layers, made_by),))
    save_graph(model, directory)
    write_record(directory, {"passes": [asdict(report) for report in reports]})


def _quantise(
    nodes: Sequence[ir.Node], rows: Mapping[str, NDArray[np.float32]], weights: EngineWeights
) -> dict[str, Linear]:
    found: dict[str, Linear] = {}
    for node in nodes:
        matrix = node.inputs[1]
        assert node.name is not None and matrix is not None and matrix.const_value is not None
        stored = matrix.const_value.numpy()
        oriented = stored if is_transposed(node) else stored.T
        found[node.name] = quantise_linear(
            oriented.astype(np.float32), rows[_name(node.inputs[0])], weights, stored.dtype
        )
    return found


def _require_divisible(node: ir.Node, weights: EngineWeights) -> None:
    matrix = node.inputs[1]
    assert matrix is not None and matrix.const_value is not None
    size = int(matrix.const_value.shape[1 if is_transposed(node) else 0])  # type: ignore[arg-type]
    block = weights.block_size
    if block is not None and size % block:
        fitting = [str(each) for each in (128, 64, 32) if size % each == 0]
        cure = f"set it to {fitting[0]}" if fitting and weights.format == "int4-awq" else "choose fp8"
        raise CheckpointUnsupported(
            f"found {block}, which does not divide the {size} numbers that {node.name} reads; {cure}",
            key="weights.block",
        )


def _name(value: ir.Value | None) -> str:
    assert value is not None and value.name is not None
    return value.name
