"""A compiled graph in a form that ONNX Runtime computes on the CPU of the build host."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx_ir as ir

from specexport.compiled_graph import CompiledGraph
from specexport.graph_files import GRAPH_NAME, save_graph
from specexport.passes import run_passes
from specexport.passes.emulate_four_bits import FOUR_BITS, EmulateFourBits
from specexport.passes.widen_bfloat16 import WidenBfloat16
from specruntime.manifest import GraphSpec

_FOREIGN = (ir.DataType.BFLOAT16, *FOUR_BITS)


@contextmanager
def on_host(graph: CompiledGraph) -> Iterator[tuple[GraphSpec, Path]]:
    """Entry and directory of `graph` as the CPU runs it: itself, or a copy with bfloat16 widened and 4-bit products
    emulated, which is gone when the block ends.
    """
    model = ir.load(graph.directory / GRAPH_NAME)
    if all(weight.dtype not in _FOREIGN for weight in model.graph.initializers.values()):
        yield graph.spec, graph.directory
        return
    with TemporaryDirectory() as name:
        directory = Path(name)
        run_passes(model, (EmulateFourBits(), WidenBfloat16()))
        save_graph(model, directory)
        yield graph.describe(model), directory
