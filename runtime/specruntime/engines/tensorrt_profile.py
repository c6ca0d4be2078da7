"""One profile of a TensorRT engine with its buffers, and device memory for KV caches.

All addresses are bound once. A run uploads the staged window as one block, executes, and downloads what it gives;
logits stay on the device until they are requested.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specruntime.engines.cuda import ALIGNMENT, Arena
from specruntime.engines.layout import (
    bytes_of,
    cached_inputs,
    shape_of,
    staged_window,
    view_of,
)
from specruntime.engines.tensorrt_checks import engine_entry
from specruntime.errors import EngineFailed, OutOfMemory
from specruntime.manifest.schema import GraphSpec, Profile, TensorSpec


class TensorRTProfile:
    """One profile: its execution context, its staging block, and where each tensor lies."""

    def __init__(
        self,
        engine: Any,
        arena: Arena,
        spec: GraphSpec,
        profile: Profile,
        caches: dict[str, int],
        errors: Sequence[str],
        config: Any,
    ) -> None:
        self.graph: Any = None
        self._arena, self._errors, self._name = arena, errors, f"{spec.file} at {profile.name}"
        staged = [tensor for tensor in spec.inputs if tensor.name not in caches]
        produced = [tensor for tensor in spec.outputs if tensor.name not in caches]
        self._upload, host = _stage(arena, staged, spec, profile)
        self.addresses = {**caches, **self._upload.addresses}
        for tensor in produced:
            self.addresses[tensor.name] = arena.allocate(bytes_of(tensor, spec, profile))
        shown = {t.name: _pinned(arena, t, spec, profile) for t in produced}
        self.logits = shown.pop("logits", None)
        self._shown = {name: block for name, (block, _) in shown.items()}
        self.window = staged_window(spec, profile, host | {name: view for name, (_, view) in shown.items()})
        self.execution = self._bind(engine, config, spec, profile)

    def enqueue(self) -> None:
        """Everything one run does, on the arena's stream."""
        self._arena.upload(self._upload.address, self._upload.host)
        if not self.execution.execute_async_v3(int(self._arena.stream)):
            raise EngineFailed(f"{self._name}: {' '.join(self._errors[-3:]) or 'the library gave no reason'}")
        for name, block in self._shown.items():
            self._arena.download(block, self.addresses[name])

    def scratch_bytes(self) -> int:
        return int(self.execution.update_device_memory_size_for_shapes())

    def _bind(self, engine: Any, config: Any, spec: GraphSpec, profile: Profile) -> Any:
        execution = engine.create_execution_context(config)
        if execution is None:
            raise OutOfMemory(f"{self._name}: no execution context; {' '.join(self._errors[-3:])}")
        index = engine_entry(spec).optimization_profiles[profile.name]
        if not execution.set_optimization_profile_async(index, int(self._arena.stream)):
            raise EngineFailed(
                f"{self._name}: the engine has no optimization profile {index}; build the bundle again"
            )
        self._arena.synchronize()
        for tensor in spec.inputs:
            shape = shape_of(tensor, spec, profile)
            if not execution.set_input_shape(tensor.name, shape):
                raise EngineFailed(
                    f"{self._name}: {tensor.name} of shape {shape} is outside the engine's profile {index}; build the "
                    "bundle again with this width in the recipe"
                )
        for name, address in self.addresses.items():
            if not execution.set_tensor_address(name, address):
                raise EngineFailed(f"{self._name}: {name} cannot be bound; build the bundle again")
        return execution


class _Upload:
    """The inputs of one profile as one block, so that a run uploads them with one copy."""

    def __init__(self, address: int, host: NDArray[np.uint8], offsets: dict[str, int]) -> None:
        self.address = address
        self.host = host
        self.addresses = {name: address + offset for name, offset in offsets.items()}


def _stage(
    arena: Arena, tensors: Sequence[TensorSpec], spec: GraphSpec, profile: Profile
) -> tuple[_Upload, dict[str, NDArray[Any]]]:
    offsets: dict[str, int] = {}
    size = 0
    for tensor in tensors:
        offsets[tensor.name] = size
        size += -(-bytes_of(tensor, spec, profile) // ALIGNMENT) * ALIGNMENT
    host = arena.allocate_pinned(size)
    views = {tensor.name: view_of(host, offsets[tensor.name], tensor, spec, profile) for tensor in tensors}
    return _Upload(arena.allocate(size), host, offsets), views


def _pinned(
    arena: Arena, tensor: TensorSpec, spec: GraphSpec, profile: Profile
) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Host memory for one output: the bytes, and the tensor in them."""
    host = arena.allocate_pinned(bytes_of(tensor, spec, profile))
    return host, view_of(host, 0, tensor, spec, profile)


@dataclass(frozen=True)
class Slab:
    """Caches of one shape, one behind the other: of one sequence, a strided copy moves a row of all their heads."""

    address: int
    caches: dict[str, int]  # address by input name
    row_bytes: int  # of one head
    height: int  # heads of all caches


def allocate_slabs(arena: Arena, spec: GraphSpec) -> list[Slab]:
    """Zeroed device memory for the KV caches of `spec.batch` sequences. Raises `OutOfMemory`."""
    groups: dict[tuple[object, ...], list[TensorSpec]] = {}
    for tensor in cached_inputs(spec):
        # Each cache keeps the alignment that the library asks for; where sizes break it, each is a slab of its own.
        aligned = bytes_of(tensor, spec, None) % ALIGNMENT == 0
        groups.setdefault((tensor.dtype, tensor.shape, "" if aligned else tensor.name), []).append(tensor)
    try:
        return [_allocate_slab(arena, spec, tensors) for tensors in groups.values()]
    except OutOfMemory as error:
        raise OutOfMemory(
            f"no device memory for the KV cache of {spec.file} at capacity {spec.capacity} ({error}): lower `capacity` "
            "in the recipe or close other sessions"
        ) from None


def _allocate_slab(arena: Arena, spec: GraphSpec, tensors: Sequence[TensorSpec]) -> Slab:
    size = bytes_of(tensors[0], spec, None)
    batch, heads, capacity, _ = shape_of(tensors[0], spec, None)
    address = arena.allocate(size * len(tensors))
    caches = {tensor.name: address + place * size for place, tensor in enumerate(tensors)}
    return Slab(address, caches, size // (batch * heads * capacity), len(tensors) * batch * heads)


def cache_addresses(spec: GraphSpec, caches: dict[str, int]) -> dict[str, int]:
    """Each cache under both its names: past and present are one buffer."""
    return {**caches, **{pair.output: caches[pair.input] for pair in spec.aliases}}
