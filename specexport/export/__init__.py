"""From a transformers checkpoint to the canonical ONNX graph."""

from specexport.export.support import CacheLayout, check_supported, freeze_rope
from specexport.export.trace import TracedGraph, trace_graph

__all__ = ["CacheLayout", "TracedGraph", "check_supported", "freeze_rope", "trace_graph"]
