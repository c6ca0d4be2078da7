"""Parity of a graph with PyTorch: right graphs pass, and a wrong one is reported with the layer where it goes wrong."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from specexport.errors import ParityError
from specexport.graph.canonical import take_reference
from specexport.graph.files import GRAPH_NAME, GraphFacts, describe_graph, save_graph, target_profiles
from specexport.parity.target import ParityReport, measure_parity, require_parity
from specruntime.engines import EngineOptions, open_engine
from specruntime.manifest.schema import OnnxRuntimeEngine
from tests.specexport.export.comparison import CAPACITY, VOCAB_SIZE
from tests.specexport.export.exported import ONNXRUNTIME, Exported, exports_under

TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def llama(run_directory: Path) -> Exported:
    return exports_under(run_directory)["llama"]


def parity_after(edit: Callable[[ir.Graph], None], found: Exported, directory: Path) -> ParityReport:
    """Parity of ONNX Runtime's variant after `edit`, driven as a build does it."""
    model = ir.load(found.path(ONNXRUNTIME))
    edit(model.graph)
    save_graph(model, directory)
    layers = found.layout.layers
    spec = describe_graph(
        model,
        GraphFacts(CAPACITY, layers, VOCAB_SIZE, found.padded_vocab_size),
        file=GRAPH_NAME,
        profiles=target_profiles([1, 4, 7], 16),
        batch=1,
        engine=OnnxRuntimeEngine(minimum_version="1.32.0"),
    )
    engine = open_engine(spec, directory, EngineOptions())
    reference = take_reference(found.model, vocab_size=VOCAB_SIZE, tokens=CAPACITY)
    return measure_parity(engine.new_context(), reference)


def corrupt(number: int) -> Callable[[ir.Graph], None]:
    """Scales the weights of the graph's `number`-th matrix product, in graph order, by a little."""

    def edit(graph: ir.Graph) -> None:
        products = [node for node in graph if node.op_type == "MatMul"]
        weight = products[number].inputs[1]
        assert weight is not None and weight.const_value is not None
        weight.const_value = ir.tensor(
            np.ascontiguousarray(weight.const_value.numpy() * 1.3), name=weight.name
        )

    return edit


def test_a_right_graph_is_within_tolerance(llama: Exported, tmp_path: Path) -> None:
    report = parity_after(lambda graph: None, llama, tmp_path)
    require_parity(report, TOLERANCE, "target")
    assert report.tokens == CAPACITY


@pytest.mark.parametrize(
    ("number", "place"),
    [
        (0, "in layer 0"),  # packed projections of layer 0
        (1, "in layer 0 behind its keys and values"),  # attention output of layer 0
        (3, "in layer 0 behind its keys and values"),  # down projection of layer 0
        (4, "keys and values of layer 1"),  # packed projections of layer 1
        (5, "after the last layer's keys and values"),  # attention output of layer 1
        (8, "LM head"),
    ],
)
def test_the_layer_where_a_difference_starts_is_named(
    llama: Exported, tmp_path: Path, number: int, place: str
) -> None:
    report = parity_after(corrupt(number), llama, tmp_path)
    with pytest.raises(ParityError, match=r"the target graph differs from PyTorch by") as failure:
        require_parity(report, TOLERANCE, "target")
    assert place in str(failure.value)
