"""Shape, size and host view of a graph's tensors at one profile; says nothing of where they lie."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specruntime.manifest import GraphSpec, Profile, TensorSpec

HOST_TYPES: dict[str, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,  # numpy has none: raw bits, widened where they are shown
    "int64": np.int64,
    "int32": np.int32,
    "bool": np.bool_,
}


def shape_of(tensor: TensorSpec, spec: GraphSpec, profile: Profile | None) -> tuple[int, ...]:
    """The tensor's shape with its symbols filled in; None for tensors that every profile shares."""
    sizes = {"B": spec.batch}
    if profile is not None:
        sizes |= {"W": profile.width, "R": profile.rows}
    return tuple(sizes[size] if isinstance(size, str) else size for size in tensor.shape)


def bytes_of(tensor: TensorSpec, spec: GraphSpec, profile: Profile | None) -> int:
    return int(np.prod(shape_of(tensor, spec, profile)) * np.dtype(HOST_TYPES[tensor.dtype]).itemsize)


def view_of(
    block: NDArray[np.uint8], offset: int, tensor: TensorSpec, spec: GraphSpec, profile: Profile | None
) -> NDArray[Any]:
    """The tensor inside `block`, sharing its memory."""
    part = block[offset : offset + bytes_of(tensor, spec, profile)]
    return part.view(HOST_TYPES[tensor.dtype]).reshape(shape_of(tensor, spec, profile))


def cached_inputs(spec: GraphSpec) -> list[TensorSpec]:
    """The inputs that an output writes in place: the KV cache."""
    cached = {pair.input for pair in spec.aliases}
    return [tensor for tensor in spec.inputs if tensor.name in cached]
