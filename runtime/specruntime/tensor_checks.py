"""What the tensors of a graph must be: the window's inputs and outputs, one cache pair per layer and kind.

Raises `BundleInvalid` naming the graph, the tensor and both values. Reads no files and looks at no other graph.
"""

from collections.abc import Mapping
from math import prod

from specruntime.bundle_files import REBUILD
from specruntime.errors import BundleInvalid
from specruntime.manifest import Dimension, GraphSpec, TensorSpec

CACHE_RANK = 4  # [B, kv_heads, capacity, head_dim]
CACHE_KINDS = ("key", "value")
MAX_TENSOR_BYTES = 2**40
BYTES: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "bool": 1}
_CACHE_DTYPES = ("float32", "float16", "bfloat16")

_INPUTS: dict[str, tuple[str, tuple[Dimension, ...]]] = {
    "input_ids": ("int64", ("B", "W")),
    "cache_length": ("int64", ("B",)),
    "position_ids": ("int64", ("B", "W")),
    "logits_rows": ("int64", ("B", "R")),
    "window_mask": ("bool", ("B", "W", "W")),
    "query_lengths": ("int32", ("B",)),
}
_REQUIRED_INPUTS = ("input_ids", "cache_length")


def check_tensors(label: str, graph: GraphSpec) -> None:
    """Checks names, dtypes and shapes of one graph's tensors; `label` is the key it is found under."""
    inputs = {tensor.name: tensor for tensor in graph.inputs}
    outputs = {tensor.name: tensor for tensor in graph.outputs}
    _check_aliases_exist(label, graph, inputs, outputs)
    pasts = _check_window_inputs(label, graph, inputs)
    presents = _check_window_outputs(label, graph, outputs)
    _check_cache_names(f"{label}.inputs", "past", pasts, graph.layers)
    _check_cache_names(f"{label}.outputs", "present", presents, graph.layers)
    _check_pairs(label, graph)
    for name, past in pasts.items():
        _check_cache_pair(label, graph, past, presents[_present(name)])
    for tensor in (*graph.inputs, *graph.outputs):
        _check_size(label, graph, tensor)


def _check_aliases_exist(
    label: str, graph: GraphSpec, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec]
) -> None:
    for pair in graph.aliases:
        if pair.input not in inputs:
            refuse(f"{label}.aliases names {pair.input!r}, which is not an input of the graph")
        if pair.output not in outputs:
            refuse(f"{label}.aliases names {pair.output!r}, which is not an output of the graph")


def _check_window_inputs(
    label: str, graph: GraphSpec, inputs: Mapping[str, TensorSpec]
) -> dict[str, TensorSpec]:
    """The inputs that are no part of the window: the cache."""
    for name in _REQUIRED_INPUTS:
        if name not in inputs:
            refuse(f"{label}.inputs has no {name!r}")
    pasts = {name: tensor for name, tensor in inputs.items() if name.startswith("past_")}
    for name, tensor in inputs.items():
        if name in _INPUTS:
            _expect(f"{label}.inputs", graph, tensor, *_INPUTS[name])
        elif name not in pasts:
            refuse(f"{label}.inputs names {name!r}, expected one of {', '.join(_INPUTS)} or a cache")
    return pasts


def _check_window_outputs(
    label: str, graph: GraphSpec, outputs: Mapping[str, TensorSpec]
) -> dict[str, TensorSpec]:
    """The outputs that are no part of the window: the cache."""
    for name in ("logits", "top_ids"):
        if name not in outputs:
            refuse(f"{label}.outputs has no {name!r}")
    top_ids, key = outputs["top_ids"], f"{label}.outputs"
    drafted = top_ids.shape[1] if len(top_ids.shape) == 2 and isinstance(top_ids.shape[1], int) else None
    _expect(key, graph, top_ids, "int64", ("B", "R" if drafted is None else drafted))
    rows: Dimension = "R" if drafted is None else 1  # a fused draft shows the logits of its first step
    _expect(key, graph, outputs["logits"], "float32", ("B", rows, graph.padded_vocab_size))
    if drafted is not None and any(profile.rows != 1 for profile in graph.profiles):
        refuse(f"{label} drafts {drafted} tokens a launch, but one of its profiles has more than one row")
    presents = {name: tensor for name, tensor in outputs.items() if name.startswith("present_")}
    for name in outputs:
        if name not in presents and name not in ("logits", "top_ids"):
            refuse(f"{key} names {name!r}, expected logits, top_ids or a cache")
    return presents


