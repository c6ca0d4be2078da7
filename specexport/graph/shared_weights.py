"""Weights that the draft's graph has in common with the target's lie in a bundle once, in the target's file.

ONNX Runtime reads weights from the directory of a graph's file and below it, nowhere else: the file of a draft that
shares some moves to the root of the bundle, above both weight files. Both sessions then map the same pages.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from specexport.graph.files import PLAIN_FILES, FileNames

SHARED_GRAPH_NAME = "draft.onnx"
SHARED_WINDOW_NAME = "draft.window.onnx"
_TARGET, _DRAFT = "target", "draft"
_SMALLEST = 4096  # bytes: what is smaller is not worth an entry in another file
_WORTH = 1 / 8  # of the draft's weights: for less, such as position tables, its graph stays next to its own
_PAGE = 4096  # a mapping begins at a page, so that a large weight shares none with another
_LINE = 64  # bytes that kernels load at a time


def share_weights(
    root: Path, names: FileNames = PLAIN_FILES, shared_name: str = SHARED_GRAPH_NAME
) -> tuple[str, ...]:
    """Take out of the bundle's draft what its target has byte for byte; -> the weight files of the draft's graph.

    The draft's own comes first. () where they have too little in common: then nothing is changed. `root` holds both
    graphs, each in a directory of its own; `names` are their files there, `shared_name` that of a draft which shares.
    """
    own, other = (f"{name}/{names.weights}" for name in (_DRAFT, _TARGET))
    graph = onnx.load(root / _DRAFT / names.graph, load_external_data=False)
    target = onnx.load(root / _TARGET / names.graph, load_external_data=False)
    held = dict(_external(graph))
    shared = _equal(held, dict(_external(target)), root / own, root / other)
    if not shared or sum(length for _, length in shared.values()) < _WORTH * (root / own).stat().st_size:
        return ()
    kept = root / f"{own}.kept"
    with (root / own).open("rb") as source, kept.open("wb") as file:
        for tensor in graph.graph.initializer:
            if tensor.name in shared:
                _place(tensor, other, *shared[tensor.name])
            elif tensor.name in held:
                offset, length = held[tensor.name]
                source.seek(offset)
                file.write(bytes(-file.tell() % (_PAGE if length >= _PAGE else _LINE)))
                _place(tensor, own, file.tell(), length)
                file.write(source.read(length))
    kept.replace(root / own)
    onnx.save(graph, root / shared_name)
    (root / _DRAFT / names.graph).unlink()
    return (own, other)


def move_graph(root: Path, names: FileNames, name: str) -> tuple[str, ...]:
    """Put the draft's graph at the bundle's root as `name`, over the weights where they are; -> its weight files."""
    own = f"{_DRAFT}/{names.weights}"
    graph = onnx.load(root / _DRAFT / names.graph, load_external_data=False)
    held = dict(_external(graph))
    for tensor in graph.graph.initializer:
        if tensor.name in held:
            _place(tensor, own, *held[tensor.name])
    onnx.save(graph, root / name)
    (root / _DRAFT / names.graph).unlink()
    return (own,)


def _external(model: Any) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name, offset and length of each weight that lies in the weight file."""
    for tensor in model.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            yield tensor.name, (int(entries.get("offset", 0)), int(entries["length"]))


def _equal(
    held: Mapping[str, tuple[int, int]], others: Mapping[str, tuple[int, int]], own: Path, other: Path
) -> dict[str, tuple[int, int]]:
    """By name of a weight in `own`: where in `other` the same bytes lie."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for offset, length in others.values():
        by_length[length].append(offset)
    ours, theirs = np.memmap(own, np.uint8, "r"), np.memmap(other, np.uint8, "r")
    found = {}
    for name, (offset, length) in held.items():
        content = ours[offset : offset + length]
        for start in by_length[length] if length >= _SMALLEST else ():
            other_content = theirs[start : start + length]
            # Most differ at once: the first page spares reading the rest.
            if np.array_equal(content[:_PAGE], other_content[:_PAGE]) and np.array_equal(
                content, other_content
            ):
                found[name] = (start, length)
                break
    return found


def _place(tensor: Any, location: str, offset: int, length: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
