"""One session on a TensorRT engine: every address bound once, every width replayed from a captured CUDA graph.

All buffers are allocated and all profiles run once when the context is made; a run is then one graph launch that
uploads the staged window, executes, and downloads what it answers. Logits stay on the device until asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specruntime.engines.cuda import ALIGNMENT, Arena, Device
from specruntime.engines.layout import (
    HOST_TYPES,
    bytes_of,
    cached_inputs,
    no_logits,
    shape_of,
    staged_window,
    view_of,
)
from specruntime.engines.protocol import Context, Window
from specruntime.engines.tensorrt_checks import engine_entry
from specruntime.errors import EngineFailed, OutOfMemory, WrongState
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


class TrtContext:
    """KV cache, staging buffers and captured graphs of one session. Not thread-safe.

    `replays` counts graph launches by profile; 0 for every profile where the library does not allow capture.
    """

    def __init__(
        self,
        engine: Any,
        device: Device,
        spec: GraphSpec,
        errors: Sequence[str],
        config: Any,
    ) -> None:
        self.spec = spec
        self.replays = {profile.name: 0 for profile in spec.profiles}
        self._device = device
        self._failed = False
        self._profiles: dict[str, TensorRTProfile] = {}
        self._slabs: list[_Slab] = []
        self._arena: Arena | None = Arena(device)
        try:
            self._slabs = allocate_slabs(self._arena, spec)
            self._caches = {name: address for slab in self._slabs for name, address in slab.caches.items()}
            addresses = cache_addresses(spec, self._caches)
            for profile in spec.profiles:
                bound = TensorRTProfile(engine, self._arena, spec, profile, addresses, errors, config)
                self._profiles[profile.name] = bound
            self._share_scratch()
            self._warm_up()
        except BaseException:
            self.close()
            raise

    def window(self, profile: str) -> Window:
        return self._profiles[profile].window

    def run(self, window: Window) -> None:
        arena = self._open()
        bound = self._profiles[window.profile.name]
        with _Poisoning(self):
            self._device.make_current()
            if bound.graph is None:
                bound.enqueue()
            else:
                arena.launch(bound.graph)
                self.replays[window.profile.name] += 1
            arena.synchronize()

    def logits(self, window: Window) -> NDArray[np.float32]:
        arena = self._open()
        bound = self._profiles[window.profile.name]
        if bound.logits is None:
            raise no_logits(self.spec, window.profile)
        block, logits = bound.logits
        with _Poisoning(self):
            self._device.make_current()
            arena.download(block, bound.addresses["logits"])
            arena.synchronize()
        return logits

    def keep(self, start: int, rows: NDArray[np.int64]) -> None:
        """Enqueued only: the next run on this stream comes after it."""
        arena = self._open()
        moved = [(row, place) for place, row in enumerate(rows.tolist()) if row != place]
        with _Poisoning(self):
            self._device.make_current()
            for slab in self._slabs:
                for row, place in moved:
                    arena.move_rows(
                        slab.address + (start + row) * slab.row_bytes,
                        slab.address + (start + place) * slab.row_bytes,
                        width=slab.row_bytes,
                        pitch=self.spec.capacity * slab.row_bytes,
                        height=slab.height,
                    )

    def copy_rows(self, source: Context, count: int) -> None:
        """Enqueued behind all that the source has enqueued; the next run on this stream comes after it."""
        assert isinstance(source, TrtContext), "contexts of one engine are of one kind"
        arena = self._open()
        with _Poisoning(self):
            self._device.make_current()
            source._open().synchronize()
            for slab, other in zip(self._slabs, source._slabs, strict=True):
                arena.move_rows(
                    other.address,
                    slab.address,
                    width=count * slab.row_bytes,
                    pitch=self.spec.capacity * slab.row_bytes,
                    height=slab.height,
                )
            arena.synchronize()

    def cache(self) -> dict[str, NDArray[np.generic]]:
        """Copies of the device's cache rows; bfloat16 is widened to float32, which numpy knows."""
        return {tensor.name: self._copy_out(tensor) for tensor in cached_inputs(self.spec)}

    def zero(self) -> None:
        arena = self._open(after_failure=True)
        self._device.make_current()
        for tensor in cached_inputs(self.spec):
            arena.zero(self._caches[tensor.name], bytes_of(tensor, self.spec, None))
        arena.synchronize()
        self._failed = False

    def close(self) -> None:
        arena, self._arena = self._arena, None
        self._profiles = {}  # execution contexts go before the memory they point into
        if arena is not None:
            arena.close()

    def fail(self) -> None:
        """Refuses further runs until `zero`: an error was reported and the cache is undefined."""
        self._failed = True

    def _open(self, *, after_failure: bool = False) -> Arena:
        if self._arena is None:
            raise WrongState("the context is closed; take a new session")
        if self._failed and not after_failure:
            raise EngineFailed("an earlier call on this context failed; reset the session, or close it")
        return self._arena

    def _share_scratch(self) -> None:
        """One activation block for all profiles: they run one after the other on one stream."""
        assert self._arena is not None
        size = max(bound.scratch_bytes() for bound in self._profiles.values())
        address = self._arena.allocate(size)
        for bound in self._profiles.values():
            bound.execution.set_device_memory(address, max(size, 1))

    def _warm_up(self) -> None:
        """Runs every profile, then captures it: kernels are loaded and nothing is allocated later."""
        assert self._arena is not None
        for bound in self._profiles.values():
            bound.enqueue()
            self._arena.synchronize()
            if bound.execution.is_stream_capturable(int(self._arena.stream)):
                bound.graph = self._arena.capture(bound.enqueue)
        self.zero()

    def _copy_out(self, tensor: TensorSpec) -> NDArray[np.generic]:
        arena = self._open()
        raw = np.empty(bytes_of(tensor, self.spec, None), np.uint8)
        with _Poisoning(self):
            self._device.make_current()
            arena.download(raw, self._caches[tensor.name])
            arena.synchronize()
        rows = raw.view(HOST_TYPES[tensor.dtype]).reshape(shape_of(tensor, self.spec, None))
        return (rows.astype(np.uint32) << 16).view(np.float32) if tensor.dtype == "bfloat16" else rows


class _Poisoning:
    """Marks the context as failed when a device call inside raises."""

    def __init__(self, context: TrtContext) -> None:
        self._context = context

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            self._context.fail()


@dataclass(frozen=True)
class _Slab:
    """Caches of one shape, one behind the other, so that one strided copy moves a row of all their heads."""

    address: int
    caches: dict[str, int]  # address by input name
    row_bytes: int  # of one head
    height: int  # heads of all caches


def allocate_slabs(arena: Arena, spec: GraphSpec) -> list[_Slab]:
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


def _allocate_slab(arena: Arena, spec: GraphSpec, tensors: Sequence[TensorSpec]) -> _Slab:
    size = bytes_of(tensors[0], spec, None)
    batch, heads, capacity, _ = shape_of(tensors[0], spec, None)
    address = arena.allocate(size * len(tensors))
    caches = {tensor.name: address + place * size for place, tensor in enumerate(tensors)}
    return _Slab(address, caches, size // (batch * heads * capacity), len(tensors) * batch * heads)


def cache_addresses(spec: GraphSpec, caches: dict[str, int]) -> dict[str, int]:
    """Each cache under both its names: past and present are one buffer."""
    return {**caches, **{pair.output: caches[pair.input] for pair in spec.aliases}}
