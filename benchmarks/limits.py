"""Measures the most that this machine can do and computes the least that a window must do: both bounds for each time.

Bandwidth and peaks are the best of several libraries at large sizes, so a figure at 100 % is at the limit of what any
of them reaches here, not of what is printed on the box.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import onnxruntime
import torch
from onnxscript import opset18 as op
from onnxscript import script
from onnxscript.onnx_types import FLOAT, INT8, INT32, UINT8

_STREAM_BYTES = 2**30  # far beyond any cache
_SIDE = 2048
_REPEATS = 5


@dataclass(frozen=True)
class Machine:
    """Bytes per second that all threads read together, and operations per second (a multiply-add is two)."""

    bandwidth: float
    fp32_peak: float
    int8_peak: float


@dataclass(frozen=True)
class Need:
    """What a launch cannot do without: bytes of weights and cache rows, and operations by the numbers they meet."""

    bytes: int
    fp32_operations: int
    int8_operations: int

    def memory_ms(self, machine: Machine) -> float:
        return 1e3 * self.bytes / machine.bandwidth

    def arithmetic_ms(self, machine: Machine) -> float:
        return 1e3 * (self.fp32_operations / machine.fp32_peak + self.int8_operations / machine.int8_peak)

    def limit_ms(self, machine: Machine) -> float:
        """Reading and computing overlap at best."""
        return max(self.memory_ms(machine), self.arithmetic_ms(machine))


def measure_machine(threads: int) -> Machine:
    """Takes about ten seconds and 1 GiB."""
    torch.set_num_threads(threads)
    return Machine(_bandwidth(), _fp32_peak(threads), _int8_peak(threads))


def _bandwidth() -> float:
    """Reading only, as weights are read: a sum over everything, and a matrix times a vector."""
    memory = torch.ones(_STREAM_BYTES // 4)
    matrix, vector = memory.view(-1, 4096), torch.ones(4096)
    return _STREAM_BYTES / min(_best(memory.sum), _best(lambda: matrix @ vector))


def _fp32_peak(threads: int) -> float:
    left, right = torch.rand(_SIDE, _SIDE), torch.rand(_SIDE, _SIDE)
    session = _session(_multiply_fp32, threads)
    feeds = {"a": left.numpy(), "b": right.numpy()}
    return 2 * _SIDE**3 / min(_best(lambda: left @ right), _best(lambda: session.run(None, feeds)))


def _int8_peak(threads: int) -> float:
    left, right = (torch.randint(-100, 100, (_SIDE, _SIDE), dtype=torch.int8) for _ in range(2))
    session = _session(_multiply_int8, threads)
    feeds = {"a": (left.to(torch.int16) + 128).to(torch.uint8).numpy(), "b": right.numpy()}
    return (
        2 * _SIDE**3 / min(_best(lambda: torch._int_mm(left, right)), _best(lambda: session.run(None, feeds)))
    )


@script(default_opset=op)
def _multiply_fp32(a: FLOAT[_SIDE, _SIDE], b: FLOAT[_SIDE, _SIDE]) -> FLOAT[_SIDE, _SIDE]:
    return op.MatMul(a, b)


@script(default_opset=op)
def _multiply_int8(a: UINT8[_SIDE, _SIDE], b: INT8[_SIDE, _SIDE]) -> INT32[_SIDE, _SIDE]:
    return op.MatMulInteger(a, b)


def _session(function: object, threads: int) -> onnxruntime.InferenceSession:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    model = function.to_model_proto()  # type: ignore[attr-defined]
    return onnxruntime.InferenceSession(model.SerializeToString(), settings)


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some calls, the first one left out."""
    work()
    seconds = []
    for _ in range(_REPEATS):
        began = perf_counter()
        work()
        seconds.append(perf_counter() - began)
    return min(seconds)
