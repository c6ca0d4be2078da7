"""One linear layer through NVIDIA ModelOpt: its weights and the rows it meets in, its numbers in fewer bits out.

The one place that imports ModelOpt. Each layer is quantised by itself, on its own rows, as ModelOpt's per-layer
algorithms do inside a whole model; that way a layer is in memory at a time and any graph will do.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime
import torch
from numpy.typing import NDArray

from specexport.graph.compiled import CompiledGraph
from specexport.graph.files import GRAPH_NAME
from specexport.passes import run_passes
from specexport.passes.host_numbers import WidenBfloat16
from specexport.recipe.weights import EngineWeights
from specexport.tensorrt.weights.store import (
    NVFP4_BLOCK,
    Fp8Linear,
    Int4Linear,
    Linear,
    Nvfp4Linear,
    smallest_scale,
)

_CONFIGS = {"fp8": "FP8_DEFAULT_CFG", "int4-awq": "INT4_AWQ_CFG", "nvfp4": "NVFP4_DEFAULT_CFG"}
_LARGEST_FP8 = 448.0
_LARGEST_INT4 = 7.0


def quantise_linear(
    matrix: NDArray[np.float32],
    rows: NDArray[np.float32],
    weights: EngineWeights,
    dtype: np.dtype[np.generic],
) -> Linear:
    """`matrix` [N, K] in the format of `weights`, calibrated on `rows` [n, K]; `dtype`: the precision of the graph."""
    outputs, size = matrix.shape
    with _silent():
        library: Any = import_module("modelopt.torch.quantization")
        layer = torch.nn.Linear(size, outputs, bias=False)
        layer.weight = torch.nn.Parameter(torch.from_numpy(matrix.copy()), requires_grad=False)
        config = _config(library, weights)
        samples = torch.from_numpy(rows)
        module = library.quantize(torch.nn.Sequential(layer), config, lambda model: model(samples))[0]
    with torch.no_grad():
        if weights.format == "fp8":
            return _fp8(module, dtype)
        if weights.format == "nvfp4":
            return _nvfp4(module)
        assert weights.block_size is not None, "int4-awq has blocks"
        return _int4(module, weights.block_size, dtype)


def _config(library: Any, weights: EngineWeights) -> dict[str, Any]:
    """ModelOpt's own configuration of the format, with the recipe's block."""
    config: dict[str, Any] = getattr(library, _CONFIGS[weights.format])
    if weights.format != "int4-awq":
        return config
    blocks = {-1: weights.block_size, "type": "static"}
    return {**config, "quant_cfg": _with_blocks(config["quant_cfg"], blocks)}


def _with_blocks(entries: Any, blocks: dict[Any, Any]) -> Any:
    """Return a copy of a configuration's entries in which whatever has blocks has these."""
    if isinstance(entries, dict):
        return {
            key: blocks if key == "block_sizes" else _with_blocks(item, blocks)
            for key, item in entries.items()
        }
    return [_with_blocks(item, blocks) for item in entries] if isinstance(entries, list) else entries


def _fp8(module: Any, dtype: np.dtype[np.generic]) -> Fp8Linear:
    scale = _scalar(module.weight_quantizer.amax / _LARGEST_FP8, dtype)
    levels = module.weight.float().numpy() / scale.astype(np.float32)
    values = np.clip(levels, -_LARGEST_FP8, _LARGEST_FP8).astype(ml_dtypes.float8_e4m3fn)
    return Fp8Linear(values, scale, _scalar(module.input_quantizer.amax / _LARGEST_FP8, dtype))


def _int4(module: Any, block: int, dtype: np.dtype[np.generic]) -> Int4Linear:
    """Return the int4 layer; its scales are rounded to the graph's precision first, so that the values fit them."""
    weight = module.weight.float().numpy()
    outputs, size = weight.shape
    found = (module.weight_quantizer.amax / _LARGEST_INT4).float().numpy().reshape(outputs, size // block)
    scales = np.maximum(found, smallest_scale(dtype)).astype(dtype)
    levels = weight.reshape(outputs, -1, block) / scales.astype(np.float32)[..., None]
    values = np.clip(np.rint(levels), -8, 7).reshape(outputs, size).astype(ml_dtypes.int4)
    factors = module.input_quantizer.pre_quant_scale.float().numpy().reshape(size)
    return Int4Linear(values, scales, factors.astype(dtype), block)


def _nvfp4(module: Any) -> Nvfp4Linear:
    tensors: Any = import_module("modelopt.torch.quantization.qtensor").NVFP4QTensor
    scale = tensors.get_weights_scaling_factor_2_from_quantizer(module.weight_quantizer)
    scale = scale.clamp(min=smallest_scale(np.dtype(np.float32)))
    packed, block_scales, _ = tensors.quantize(
        module.weight.float(), NVFP4_BLOCK, weights_scaling_factor_2=scale
    )
    pairs = packed._quantized_data.numpy()
    codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(module.weight.shape)
    input_scale = module.input_quantizer.amax / (6.0 * _LARGEST_FP8)
    return Nvfp4Linear(
        codes.astype(np.uint8).view(ml_dtypes.float4_e2m1fn),
        block_scales.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn),
        _scalar(scale, np.dtype(np.float32)),
        _scalar(input_scale, np.dtype(np.float32)),
    )


def _scalar(value: torch.Tensor, dtype: np.dtype[np.generic]) -> NDArray[Any]:
    return np.asarray(max(float(value), smallest_scale(dtype))).astype(dtype)


@contextmanager
def _silent() -> Iterator[None]:
    """ModelOpt prints what it does, and warns of a transformers it is not asked to work with."""
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        yield


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
    """Return a chain window of all of `ids` on an empty cache; no row is judged but the last."""
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