def _check_cache_names(key: str, prefix: str, found: Mapping[str, TensorSpec], layers: int) -> None:
    expected = len(CACHE_KINDS) * layers
    if len(found) != expected:
        refuse(f"{key} has {len(found)} tensors named {prefix}_*, expected {expected} for {layers} layers")
    for layer in range(layers):
        for kind in CACHE_KINDS:
            if f"{prefix}_{kind}.{layer}" not in found:
                refuse(f"{key} has no '{prefix}_{kind}.{layer}', expected one for each of {layers} layers")


def _check_pairs(label: str, graph: GraphSpec) -> None:
    """The cache is written in place, layer by layer and kind by kind; any other pair decodes to something else."""
    for pair in graph.aliases:
        if pair.output != _present(pair.input):
            refuse(
                f"{label}.aliases pairs {pair.input!r} with {pair.output!r}, expected {_present(pair.input)!r}"
            )
    expected = len(CACHE_KINDS) * graph.layers
    if len(graph.aliases) != expected:
        refuse(
            f"{label}.aliases has {len(graph.aliases)} pairs, expected {expected} for {graph.layers} layers"
        )


def _present(past: str) -> str:
    return past.replace("past_", "present_", 1)


def _check_cache_pair(label: str, graph: GraphSpec, past: TensorSpec, present: TensorSpec) -> None:
    for key, found, expected in (
        ("shape", list(present.shape), list(past.shape)),
        ("dtype", present.dtype, past.dtype),
    ):
        if found != expected:
            refuse(
                f"{label}: {past.name} and {present.name} are one buffer, but their {key}s differ: "
                f"{expected} and {found}"
            )
    batch, *sizes = past.shape or (None,)
    fixed = all(isinstance(size, int) for size in sizes)
    if (
        len(past.shape) != CACHE_RANK
        or batch not in ("B", graph.batch)
        or not fixed
        or sizes[1] != graph.capacity
    ):
        refuse(
            f"{label}: {past.name} has shape {list(past.shape)}, expected "
            f"[B, kv_heads, {graph.capacity}, head_dim] for capacity {graph.capacity}"
        )
    if past.dtype not in _CACHE_DTYPES:
        refuse(f"{label}: {past.name} is {past.dtype}, expected one of {', '.join(_CACHE_DTYPES)}")


def _expect(key: str, graph: GraphSpec, tensor: TensorSpec, dtype: str, shape: tuple[Dimension, ...]) -> None:
    if tensor.dtype != dtype:
        refuse(f"{key}: {tensor.name} is {tensor.dtype}, expected {dtype}")
    fixed = (graph.batch, *shape[1:])  # a graph compiled for one batch says its number instead of B
    if tensor.shape not in (shape, fixed):
        refuse(f"{key}: {tensor.name} has shape {list(tensor.shape)}, expected {list(shape)}")


def _check_size(label: str, graph: GraphSpec, tensor: TensorSpec) -> None:
    sizes = {
        "B": graph.batch,
        "W": max(profile.width for profile in graph.profiles),
        "R": max(profile.rows for profile in graph.profiles),
    }
    size = BYTES[tensor.dtype] * prod(sizes[d] if isinstance(d, str) else d for d in tensor.shape)
    if size > MAX_TENSOR_BYTES:
        refuse(
            f"{label}: {tensor.name} takes {size} bytes at its widest profile, expected at most {MAX_TENSOR_BYTES}"
        )


def refuse(problem: str) -> None:
    """Raises `BundleInvalid` for a disagreement between keys of the manifest."""
    raise BundleInvalid(f"the manifest contradicts itself: {problem}; {REBUILD}")
