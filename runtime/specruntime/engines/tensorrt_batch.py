"""The sequences on one TensorRT engine, one or several: caches side by side, one launch for any neighbouring ones.

A launch from another first sequence is the same execution context with other cache addresses, set before it is
enqueued. A single sequence has its graphs captured when the context is made; of several, a graph is captured by first
sequence, when a launch has run there once.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specruntime.engines.cuda import ALIGNMENT, Arena, Device
from specruntime.engines.layout import HOST_TYPES, bytes_of, cached_inputs, no_logits, shape_of
from specruntime.engines.protocol import BatchContext, Window
from specruntime.engines.tensorrt_profile import TensorRTProfile, allocate_slabs, cache_addresses
from specruntime.errors import EngineFailed, InvalidArgument, WrongState
from specruntime.manifest.schema import GraphSpec, TensorSpec


class TrtBatch:
    """A `BatchContext` on the device.

    `replays` counts graph launches by profile; 0 for every profile where the library does not allow capture.
    """

    def __init__(
        self, engine: Any, device: Device, spec: GraphSpec, rows: int, errors: Sequence[str], config: Any
    ) -> None:
        """Allocate the buffers and run each profile once at each size, so that kernels are loaded."""
        self.spec, self.rows = spec, rows
        self.replays = {profile.name: 0 for profile in spec.profiles}
        self._device = device
        self._failed: set[int] = set()
        self._one = spec.for_one()
        if rows > 1:
            _require_alignment(self._one)
        self._launches: dict[tuple[str, int], _Launches] = {}
        self._arena: Arena | None = Arena(device)
        try:
            whole = spec.model_copy(update={"batch": rows})
            self._slabs = allocate_slabs(self._arena, whole)
            self._caches = {name: address for slab in self._slabs for name, address in slab.caches.items()}
            for profile in spec.profiles:
                for size in (size for size in spec.sizes_of(profile) if size <= rows):
                    part = spec.model_copy(update={"batch": size})
                    bound = TensorRTProfile(
                        engine, self._arena, part, profile, self._addresses(0), errors, config
                    )
                    self._launches[profile.name, size] = _Launches(bound)
            self._share_scratch()
            for launches in self._launches.values():
                launches.bound.enqueue()
                self._arena.synchronize()
                if rows == 1:
                    launches.capture(0, self._arena)
            for row in range(rows):
                self.zero(row)
        except BaseException:
            self.close()
            raise

    def window(self, profile: str, size: int) -> Window:
        return self._launches[profile, size].bound.window

    def run(self, window: Window, first: int) -> None:
        arena = self._open()
        size, name = len(window.cache_length), window.profile.name
        with _Changing(self, range(first, first + size)):
            self._device.make_current()
            launches = self._launches[name, size]
            if (graph := launches.graphs.get(first)) is not None:
                arena.launch(graph)
                self.replays[name] += 1
            else:
                launches.move(first, self._addresses(first))
                launches.bound.enqueue()
            arena.synchronize()
            if graph is None and self.rows > 1:
                launches.capture(first, arena)

    def logits(self, window: Window) -> NDArray[np.float32]:
        arena = self._open()
        bound = self._launches[window.profile.name, len(window.cache_length)].bound
        if bound.logits is None:
            raise no_logits(self.spec, window.profile)
        block, logits = bound.logits
        with _Changing(self, range(self.rows) if self.rows == 1 else ()):
            self._device.make_current()
            arena.download(block, bound.addresses["logits"])
            arena.synchronize()
        return logits

    def keep(self, row: int, start: int, rows: NDArray[np.int64]) -> None:
        """Enqueued only: the next run on this stream comes after it."""
        arena = self._open()
        moved = [(old, new) for new, old in enumerate(rows.tolist()) if old != new]
        with _Changing(self, (row,)):
            self._device.make_current()
            for address, width, height in self._blocks(row) if moved else ():
                pitch, base = self.spec.capacity * width, address + start * width
                for old, new in moved:
                    arena.move_rows(
                        base + old * width, base + new * width, width=width, pitch=pitch, height=height
                    )

    def copy_rows(self, row: int, source: BatchContext, source_row: int, count: int) -> None:
        """Enqueued behind all that the source has enqueued."""
        assert isinstance(source, TrtBatch), "contexts of one engine are of one kind"
        arena, other = self._open(), source._open()
        source.require_sound((source_row,))
        with _Changing(self, (row,)):
            self._device.make_current()
            other.synchronize()
            pairs = zip(source._blocks(source_row), self._blocks(row), strict=True)
            for (from_address, _, _), (address, width, height) in pairs:
                pitch = self.spec.capacity * width
                arena.move_rows(from_address, address, width=count * width, pitch=pitch, height=height)
            arena.synchronize()

    def cache(self, row: int) -> dict[str, NDArray[np.generic]]:
        """Return copies of the device's cache rows; bfloat16 is widened to float32, which numpy knows."""
        arena = self._open()
        found: dict[str, NDArray[np.generic]] = {}
        with _Changing(self, (row,)):
            self._device.make_current()
            for tensor in cached_inputs(self._one):
                raw = np.empty(bytes_of(tensor, self._one, None), np.uint8)
                arena.download(raw, self._address(tensor, row))
                arena.synchronize()
                values = raw.view(HOST_TYPES[tensor.dtype]).reshape(shape_of(tensor, self._one, None))
                wide = tensor.dtype == "bfloat16"
                found[tensor.name] = (values.astype(np.uint32) << 16).view(np.float32) if wide else values
        return found

    def zero(self, row: int) -> None:
        arena = self._open()
        self._device.make_current()
        for tensor in cached_inputs(self._one):
            arena.zero(self._address(tensor, row), bytes_of(tensor, self._one, None))
        arena.synchronize()
        self._failed.discard(row)

    def close(self) -> None:
        arena, self._arena = self._arena, None
        self._launches = {}  # execution contexts go before the memory they point into
        if arena is not None:
            arena.close()

    def require_sound(self, touched: Sequence[int]) -> None:
        """Raise `EngineFailed` where an earlier failure left a sequence's caches undefined; `zero` ends that."""
        if broken := self._failed.intersection(touched):
            where = f" over sequence {min(broken)}" if self.rows > 1 else ""
            raise EngineFailed(
                f"an earlier call on this context failed{where}; reset the session, or close it"
            )

    def _open(self) -> Arena:
        if self._arena is None:
            raise WrongState("the context is closed; take a new session or batch")
        return self._arena

    def _blocks(self, row: int) -> Iterator[tuple[int, int, int]]:
        """Yield the caches of one sequence as strided blocks: address, bytes of a head's row, heads."""
        if self.rows == 1:
            yield from ((slab.address, slab.row_bytes, slab.height) for slab in self._slabs)
            return
        for tensor in cached_inputs(self._one):
            _, heads, capacity, _ = shape_of(tensor, self._one, None)
            yield (
                self._address(tensor, row),
                bytes_of(tensor, self._one, None) // (heads * capacity),
                int(heads),
            )

    def _address(self, tensor: TensorSpec, row: int) -> int:
        return self._caches[tensor.name] + row * bytes_of(tensor, self._one, None)

    def _addresses(self, first: int) -> dict[str, int]:
        caches = {tensor.name: self._address(tensor, first) for tensor in cached_inputs(self._one)}
        return cache_addresses(self.spec, caches)

    def _share_scratch(self) -> None:
        """One activation block for all launches: they run one after the other on one stream."""
        arena = self._open()
        size = max(launches.bound.scratch_bytes() for launches in self._launches.values())
        address = arena.allocate(size)
        for launches in self._launches.values():
            launches.bound.execution.set_device_memory(address, max(size, 1))


