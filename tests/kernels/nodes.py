"""Graphs of one operator of `specruntime-kernels`, and the packed weights and plain arithmetic to test them with."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

kernels = pytest.importorskip("specruntime_kernels")

DOMAIN = "specruntime"
_TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.bool_): TensorProto.BOOL,
}
Array = NDArray[Any]


def node_model(
    op: str,
    inputs: Mapping[str, Array | None],
    outputs: Mapping[str, int],
    *,
    constants: Mapping[str, Array] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """A graph of one node. `inputs` are in the node's order, None for one that is left out; those in `constants` are
    initializers. `outputs` are element types by name."""
    constants = constants or {}
    names = [("" if value is None else name) for name, value in inputs.items()]
    while names and not names[-1]:
        names.pop()
    values = [
        helper.make_tensor_value_info(name, _TYPES[value.dtype], [None] * value.ndim)
        for name, value in inputs.items()
        if value is not None and name not in constants
    ]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    node = helper.make_node(op, names, list(outputs), name="tested", domain=DOMAIN, **attributes)
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph([node], "one-node", values, results, initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def open_model(model: onnx.ModelProto, path: str | None = None, threads: int = 1) -> Any:
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.log_severity_level = 4
    if path is not None:
        settings.add_session_config_entry("specruntime.kernels", path)
    settings.register_custom_ops_library(str(kernels.library_path()))
    return ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])


def usable_paths() -> list[str]:
    return [path for path, lacking in kernels.paths().items() if lacking is None]


def pack_float32(matrix: Array) -> Array:
    """Layout 1 of fp32: for each tile of 16 outputs K x 16 values; missing outputs are zeros."""
    outputs, inputs = matrix.shape
    tiles = -(-outputs // 16)
    padded = np.zeros((tiles * 16, inputs), np.float32)
    padded[:outputs] = matrix
    return padded.reshape(tiles, 16, inputs).transpose(0, 2, 1).copy().view(np.uint8).reshape(-1)


def pack_int8(levels: Array, scales: Array, block: int = 32) -> Array:
    """Layout 1 of int8 with zero point 128: a record of values and fp16 scales for each tile and block."""
    outputs, inputs = levels.shape
    tiles, blocks = -(-outputs // 16), -(-inputs // block)
    padded = np.full((tiles * 16, blocks * block), 128, np.uint8)
    padded[:outputs, :inputs] = levels
    values = padded.reshape(tiles, 16, blocks, block // 4, 4).transpose(0, 2, 3, 1, 4)
    scale = np.zeros((tiles * 16, blocks), np.float16)
    scale[:outputs] = scales
    scale = scale.reshape(tiles, 16, blocks).transpose(0, 2, 1)
    records = np.concatenate(
        [values.reshape(tiles, blocks, -1), scale.copy().view(np.uint8).reshape(tiles, blocks, -1)], axis=2
    )
    return records.reshape(-1)
