"""Whether an ONNX file's own inputs and outputs are those the manifest lists: names, dtypes, fixed sizes.

A buffer is bound by address, so a size that differs would be read or written past its end.
"""

from collections.abc import Sequence
from typing import Any

from specruntime.errors import BackendIncompatible
from specruntime.manifest import GraphSpec, TensorSpec

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(bool)": "bool",
}


def check_signature(session: Any, spec: GraphSpec, file: str) -> None:
    """Raises `BackendIncompatible` naming the tensor and what either side says of it.

    `file` is the graph's own, or that of a profile's path: such a file has the outputs that its profiles fill, and of
    the inputs those its path reads. Where paths have files, the graph's own leaves out what only they fill.
    """
    paths = [profile for profile in spec.profiles if profile.file is not None]
    own = [profile for profile in spec.profiles if (profile.file or spec.file) == file]
    filled = [t for t in spec.outputs if any(p.computes(t.name) for p in own)] if paths else spec.outputs
    for kind, values, tensors in (
        ("input", session.get_inputs(), spec.inputs),
        ("output", session.get_outputs(), filled),
    ):
        found = {value.name: value for value in values}
        listed = {tensor.name: tensor for tensor in tensors}
        difference = found.keys() ^ listed.keys()
        if kind == "input" and file != spec.file:
            difference = found.keys() - listed.keys()
        if difference:
            raise BackendIncompatible(
                f"{file} and the manifest disagree on {kind}s: {', '.join(sorted(difference))}; build the bundle again"
            )
        for name, value in found.items():
            _check_value(file, spec, listed[name], value.type, value.shape)


def _check_value(
    file: str, spec: GraphSpec, tensor: TensorSpec, dtype: str, shape: Sequence[int | str | None]
) -> None:
    found, expected = _DTYPES.get(dtype, dtype), tensor.dtype
    if found != expected:
        raise _mismatch(file, tensor.name, found, expected)
    sizes = [spec.batch if size == "B" else size for size in tensor.shape]
    fits = len(shape) == len(sizes) and all(map(_agree, shape, sizes))
    if not fits:
        raise _mismatch(file, tensor.name, str(list(shape)), str(list(tensor.shape)))


def _agree(found: int | str | None, listed: int | str) -> bool:
    """A size the file leaves open fits any; a fixed one fits itself alone, not a window's varying width."""
    return not isinstance(found, int) or found == listed


def _mismatch(file: str, name: str, found: str, expected: str) -> BackendIncompatible:
    return BackendIncompatible(
        f"{file} and the manifest disagree on {name}: found {found} in the file, {expected} in the manifest; "
        "build the bundle again"
    )
