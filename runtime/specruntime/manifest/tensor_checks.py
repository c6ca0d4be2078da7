"""Whether the tensors of a graph are those of its contract, with one cache pair per layer and kind.

Raises `BundleInvalid` naming the graph, the tensor and both values. Reads no files and looks at no other graph.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from math import prod

from specruntime.manifest.contracts import ANY, DRAFTING, VOCABULARY, Contract, Tensor
from specruntime.manifest.graph import Dimension, GraphSpec, TensorSpec
from specruntime.manifest.refusals import refuse

CACHE_RANK = 4  # [B, kv_heads, capacity, head_dim]
CACHE_KINDS = ("key", "value")
MAX_TENSOR_BYTES = 2**40
BYTES: dict[str, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "bool": 1,
}
_CACHE_DTYPES = ("float32", "float16", "bfloat16")


def check_tensors(label: str, graph: GraphSpec, contract: Contract) -> None:
    """Check names, dtypes and shapes of one graph's tensors; `label` is the key it is found under."""
    inputs = {tensor.name: tensor for tensor in graph.inputs}
    outputs = {tensor.name: tensor for tensor in graph.outputs}
    _check_aliases_exist(label, graph, inputs, outputs)
    if contract.cached and graph.layers < 1:
        refuse(f"{label}.layers is 0, expected at least 1: the graph has a cache")
    pasts = _check_window_inputs(label, graph, inputs, contract)
    presents = _check_window_outputs(label, graph, outputs, contract)
    _check_cache_names(f"{label}.inputs", "past", pasts, graph.layers)
    kept = [name for name in presents if not name.startswith(DRAFTING)]
    _check_cache_names(f"{label}.outputs", "present", kept, graph.layers)
    _check_pairs(label, graph, presents)
    for name, past in pasts.items():
        for present in (_present(name), DRAFTING + _present(name)):
            if present in presents:
                _check_cache_pair(label, graph, past, presents[present])
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
    label: str, graph: GraphSpec, inputs: Mapping[str, TensorSpec], contract: Contract
) -> dict[str, TensorSpec]:
    """Return the inputs that are no part of the window: the cache."""
    for name in contract.needed_inputs:
        if name not in inputs:
            refuse(f"{label}.inputs has no {name!r}")
    pasts = {name: tensor for name, tensor in inputs.items() if name.startswith("past_")}
    for name, tensor in inputs.items():
        if name in contract.inputs:
            _expect(f"{label}.inputs", graph, tensor, contract.inputs[name])
        elif name not in pasts:
            refuse(f"{label}.inputs names {name!r}, expected one of {_listed(contract.inputs, contract)}")
    return pasts


def _check_window_outputs(
    label: str, graph: GraphSpec, outputs: Mapping[str, TensorSpec], contract: Contract
) -> dict[str, TensorSpec]:
    """Return the outputs that are no part of the window: the cache."""
    key = f"{label}.outputs"
    for name in contract.needed_outputs:
        if name not in outputs:
            refuse(f"{key} has no {name!r}")
    expected = {**contract.outputs, **_fused_outputs(label, graph, outputs)}
    prefixes = ("present_", f"{DRAFTING}present_") if contract.drafting else ("present_",)
    presents = {name: tensor for name, tensor in outputs.items() if name.startswith(prefixes)}
    for name, tensor in outputs.items():
        if name in expected:
            _expect(key, graph, tensor, expected[name])
        elif name not in presents:
            refuse(f"{key} names {name!r}, expected {_listed(contract.outputs, contract)}")
    return presents


def _listed(names: Mapping[str, Tensor], contract: Contract) -> str:
    return ", ".join(names) + (" or a cache" if contract.cached else "")


def _fused_outputs(label: str, graph: GraphSpec, outputs: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
    """Return what a fused draft's outputs are: ids of all its steps, the logits of the first."""
    shape = outputs["top_ids"].shape if "top_ids" in outputs else ()
    if len(shape) != 2 or not isinstance(shape[1], int):
        return {}
    if any(profile.rows != 1 for profile in graph.profiles):
        refuse(f"{label} drafts {shape[1]} tokens a launch, but one of its profiles has more than one row")
    return {"top_ids": ("int64", ("B", shape[1])), "logits": ("float32", ("B", 1, VOCABULARY))}


def _check_cache_names(key: str, prefix: str, found: Collection[str], layers: int) -> None:
    expected = len(CACHE_KINDS) * layers
    if len(found) != expected:
        refuse(f"{key} has {len(found)} tensors named {prefix}_*, expected {expected} for {layers} layers")
    for layer in range(layers):
        for kind in CACHE_KINDS:
            if f"{prefix}_{kind}.{layer}" not in found:
                refuse(f"{key} has no '{prefix}_{kind}.{layer}', expected one for each of {layers} layers")


def _check_pairs(label: str, graph: GraphSpec, presents: Mapping[str, TensorSpec]) -> None:
    """Check the pairs: the cache is written in place, layer by layer and kind by kind; any other pair decodes to
    something else.
    """
    for pair in graph.aliases:
        expected = _present(pair.input)
        if pair.output.removeprefix(DRAFTING) != expected:
            refuse(f"{label}.aliases pairs {pair.input!r} with {pair.output!r}, expected {expected!r}")
    if len(graph.aliases) != len(presents):
        refuse(
            f"{label}.aliases has {len(graph.aliases)} pairs, expected {len(presents)} for {graph.layers} layers"
        )
    for profile in graph.profiles:
        written = [pair.input for pair in graph.aliases if profile.computes(pair.output)]
        twice = [name for name, count in Counter(written).items() if count > 1]
        if twice:
            refuse(
                f"{label}: profile {profile.name!r} writes {twice[0]!r} twice, by the cache outputs of both paths"
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


def _expect(key: str, graph: GraphSpec, tensor: TensorSpec, expected: Tensor) -> None:
    dtype, listed = expected
    if tensor.dtype != dtype:
        refuse(f"{key}: {tensor.name} is {tensor.dtype}, expected {dtype}")
    shape = tuple(graph.padded_vocab_size if size == VOCABULARY else size for size in listed)
    fixed = (graph.batch, *shape[1:])  # a graph compiled for one batch says its number instead of B
    if not any(_matches(tensor.shape, allowed) for allowed in (shape, fixed)):
        shown = ["any size" if size == ANY else size for size in shape]
        refuse(f"{key}: {tensor.name} has shape {list(tensor.shape)}, expected {shown}")


def _matches(found: tuple[Dimension, ...], allowed: tuple[Dimension, ...]) -> bool:
    return len(found) == len(allowed) and all(
        isinstance(size, int) if wanted == ANY else size == wanted
        for size, wanted in zip(found, allowed, strict=True)
    )


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
