"""Runs a compiled graph on this machine's CPU, whatever it was compiled for.

ONNX Runtime has few bfloat16 kernels on the CPU, and none for TensorRT's 4-bit formats: a graph that holds such numbers
is represented by a copy of it that the CPU can run.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import onnx_ir as ir

from specexport.cache.entries import file_sha256
from specexport.graph.compiled import CompiledGraph
from specexport.graph.files import GRAPH_NAME, PATH_NAME
from specexport.passes import run_passes
from specexport.passes.host_numbers import FOUR_BITS, EmulateFourBits, WidenBfloat16
from specruntime.engines import EngineOptions, open_engine
from specruntime.engines.kernels import asked_kernels, find_kernels
from specruntime.engines.protocol import Context
from specruntime.errors import SpecError
from specruntime.manifest.schema import GraphSpec, window_of

Report = TypeVar("Report")


@dataclass(frozen=True)
class HostGraph:
    """A graph that the CPU runs: its entry, the directory of its files, whether bfloat16 was widened in it."""

    spec: GraphSpec
    directory: Path
    widened: bool = False


@contextmanager
def opened_context(
    spec: GraphSpec, directory: Path, options: EngineOptions | None = None
) -> Iterator[Context]:
    """Yield a context of the graph whose files are in `directory`; it and its engine are closed at the block's end."""
    with (
        closing(open_engine(spec, directory, options or EngineOptions())) as engine,
        closing(engine.new_context()) as context,
    ):
        yield context


@contextmanager
def on_host(graph: CompiledGraph) -> Iterator[HostGraph]:
    """`graph` itself, or a copy with bfloat16 widened and 4-bit products emulated, which the block's end removes."""
    if graph.plan.window is not None:  # its operators are for the CPU
        yield HostGraph(graph.spec, graph.directory)
        return
    weights = ir.load(graph.directory / GRAPH_NAME).graph.initializers.values()
    widened = any(weight.dtype == ir.DataType.BFLOAT16 for weight in weights)
    if not widened and all(weight.dtype not in FOUR_BITS for weight in weights):
        yield HostGraph(graph.spec, graph.directory)
        return
    with TemporaryDirectory() as name:
        yield HostGraph(_write_copy(Path(name), graph), Path(name), widened)


def kernels_digest(graph: CompiledGraph) -> str | None:
    """Return the digest of the library that runs a graph over its operators, for keys of what is measured; None for
    graphs that need none.
    """
    if graph.plan.window is None:
        return None
    import specruntime_kernels

    return file_sha256(specruntime_kernels.library_path())


def no_kernels(graph: CompiledGraph) -> str | None:
    """Return why this host cannot run a graph over the operators of `specruntime_kernels`; None where it can."""
    window = window_of(graph.spec)
    assert window is not None, "asked for graphs over the operators alone"
    try:
        find_kernels(window, asked_kernels(None))
    except SpecError as error:
        return str(error)
    return None


def measure_on_host(graph: CompiledGraph, measure: Callable[[Context], Report]) -> tuple[Report, bool]:
    """Return what `measure` finds of one sequence on the CPU, and whether a widened copy was measured."""
    with on_host(graph) as host:
        spec = host.spec.model_copy(update={"batch": 1})
        with opened_context(spec, host.directory, EngineOptions(provider="cpu")) as context:
            return measure(context), host.widened


def _write_copy(directory: Path, graph: CompiledGraph) -> GraphSpec:
    """Write every path of `graph` for the CPU and return the entry of all."""
    entries = []
    for name in (GRAPH_NAME, *((PATH_NAME,) if graph.plan.draft_layers else ())):
        model = ir.load(graph.directory / name)
        run_passes(model, (EmulateFourBits(), WidenBfloat16()))
        ir.save(model, directory / name, external_data=f"{name}.weights")
        entries.append(graph.describe(model))
    outputs, aliases = entries[0].outputs, entries[0].aliases
    for path in entries[1:]:
        outputs += tuple(tensor for tensor in path.outputs if tensor not in outputs)
        aliases += tuple(pair for pair in path.aliases if pair not in aliases)
    return entries[0].model_copy(update={"outputs": outputs, "aliases": aliases})
