"""The two paths of a graph as files of their own on one weights file: ONNX Runtime runs every node of a file.

Knows the outputs of either path from `layer_path`; nothing of backends.
"""

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from specexport.graph_files import GRAPH_NAME
from specexport.passes.layer_path import full_outputs, path_outputs
from specexport.quiet import quiet

PATH_NAME = "draft_path.onnx"


def split_paths(directory: Path, layers: Sequence[int]) -> None:
    """Leaves the full path in `GRAPH_NAME` and writes the draft's to `PATH_NAME`; the weights file stays as it is."""
    names = [value.name or "" for value in ir.load(directory / GRAPH_NAME).graph.outputs]
    _write(directory, PATH_NAME, path_outputs(names, layers))
    _write(directory, GRAPH_NAME, full_outputs(names))


def _write(directory: Path, name: str, outputs: Sequence[str]) -> None:
    model = ir.load(directory / GRAPH_NAME)
    for value in list(model.graph.outputs):
        if value.name not in outputs:
            model.graph.outputs.remove(value)
    with quiet():
        RemoveUnusedNodesPass()(model)
    ir.save(model, directory / name)
