"""Host memory for a graph at ONNX Runtime: KV caches in slabs, staging buffers, and bindings to their addresses."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specruntime.engines.layout import cached_inputs, shape_of
from specruntime.errors import EngineFailed, InvalidArgument, OutOfMemory
from specruntime.manifest.schema import GraphSpec, Profile, TensorSpec

_NUMPY_TYPES: dict[str, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
    "int64": np.int64,
    "int32": np.int32,
    "int8": np.int8,
    "bool": np.bool_,
}
_SHORTAGES = ("bad_alloc", "Failed to allocate memory", "Cannot allocate memory")


class Binding:
    """ONNX Runtime's binding of one launch to the addresses of its buffers, which must outlive it."""

    def __init__(
        self,
        session: Any,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[Any]],
        name: str,
    ) -> None:
        self._session, self._name = session, name
        self._binding = session.io_binding()
        for key, array in inputs.items():
            self._binding.bind_input(key, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        for key, array in outputs.items():
            self._binding.bind_output(key, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def run(self) -> None:
        """Raise `EngineFailed`, or `OutOfMemory` where the library found no memory for what it computes."""
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            if is_shortage(error):
                raise OutOfMemory(
                    f"onnxruntime found no memory to run {self._name}: close other sessions, or raise the limit of "
                    "this process"
                ) from error
            raise EngineFailed(
                f"onnxruntime failed while running {self._name}: {first_line(error)}"
            ) from error


class StagingBuffers:
    """What one profile reads and writes in addition to the caches, for `spec.batch` sequences."""

    def __init__(self, session: Any, spec: GraphSpec, profile: Profile) -> None:
        taken = {value.name for value in session.get_inputs()}
        cached = {pair.input for pair in spec.aliases}
        self._pasts = {pair.output: pair.input for pair in spec.aliases if profile.computes(pair.output)}
        self._reads = [name for name in (t.name for t in spec.inputs) if name in cached & taken]
        self.inputs = {
            t.name: allocate(t, spec, profile)
            for t in spec.inputs
            if t.name in taken and t.name not in cached
        }
        self.outputs = {
            t.name: allocate(t, spec, profile)
            for t in spec.outputs
            if profile.computes(t.name) and t.name not in self._pasts
        }
        self.logits: NDArray[np.float32] | None = self.outputs.get("logits", self.outputs.get("draft_logits"))
        self._session, self._name = session, f"{spec.file} at {profile.name}"

    def bind(self, cache: Mapping[str, NDArray[Any]], size: int) -> Binding:
        """Return a launch of `size` sequences: the first rows of these buffers, on `cache`, which holds as many."""
        inputs = {name: array[:size] for name, array in self.inputs.items()}
        outputs = {name: array[:size] for name, array in self.outputs.items()}
        pasts = {name: cache[name] for name in self._reads}
        presents = {output: cache[past] for output, past in self._pasts.items()}
        return Binding(self._session, inputs | pasts, outputs | presents, self._name)


def move_rows(slabs: Sequence[NDArray[Any]], start: int, rows: NDArray[np.int64]) -> None:
    """Move cache row `start + rows[i]` to `start + i` in slabs [n, B, kv_heads, capacity, head_dim]."""
    # Rows that stay where they are lead: `rows` is ascending, so rows[i] == i holds for a prefix.
    still = int(np.searchsorted(rows - np.arange(len(rows)), 1))
    if still == len(rows):
        return
    for slab in slabs:
        slab[:, :, :, start + still : start + len(rows)] = slab[:, :, :, start + rows[still:]]


def copy_rows(into: Mapping[str, NDArray[Any]], source: Mapping[str, NDArray[Any]], count: int) -> None:
    """Copy the first `count` rows of caches [B, kv_heads, capacity, head_dim] of the same names and shapes."""
    for name, rows in into.items():
        rows[:, :, :count] = source[name][:, :, :count]


def allocate_slabs(spec: GraphSpec) -> list[tuple[list[str], NDArray[Any]]]:
    """One block [n, B, kv_heads, capacity, head_dim] for the n caches of one shape and dtype, with their names."""
    groups: dict[tuple[object, ...], list[TensorSpec]] = {}
    for tensor in cached_inputs(spec):
        groups.setdefault((tensor.dtype, tensor.shape), []).append(tensor)
    slabs = []
    for tensors in groups.values():
        stacked = tensors[0].model_copy(update={"shape": (len(tensors), *tensors[0].shape)})
        slabs.append(([tensor.name for tensor in tensors], allocate(stacked, spec, None)))
    return slabs


def allocate(tensor: TensorSpec, spec: GraphSpec, profile: Profile | None) -> NDArray[Any]:
    if tensor.dtype not in _NUMPY_TYPES:
        raise InvalidArgument(
            f"tensor {tensor.name} has dtype {tensor.dtype}; onnxruntime on the host takes {', '.join(_NUMPY_TYPES)}"
        )
    try:
        return np.zeros(shape_of(tensor, spec, profile), _NUMPY_TYPES[tensor.dtype])
    except (
        MemoryError,
        ValueError,
        OverflowError,
    ) as error:  # numpy's words for more than an address can reach
        raise OutOfMemory(_describe_shortage(tensor, spec, profile)) from error


def _describe_shortage(tensor: TensorSpec, spec: GraphSpec, profile: Profile | None) -> str:
    if profile is None:
        return (
            f"no memory for the KV cache of {spec.file} at capacity {spec.capacity}: lower `capacity` in the recipe or "
            "close other sessions"
        )
    return (
        f"no memory for {tensor.name} of {spec.file} at {profile.name}, shape "
        f"{list(shape_of(tensor, spec, profile))}: narrow the recipe's widths or close other sessions"
    )


def is_shortage(error: Exception) -> bool:
    """Whether the library failed for want of memory; it says so in words alone."""
    words = str(error)
    return isinstance(error, MemoryError) or any(each in words for each in _SHORTAGES)


def first_line(error: Exception) -> str:
    """Return what an exception says, on one line."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


@dataclass(frozen=True, slots=True)
class _Launch:
    """How much a launch computes on the session of one graph file, whose memory is its own."""

    file: str
    tokens: int
    rows: int  # of logits

    def covers(self, other: "_Launch") -> bool:
        return self.file == other.file and self.tokens >= other.tokens and self.rows >= other.rows


@dataclass(frozen=True, slots=True)
class GrownMemory:
    """The launches that memory was grown for; an engine's contexts and batches share it."""

    _launches: set[_Launch] = field(default_factory=set)

    def grow(
        self, spec: GraphSpec, sizes: Iterable[tuple[Profile, int]], run: Callable[[Profile, int], None]
    ) -> None:
        """Run those of the launches, profiles with their numbers of sequences, that no earlier one covers."""
        for profile, size in sorted(sizes, key=lambda each: each[0].width * each[1], reverse=True):
            launch = _Launch(profile.file or spec.file, profile.width * size, profile.rows * size)
            if not any(done.covers(launch) for done in tuple(self._launches)):
                run(profile, size)
                self._launches.add(launch)
