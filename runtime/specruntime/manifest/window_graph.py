"""Checks the graph over the operators of `specruntime-kernels` against the graph it stands for.

Raises `BundleInvalid` naming the graph, the key and both values. Reads no files. Owns what differs between the two: the
files, and the cache rows of an int8 cache.
"""

from pathlib import PurePosixPath

from specruntime.manifest.graph import GraphSpec, OnnxRuntimeEngine, TensorSpec, WindowGraph, window_of
from specruntime.manifest.refusals import refuse

SCALE_BYTES = 4  # of the float32 scale behind the levels of an int8 cache row


def check_window_graph(label: str, graph: GraphSpec) -> None:
    """Check `engine.window` of the graph under the key `label`, where it has one."""
    window = window_of(graph)
    if window is None:
        return
    assert isinstance(graph.engine, OnnxRuntimeEngine), "no other engine has a window graph"
    key = f"{label}.engine.window"
    if graph.engine.provider != "cpu":
        refuse(f"{key}: found with provider {graph.engine.provider}, expected provider cpu")
    _check_places(key, graph, window)
    _check_paths(key, graph, window)
    if window.cache == "int8":
        cached = {pair.input for pair in graph.aliases}
        odd = [tensor for tensor in graph.inputs if tensor.name in cached and tensor.dtype != "float32"]
        if odd:
            refuse(f"{key}.cache is int8, but {odd[0].name} is {odd[0].dtype}; expected float32")


def _check_places(key: str, graph: GraphSpec, window: WindowGraph) -> None:
    """A library reads no weights from outside the directory of a graph's file."""
    directory = PurePosixPath(graph.file).parent
    plain = {graph.file, *(profile.file for profile in graph.profiles)}
    for name in (window.file, *window.paths.values()):
        if PurePosixPath(name).parent != directory or name in plain:
            refuse(f"{key}: found {name!r}, expected another file next to {graph.file!r}")
    for name in window.weights:
        if directory not in PurePosixPath(name).parents or name in plain:
            refuse(
                f"{key}.weights: found {name!r}, expected files in the directory of {graph.file!r} or below it"
            )
    names = window.files
    if twice := [name for name in names if names.count(name) > 1]:
        refuse(f"{key} names {twice[0]!r} twice")


def _check_paths(key: str, graph: GraphSpec, window: WindowGraph) -> None:
    files = {profile.file for profile in graph.profiles if profile.file is not None}
    if odd := sorted(files ^ window.paths.keys()):
        refuse(
            f"{key}.paths: {odd[0]!r} is in only one of paths and the files of {key.split('.')[0]}.profiles"
        )


def over_operators(graph: GraphSpec) -> GraphSpec:
    """Return the graph as its window graph has it: other files, and rows of an int8 cache where it keeps one."""
    window = window_of(graph)
    assert window is not None, "asked for graphs that have a window graph alone"
    changes = {
        "file": window.file,
        "weights": window.weights,
        "profiles": tuple(
            profile
            if profile.file is None
            else profile.model_copy(update={"file": window.paths[profile.file]})
            for profile in graph.profiles
        ),
    }
    if window.cache == "int8":
        cached = {name for pair in graph.aliases for name in (pair.input, pair.output)}
        changes |= {
            key: tuple(_int8_row(tensor) if tensor.name in cached else tensor for tensor in tensors)
            for key, tensors in (("inputs", graph.inputs), ("outputs", graph.outputs))
        }
    return graph.model_copy(update=changes)


def _int8_row(tensor: TensorSpec) -> TensorSpec:
    *sizes, head_size = tensor.shape
    assert isinstance(head_size, int), "the sizes of a cache are fixed"
    return tensor.model_copy(update={"dtype": "int8", "shape": (*sizes, head_size + SCALE_BYTES)})
