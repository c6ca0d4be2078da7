"""From a transformers checkpoint to the canonical ONNX graph."""

from specexport.export.skeleton import Skeleton, check_config, weightless
from specexport.export.support import (
    CacheLayout,
    ResidualStream,
    check_supported,
    find_residual_stream,
    freeze_rope,
    hidden_names,
    watching,
)
from specexport.export.trace import TracedGraph, trace_graph

__all__ = [
    "CacheLayout",
    "ResidualStream",
    "Skeleton",
    "TracedGraph",
    "check_config",
    "check_supported",
    "find_residual_stream",
    "freeze_rope",
    "hidden_names",
    "trace_graph",
    "watching",
    "weightless",
]
