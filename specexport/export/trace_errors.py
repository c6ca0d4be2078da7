"""What stopped a trace, in one line: the operation or the line of the model, out of the tracer's pages."""

import re

from specexport.errors import CheckpointUnsupported, shorten_reason

_NO_OPERATOR = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)'")
_CALL = re.compile(
    r"The following call raised this error:\s+File \"([^\"]+)\", line (\d+), in (\S+)\s+(\S[^\n]*)"
)


def unsupported(model_type: str, error: Exception) -> CheckpointUnsupported:
    """What to raise instead of `error`, which the tracer raised: a refusal of ours inside it, or its root cause."""
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
