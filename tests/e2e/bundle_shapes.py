"""What a build decides, without what differs between machines, versions and wordings.

`python -m tests.e2e.bundle_shapes BUNDLE` prints it, to be compared with what another commit prints.
"""

import hashlib
import json
import re
import sys
from math import prod
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

SMALL = 8  # values of a constant that belong to the shape of a graph; larger tensors are weights
MEASURED = frozenset(
    ("step_ms", "profile_ms", "launch_ms", "bytes", "sha256", "specexport", "versions", "minimum_version")
)
MEASURED_RECORD = MEASURED | {
    "reasons",
    "key",
    "machine",
    "parity",
    "fidelity",
    "warnings",
    "checkpoint",
    "checkpoints",
    "not_compared",
}
WINDOW = "window"
"""The key of what is said of a graph over the operators of `specruntime_kernels`: shown by itself, so that what is said
of the plain graphs can be seen to be what it was."""


def bundle_shapes(bundle: Path) -> dict[str, str]:
    """By file of the bundle: the text that must stay equal."""
    shapes = {
        "manifest.json": _document(bundle / "manifest.json", MEASURED),
        "build.json": _document(bundle / "build.json", MEASURED_RECORD),
        WINDOW: _windows(bundle),
    }
    for path in sorted(bundle.rglob("*.onnx")):
        shapes[path.relative_to(bundle).as_posix()] = graph_shape(path)
    return shapes


def graph_shape(path: Path) -> str:
    """The nodes, values and small constants of an ONNX file, a line each."""
    graph = onnx.load(str(path), load_external_data=False).graph
    lines = [f"input {_value(each)}" for each in graph.input]
    lines += [f"output {_value(each)}" for each in graph.output]
    lines += [f"tensor {each.name} {_tensor(each, path)}" for each in graph.initializer]
    for node in graph.node:
        attributes = sorted(f"{each.name}={_attribute(each, path)}" for each in node.attribute)
        lines.append(
            f"{node.domain}:{node.op_type} {list(node.input)} -> {list(node.output)} {' '.join(attributes)}"
        )
    return "\n".join(lines)


def schema_shape(schema: dict[str, Any]) -> str:
    """A JSON schema without the text that people read and the names of its definitions."""
    definitions: dict[str, Any] = schema.get("$defs", {})
    digests: dict[str, str] = {}

    def shape(found: Any) -> Any:
        if isinstance(found, list):
            return [shape(each) for each in found]
        if not isinstance(found, dict):
            return found
        if "mapping" in found and "propertyName" in found:  # a discriminator: which definition has which kind
            return {"propertyName": found["propertyName"], "kinds": sorted(found["mapping"])}
        return {
            key: named(value.removeprefix("#/$defs/")) if key == "$ref" else shape(value)
            for key, value in found.items()
            if key != "$defs" and not _is_text(key, value)
        }

    def named(name: str) -> str:
        if name not in digests:
            digests[name] = "in a circle"
            digests[name] = digest(json.dumps(shape(definitions[name]), sort_keys=True))
        return digests[name]

    return json.dumps(shape(schema), sort_keys=True)


def header_without_comments(text: str) -> str:
    """A C header without its comments and blank lines."""
    plain = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in plain.splitlines() if line.strip())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_text(key: str, value: Any) -> bool:
    return key in ("description", "title", "$comment") and isinstance(value, str)


def _document(path: Path, left_out: frozenset[str]) -> str:
    document = json.loads(path.read_text())
    if "files" in document:
        document["files"] = {name: file for name, file in document["files"].items() if WINDOW not in name}
    return json.dumps(_without(document, left_out | {WINDOW}), indent=1, sort_keys=True)


def _windows(bundle: Path) -> str:
    """What manifest and build record say of graphs over the operators."""
    manifest, record = (json.loads((bundle / f"{name}.json").read_text()) for name in ("manifest", "build"))
    graphs = {"target": manifest["target"], "draft": manifest["draft"].get("graph")}
    return json.dumps(
        {
            "entries": {name: graph["engine"].get(WINDOW) for name, graph in graphs.items() if graph},
            "records": {
                name: _without(graph.get(WINDOW), MEASURED_RECORD) for name, graph in record["graphs"].items()
            },
            "files": sorted(name for name in manifest["files"] if WINDOW in name),
        },
        indent=1,
        sort_keys=True,
    )


def _without(found: Any, left_out: frozenset[str]) -> Any:
    if isinstance(found, dict):
        return {key: _without(value, left_out) for key, value in found.items() if key not in left_out}
    return [_without(each, left_out) for each in found] if isinstance(found, list) else found


def _value(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    return f"{value.name} {tensor.elem_type} {[d.dim_param or d.dim_value for d in tensor.shape.dim]}"


def _attribute(attribute: onnx.AttributeProto, path: Path) -> str:
    value = onnx.helper.get_attribute_value(attribute)
    return _tensor(value, path) if isinstance(value, onnx.TensorProto) else repr(value)


def _tensor(tensor: onnx.TensorProto, path: Path) -> str:
    shape = f"{tensor.data_type} {list(tensor.dims)}"
    if prod(tensor.dims) > SMALL or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return shape
    return f"{shape} {[str(value) for value in numpy_helper.to_array(tensor).ravel()]}"


if __name__ == "__main__":
    for name, text in bundle_shapes(Path(sys.argv[1])).items():
        sys.stdout.write(f"== {name}\n{text}\n")
