"""Spares each build of a test process what the builds before it did: a third of the seconds that a trace takes."""

import gc
import sys
from functools import cache


def hasten_builds() -> None:
    """Once a process has traced a graph, keep the exporter's table of operators, and leave what lives by then out of
    the collections that follow: libraries, for the most part.
    """
    trace = sys.modules.get("specexport.export.trace")
    if trace is None or gc.get_freeze_count() or not trace._SEEN:
        return
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    made_once = staticmethod(cache(ONNXRegistry.from_torchlib))
    ONNXRegistry.from_torchlib = made_once  # type: ignore[method-assign]  # a test process only
    gc.collect()
    gc.freeze()
