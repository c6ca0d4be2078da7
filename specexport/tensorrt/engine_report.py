"""What an engine became: inputs, outputs, profiles, aliases, fused attention, size against weights.

Owns the judgement (which attention fused, which layers copy a cache). The facts come from the parsed network, the
builder's layer listing or, on a machine with a GPU, the engine itself.
"""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict

from specexport.tensorrt.layers import Layer, parse_inspection

_NAMED = 4  # unfused attentions named in warnings; a fused draft has one per layer and step
_FUSED_ATTENTION = "mha"  # Myelin names its fused attention kernels _gemm_mha_v2 and the like


class _Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineBinding(_Fact):
    """An engine input or output; `dtype` as the library names it, -1 for a dynamic size."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class ShapeRange(_Fact):
    """Smallest, preferred and largest shape of an input in one optimization profile."""

    minimum: tuple[int, ...]
    optimum: tuple[int, ...]
    maximum: tuple[int, ...]


class NetworkFacts(_Fact):
    """What the parser made of the graph, before compilation."""

    inputs: tuple[EngineBinding, ...]
    outputs: tuple[EngineBinding, ...]
    aliases: tuple[tuple[str, str], ...]  # (input, output) that are the same memory
    kv_cache_updates: tuple[str, ...]  # ONNX nodes that became KV-cache-update layers
    attention: tuple[str, ...]  # ONNX nodes that became attention


class EngineReport(_Fact):
    """The facts of a finished engine."""

    inputs: tuple[EngineBinding, ...]
    outputs: tuple[EngineBinding, ...]
    profiles: tuple[dict[str, ShapeRange], ...]
    aliases: tuple[tuple[str, str], ...]
    kv_cache_updates: tuple[str, ...]
    fused_attention: tuple[str, ...]
    unfused_attention: tuple[str, ...]
    cache_copies: tuple[str, ...]  # compiled layers that read a whole cache and write a tensor as large
    compiled_layers: int
    engine_bytes: int
    weights_bytes: int  # by the library's own count; 0 where it gives none

    def warnings(self) -> tuple[str, ...]:
        """One line per thing a person should know before shipping this engine."""
        lines = [f"attention did not fuse: {name}" for name in self.unfused_attention[:_NAMED]]
        if (more := len(self.unfused_attention) - _NAMED) > 0:
            lines.append(f"attention did not fuse: {more} more, named in engine.json")
        if self.cache_copies:
            lines.append(
                f"{len(self.cache_copies)} compiled layers read a whole KV cache and write a tensor of the same size "
                f"(first: {self.cache_copies[0]}): a step's cost follows the capacity"
            )
        return tuple(lines)

    def size(self) -> str:
        """Return the size in words: "278.1 MB = 269.0 MB of weights + 9.1 MB of kernels and tables (1.03x)"."""
        excess = self.engine_bytes - self.weights_bytes
        ratio = f"{self.engine_bytes / self.weights_bytes:.2f}x" if self.weights_bytes else "weights unknown"
        return (
            f"{self.engine_bytes / 1e6:.1f} MB = {self.weights_bytes / 1e6:.1f} MB of weights + "
            f"{excess / 1e6:.1f} MB of kernels and tables ({ratio})"
        )


def read_network(trt: Any, network: Any) -> NetworkFacts:
    """Facts of a parsed `INetworkDefinition`."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    updates = [layer for layer in layers if layer.type == trt.LayerType.KV_CACHE_UPDATE]
    attention = [layer for layer in layers if layer.type == trt.LayerType.ATTENTION_OUTPUT]
    bound = {tensor.name for tensor in (*inputs, *outputs)}
    pairs = [(layer.get_input(0).name, layer.get_output(0).name) for layer in updates]
    return NetworkFacts(
        inputs=tuple(_binding(tensor) for tensor in inputs),
        outputs=tuple(_binding(tensor) for tensor in outputs),
        aliases=tuple(pair for pair in pairs if bound.issuperset(pair)),
        kv_cache_updates=tuple(layer.name for layer in updates),
        attention=tuple(_onnx_name(layer.metadata, layer.name) for layer in attention),
    )


def judge(
    facts: NetworkFacts,
    layers: Iterable[Layer],
    profiles: tuple[dict[str, ShapeRange], ...],
    *,
    engine_bytes: int,
    weights_bytes: int,
    split_attention: tuple[str, ...] = (),
) -> EngineReport:
    """Return the report of an engine built from a network with `facts` into `layers`.

    `split_attention` are attention nodes that lowering wrote as primitive operators: they count as not fused.
    """
    layers = tuple(layers)
    fused = {node for layer in layers if _FUSED_ATTENTION in layer.name.lower() for node in layer.onnx_nodes}
    return EngineReport(
        inputs=facts.inputs,
        outputs=facts.outputs,
        profiles=profiles,
        aliases=facts.aliases,
        kv_cache_updates=facts.kv_cache_updates,
        fused_attention=tuple(name for name in facts.attention if name in fused),
        unfused_attention=(*(name for name in facts.attention if name not in fused), *split_attention),
        cache_copies=_cache_copies(layers, facts.aliases),
        compiled_layers=len(layers),
        engine_bytes=engine_bytes,
        weights_bytes=weights_bytes,
    )


def inspect_engine(trt: Any, engine: Any, facts: NetworkFacts, engine_bytes: int) -> EngineReport:
    """Return the report of a loaded `ICudaEngine` (needs a GPU); aliases and profiles are read from the engine
    itself.
    """
    inspector = engine.create_engine_inspector()
    layers = parse_inspection(inspector.get_engine_information(trt.LayerInformationFormat.JSON))
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    outputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT]
    aliases = tuple((source, name) for name in outputs if (source := engine.get_aliased_input_tensor(name)))
    inputs = [name for name in names if name not in outputs]
    profiles = tuple(
        {name: _shape_range(engine.get_tensor_profile_shape(name, profile)) for name in inputs}
        for profile in range(engine.num_optimization_profiles)
    )
    weights = int(engine.get_engine_stat(trt.EngineStat.TOTAL_WEIGHTS_SIZE))
    seen = facts.model_copy(update={"aliases": aliases})
    return judge(seen, layers, profiles, engine_bytes=engine_bytes, weights_bytes=max(weights, 0))


def _binding(tensor: Any) -> EngineBinding:
    return EngineBinding(
        name=tensor.name, dtype=tensor.dtype.name, shape=tuple(int(size) for size in tensor.shape)
    )


def _shape_range(shapes: Any) -> ShapeRange:
    minimum, optimum, maximum = (tuple(int(size) for size in shape) for shape in shapes)
    return ShapeRange(minimum=minimum, optimum=optimum, maximum=maximum)


def _onnx_name(metadata: str, fallback: str) -> str:
    _, found, rest = metadata.partition("[ONNX Layer: ")
    return rest.split("]")[0] if found else fallback


def _cache_copies(layers: Iterable[Layer], aliases: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    caches = {name for pair in aliases for name in pair}

    def copies(layer: Layer) -> bool:
        sizes = {tensor.elements for tensor in layer.inputs if tensor.name in caches} - {None}
        written = [tensor for tensor in layer.outputs if tensor.elements in sizes]
        moved = len(layer.inputs) == 1 and any(tensor.name in caches for tensor in layer.outputs)
        return bool(sizes) and (moved or any(tensor.name not in caches for tensor in written))

    return tuple(layer.name for layer in layers if copies(layer))
