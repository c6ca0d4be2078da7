"""One module into one ONNX graph: the only call of the tracer, with what it needs around it."""

import gc
import re
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript.rewriter.pattern import PatternMatcher
from torch import Tensor, nn

from specexport.errors import CheckpointUnsupported, shorten_reason
from specexport.garbage_collection import without_collection


def forget_graph() -> None:
    """Put every pattern matcher of the process back to the state of a new one."""
    for matcher in gc.get_objects():
        if issubclass(type(matcher), PatternMatcher):
            fresh = type(matcher)(matcher.pattern)
            vars(matcher).clear()
            vars(matcher).update(vars(fresh))


_NO_OPERATOR = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)'")
_CALL = re.compile(
    r"The following call raised this error:\s+File \"([^\"]+)\", line (\d+), in (\S+)\s+(\S[^\n]*)"
)


def unsupported(model_type: str, error: Exception) -> CheckpointUnsupported:
    """Return what to raise instead of `error`, which the tracer raised: a refusal of ours inside it, or its
    root cause.
    """
    chain = _chain(error)
    ours = next((cause for cause in chain if isinstance(cause, CheckpointUnsupported)), None)
    if ours is not None:
        return CheckpointUnsupported(f"{model_type}: {ours}")
    return CheckpointUnsupported(
        f"{model_type} cannot be exported: {_reason(chain)}; expected operations that ONNX has and no decision that "
        "depends on the values of tensors: docs/architectures.md lists what is known to work"
    )


def _chain(error: BaseException) -> list[BaseException]:
    """`error` and its causes, the root last."""
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.append(following)
        following = following.__cause__ or following.__context__
    return chain


def _reason(chain: list[BaseException]) -> str:
    for cause in reversed(chain):
        if missing := _NO_OPERATOR.search(str(cause)):
            return f"the operation {missing[1]} has no ONNX form"
    root = chain[-1]
    first = next(iter(str(root).strip().splitlines()), "") or type(root).__name__
    place = _CALL.search(str(root))
    where = f" in {place[3]}, `{place[4].strip()}`" if place else ""
    return f"{shorten_reason(first)}{where}"


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
    """Return the graph of `module` in eval mode; `shapes` are the symbolic dimensions of its arguments.

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
