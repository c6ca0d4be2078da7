"""Shape, size and host view of a graph's tensors at one profile, and the window they make; not where they lie."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specruntime.engines.protocol import Window
from specruntime.errors import InvalidArgument
from specruntime.manifest.graph import GraphSpec, Profile, TensorSpec

HOST_TYPES: dict[str, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,  # numpy has none: raw bits, widened where they are shown
    "int64": np.int64,
    "int32": np.int32,
    "int8": np.int8,
    "bool": np.bool_,
}


def shape_of(tensor: TensorSpec, spec: GraphSpec, profile: Profile | None) -> tuple[int, ...]:
    """Return the tensor's shape with its symbols filled in; None for tensors that every profile shares."""
    sizes = {"B": spec.batch}
    if profile is not None:
        sizes |= {"W": profile.width, "R": profile.rows}
    return tuple(sizes[size] if isinstance(size, str) else size for size in tensor.shape)


def bytes_of(tensor: TensorSpec, spec: GraphSpec, profile: Profile | None) -> int:
    return int(np.prod(shape_of(tensor, spec, profile)) * np.dtype(HOST_TYPES[tensor.dtype]).itemsize)


def view_of(
    block: NDArray[np.uint8], offset: int, tensor: TensorSpec, spec: GraphSpec, profile: Profile | None
) -> NDArray[Any]:
    """Return the tensor inside `block`, sharing its memory."""
    part = block[offset : offset + bytes_of(tensor, spec, profile)]
    return part.view(HOST_TYPES[tensor.dtype]).reshape(shape_of(tensor, spec, profile))


def cached_inputs(spec: GraphSpec) -> list[TensorSpec]:
    """Return the inputs that an output writes in place: the KV cache."""
    cached = {pair.input for pair in spec.aliases}
    return [tensor for tensor in spec.inputs if tensor.name in cached]


def staged_window(spec: GraphSpec, profile: Profile, host: Mapping[str, NDArray[Any]]) -> Window:
    """Return the window over the host views of one profile's inputs and outputs; its mask and lengths start as a
    chain's.
    """
    batch, width, rows = spec.batch, profile.width, profile.rows
    window = Window(
        profile=profile,
        input_ids=host.get("input_ids", np.zeros((batch, width), np.int64)),
        position_ids=host.get("position_ids", np.zeros((batch, width), np.int64)),
        cache_length=host.get("cache_length", np.zeros(batch, np.int64)),
        logits_rows=host.get("logits_rows", np.zeros((batch, rows), np.int64)),
        window_mask=host.get("window_mask"),
        query_lengths=host.get("query_lengths"),
        top_ids=host.get("top_ids", host.get("draft_top_ids", np.zeros((batch, rows), np.int64))),
        hidden=host.get("hidden"),
        features=host.get("features"),
        next_hidden=host.get("next_hidden"),
        topk_ids=host.get("topk_ids"),
        topk_logprobs=host.get("topk_logprobs"),
    )
    if window.window_mask is not None:  # a row that sees nothing has no softmax
        window.window_mask[:] = np.tri(width, dtype=np.bool_)
    if window.query_lengths is not None:
        window.query_lengths.fill(width)
    return window


def no_logits(spec: GraphSpec, profile: Profile) -> InvalidArgument:
    """Return what asking for the logits of a profile without them is answered with."""
    return InvalidArgument(f"{spec.file} computes no logits at {profile.name}; run a profile that does")
