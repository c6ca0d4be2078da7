"""One module into one ONNX graph: the only call of the tracer, with what it needs around it."""

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn

from specexport.collection import without_collection
from specexport.export.rewrite_rules import forget_graph
from specexport.export.trace_errors import unsupported

OPSET = 24


def export_module(
    module: nn.Module,
    example: tuple[Tensor | list[Tensor], ...],
    shapes: dict[str, Any],
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    called: str,
) -> ir.Model:
    """The graph of `module` in eval mode; `shapes` are the symbolic dimensions of its arguments.

    Raises `CheckpointUnsupported`, which names it as `called`, when it does something that no graph can carry.
    """
    with without_collection(), torch.no_grad():
        try:
            program = torch.onnx.export(
                module.eval(),
                example,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=shapes,
                input_names=list(inputs),
                output_names=list(outputs),
                verbose=False,
            )
        except (
            Exception
        ) as error:  # the tracer and the converter raise many classes, all of them about this module
            raise unsupported(called, error) from None
    forget_graph()
    assert program is not None, "torch.onnx.export returns None only when it writes a file"
    return program.model
