"""Reads the engine's layer listing: what each compiled layer came from, reads and writes.

The builder logs the listing when it is done and the engine inspector returns the same fields, so engines can be judged
on machines that cannot load them. Knows nothing of what a good engine looks like; see `report`.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

_LAYER = re.compile(
    r"^Name: (?P<name>.+?), LayerType: (?P<type>[^,]+), Inputs: \[(?P<inputs>.*?)\](?:, Constants: \[.*?\])?, "
    r"Outputs: \[(?P<outputs>.*?)\](?:, TacticName: (?P<tactic>[^,]*))?"
    r"(?:, StreamId: [^,]*)?(?:, Metadata:\s*(?P<metadata>.*))?$"
)
_TENSOR = re.compile(r"Name: (?P<name>[^,]+), (?:Location: \w+, )?Dimensions: \[(?P<shape>[-0-9,]*)\]")
_ONNX_NODE = re.compile(r"\[ONNX Layer: ([^\]]+)\]")
# The two separators above would also end at a bracket inside a tensor; those stand in braces.
_BRACES = re.compile(r"\{[^{}]*\}")


class Tensor(BaseModel):
    """A compiled layer's input or output; -1 in `shape` is a dynamic size."""

    model_config = ConfigDict(frozen=True)

    name: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int | None:
        return None if any(size < 0 for size in self.shape) else math.prod(self.shape)


class Layer(BaseModel):
    """One compiled layer and the ONNX nodes it came from."""

    model_config = ConfigDict(frozen=True)

    name: str
    type: str
    tactic: str
    onnx_nodes: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


def parse_listing(listing: str) -> tuple[Layer, ...]:
    """Layers of the builder's "Layers:" log message (profiling verbosity DETAILED); empty for an empty message."""
    lines = listing.removeprefix("Layers:").splitlines()
    layers = (_parse_line(line.strip()) for line in lines if ", LayerType: " in line)
    return tuple(layer for layer in layers if layer is not None)


def parse_inspection(document: str) -> tuple[Layer, ...]:
    """Layers of `EngineInspector.get_engine_information(JSON)`, from an engine built with verbosity DETAILED."""
    layers = json.loads(document).get("Layers", [])
    return tuple(_from_mapping(layer) for layer in layers if isinstance(layer, Mapping))


def _parse_line(line: str) -> Layer | None:
    # Tensors carry brackets and commas of their own: take them out first, by index, so that the outer form is plain.
    tensors = _BRACES.findall(line)
    numbers = iter(range(len(tensors)))
    match = _LAYER.match(_BRACES.sub(lambda _: f"#{next(numbers)}#", line))
    if match is None:
        return None
    return Layer(
        name=match["name"],
        type=match["type"],
        tactic=(match["tactic"] or "").strip(),
        onnx_nodes=tuple(_ONNX_NODE.findall(match["metadata"] or "")),
        inputs=_tensors(match["inputs"], tensors),
        outputs=_tensors(match["outputs"], tensors),
    )


def _tensors(references: str, tensors: Sequence[str]) -> tuple[Tensor, ...]:
    found = (_TENSOR.search(tensors[int(index)]) for index in re.findall(r"#(\d+)#", references))
    return tuple(
        Tensor(name=match["name"], shape=tuple(int(size) for size in match["shape"].split(",") if size))
        for match in found
        if match is not None
    )


def _from_mapping(layer: Mapping[str, Any]) -> Layer:
    return Layer(
        name=str(layer.get("Name", "")),
        type=str(layer.get("LayerType", "")),
        tactic=str(layer.get("TacticName", "")),
        onnx_nodes=tuple(_ONNX_NODE.findall(str(layer.get("Metadata", "")))),
        inputs=tuple(_tensor_from_mapping(tensor) for tensor in layer.get("Inputs", [])),
        outputs=tuple(_tensor_from_mapping(tensor) for tensor in layer.get("Outputs", [])),
    )


def _tensor_from_mapping(tensor: Mapping[str, Any]) -> Tensor:
    return Tensor(
        name=str(tensor.get("Name", "")), shape=tuple(int(size) for size in tensor.get("Dimensions", []))
    )
