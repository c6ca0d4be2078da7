"""From an ONNX file to a parsed, strongly typed network.

Owns the wording of parser errors and the network's attention attributes. Knows nothing of profiles or compilation.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specexport.tensorrt.errors import OperatorUnsupported
from specexport.tensorrt.profiles import SymbolicInput


def parse_network(trt: Any, builder: Any, logger: Any, path: Path) -> tuple[Any, Any]:
    """(network, parser) of the ONNX file; weights are read from the files beside it.

    The parser must outlive the network.

    Raises `OperatorUnsupported` with one line per node that has no translation.
    """
    strongly_typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(strongly_typed)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(path)):
        raise OperatorUnsupported("\n".join(_parser_errors(parser, path)))
    return network, parser


def symbolic_inputs(network: Any) -> tuple[SymbolicInput, ...]:
    """The inputs with their dimension names; a dynamic dimension without a name is an error of ours."""
    return tuple(_symbolic(network.get_input(index)) for index in range(network.num_inputs))


def allow_decomposition(trt: Any, network: Any) -> int:
    """Lets attention without a fused kernel be built from primitive operators; returns how many were marked."""
    layers = (network.get_layer(index) for index in range(network.num_layers))
    boundaries = [layer for layer in layers if layer.type == trt.LayerType.ATTENTION_OUTPUT]
    for boundary in boundaries:
        boundary.__class__ = (
            trt.IAttentionOutputLayer
        )  # get_layer returns the base type; this is the bindings' way down
        boundary.attention.decomposable = True
    return len(boundaries)


def _parser_errors(parser: Any, path: Path) -> Iterator[str]:
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        description = " ".join(str(error.desc()).split())
        node = (
            f"node '{error.node_name()}' ({error.node_operator()})" if error.node_operator() else "the file"
        )
        yield f"{path.name}: TensorRT cannot parse {node}: {description}; expected an operator of its support matrix"


def _symbolic(tensor: Any) -> SymbolicInput:
    shape: list[int | str] = []
    for axis, size in enumerate(tensor.shape):
        symbol = tensor.get_dimension_name(axis)
        assert size >= 0 or symbol, f"{tensor.name} has an unnamed dynamic dimension {axis}"
        shape.append(int(size) if size >= 0 else str(symbol))
    return SymbolicInput(tensor.name, tuple(shape))