class _Changing:
    """Leaves sequences marked as failed unless all in its block went well. Raises as `require_sound` on entry."""

    __slots__ = ("_batch", "_touched")

    def __init__(self, batch: TrtBatch, touched: Sequence[int]) -> None:
        self._batch, self._touched = batch, touched

    def __enter__(self) -> None:
        self._batch.require_sound(self._touched)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            self._batch._failed.update(self._touched)


class _Launches:
    """One profile at one size: where its caches begin now, and what was captured for which first sequence."""

    def __init__(self, bound: TensorRTProfile) -> None:
        self.bound = bound
        self.graphs: dict[int, Any] = {}
        self._first = 0

    def move(self, first: int, addresses: dict[str, int]) -> None:
        if first == self._first:
            return
        for name, address in addresses.items():
            if not self.bound.execution.set_tensor_address(name, address):
                raise EngineFailed(
                    f"{name} cannot be bound to the caches of sequence {first}; build the bundle again"
                )
        self._first = first

    def capture(self, first: int, arena: Arena) -> None:
        """Capture a launch that has run once, where the library allows it."""
        if self.bound.execution.is_stream_capturable(int(arena.stream)):
            self.graphs[first] = arena.capture(self.bound.enqueue)


def _require_alignment(one: GraphSpec) -> None:
    """Raise `InvalidArgument` where a sequence's caches would begin at an address that the library refuses."""
    for tensor in cached_inputs(one):
        if bytes_of(tensor, one, None) % ALIGNMENT:
            raise InvalidArgument(
                f"{tensor.name} takes {bytes_of(tensor, one, None)} bytes a sequence, expected a multiple of "
                f"{ALIGNMENT} for batches on TensorRT: choose a `capacity` that is a multiple of 64 in the recipe"
            )
