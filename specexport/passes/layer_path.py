"""A path through some layers of the canonical graph: what a draft that skips layers of the target computes.

The residual values hidden.N delimit the layers, so a layer is what lies between two of them. A path shares the nodes of
the layers it begins with (0, 1, ... as long as none is skipped) and copies the others on the same weights and the same
caches.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import DeduplicateHashedInitializersPass

from specexport.passes import GraphPass, PassReport, lacks_outputs
from specexport.passes.graph_builder import Builder
from specexport.passes.interface import HIDDEN_PREFIX

DRAFT_PREFIX = "draft_"
_RESULTS = ("logits", "top_ids")
_CACHE_KINDS = ("key", "value")
_COMPARED = 256  # numbers of a weight


@dataclass(frozen=True)
class LayerPath:
    """Outputs of a path: logits and top_ids, and each layer's caches (`shared`: written by the full path's nodes)."""

    results: dict[str, ir.Value]  # by the canonical name of the output
    caches: dict[str, ir.Value]  # by the canonical name: present_key.N
    shared: int


class AddDraftPath(GraphPass):
    """The layers of a draft as a second path next to the full one."""

    name = "add-draft-path"

    def __init__(self, layers: Sequence[int]) -> None:
        self._layers = tuple(layers)

    def requires(self, model: ir.Model) -> str | None:
        return _lacks_layers(model, self._layers)

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        full = lacks_outputs(model, *_RESULTS)
        path = lacks_outputs(model, *(DRAFT_PREFIX + name for name in _RESULTS))
        return full or (path if report.changed else None)

    def __call__(self, model: ir.Model) -> PassReport:
        graph = model.graph
        found = _add_path(graph, self._layers)
        if isinstance(found, str):
            return PassReport(self.name, 0, (found,))
        copied = {
            name: value for name, value in found.caches.items() if _layer(name) not in range(found.shared)
        }
        for name, value in (found.results | copied).items():
            value.name = DRAFT_PREFIX + name
            graph.outputs.append(value)
        return PassReport(
            self.name, 1 + len(self._layers) - found.shared
        )  # the LM head and the copied layers


class KeepLayers(GraphPass):
    """The layers of a draft in place of all of them: a graph of its own, its caches numbered from 0."""

    name = "keep-layers"

    def __init__(self, layers: Sequence[int]) -> None:
        self._layers = tuple(layers)

    def requires(self, model: ir.Model) -> str | None:
        return _lacks_layers(model, self._layers)

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        """Logits, top_ids and the caches of the kept layers are all there is."""
        if not report.changed:
            return None
        caches = {f"present_{kind}.{n}" for kind in _CACHE_KINDS for n in range(len(self._layers))}
        found = {value.name for value in model.graph.outputs}
        return None if found == {*_RESULTS, *caches} else f"the outputs are {sorted(map(str, found))}"

    def __call__(self, model: ir.Model) -> PassReport:
        graph = model.graph
        found = _add_path(graph, self._layers)
        if isinstance(found, str):
            return PassReport(self.name, 0, (found,))
        for output in list(graph.outputs):
            graph.outputs.remove(output)
            output.name = f"full_{output.name}"
        for name, value in found.results.items():
            value.name = name
            graph.outputs.append(value)
        inputs = {value.name: value for value in graph.inputs}
        pasts = {name: inputs[name.replace("present_", "past_", 1)] for name in found.caches}
        for past in [
            value for name, value in inputs.items() if name is not None and name.startswith("past_")
        ]:
            graph.inputs.remove(past)
        for name, value in found.caches.items():  # in order of layer and kind
            number = self._layers.index(_layer(name))
            kind = name.split("_", 1)[1].split(".")[0]
            value.name, pasts[name].name = f"present_{kind}.{number}", f"past_{kind}.{number}"
            graph.outputs.append(value)
            graph.inputs.append(pasts[name])
        _drop_unreachable(graph)
        reason = _read_sizes_of_kept(graph, [v for v in inputs.values() if v not in graph.inputs])
        return PassReport(self.name, 0 if reason else len(self._layers), (reason,) if reason else ())


def _lacks_layers(model: ir.Model, layers: Sequence[int]) -> str | None:
    """Return the first hidden state around a layer that is not an output of the graph."""
    return lacks_outputs(model, *(f"{HIDDEN_PREFIX}{n + side}" for n in layers for side in (0, 1)))


def path_outputs(outputs: Iterable[str], layers: Sequence[int]) -> tuple[str, ...]:
    """Return the outputs, of a graph with a draft path, that a run of the draft path computes."""
    return tuple(
        name
        for name in outputs
        if name.startswith(DRAFT_PREFIX)
        or (name.startswith("present_") and _layer(name) in range(shared_layers(layers)))
    )


def full_outputs(outputs: Iterable[str]) -> tuple[str, ...]:
    """Return the outputs, of a graph with a draft path, that a run of all layers computes."""
    return tuple(name for name in outputs if not name.startswith(DRAFT_PREFIX))


def shared_layers(layers: Sequence[int]) -> int:
    """How many layers a path begins with before it skips one."""
    return next((n for n, layer in enumerate(layers) if n != layer), len(layers))


def _layer(name: str) -> int:
    return int(name.rsplit(".", 1)[1])


def _add_path(graph: ir.Graph, layers: Sequence[int]) -> LayerPath | str:
    """Append the copied part of the path; the reason where the graph cannot be cut."""
    outputs = {value.name or "": value for value in graph.outputs}
    last = max((_layer(n) for n in outputs if n.startswith("present_")), default=-1) + 1
    hidden = [outputs.get(f"{HIDDEN_PREFIX}{n}") for n in range(last + 1)]
    if not hidden or any(value is None for value in hidden):
        return "the graph has no hidden states that tell its layers apart"
    residual = [value for value in hidden if value is not None]
    body, moving = list(graph), _descendants(residual[0])
    shared = shared_layers(layers)
    current = residual[shared]
    caches = {
        name: outputs[name]
        for n in range(shared)
        for name in (f"present_{kind}.{n}" for kind in _CACHE_KINDS)
    }
    for layer in layers[shared:]:
        names = [f"present_{kind}.{layer}" for kind in _CACHE_KINDS]
        wanted = [residual[layer + 1], *(outputs[name] for name in names)]
        copied = _copy_between(graph, body, residual[layer], wanted, current, moving, f"layer {layer}")
        if isinstance(copied, str):
            return copied
        current, *rows = copied
        caches |= dict(zip(names, rows, strict=True))
    wanted = [outputs[name] for name in _RESULTS]
    head = _copy_between(graph, body, residual[last], wanted, current, moving, "the LM head")
    return (
        head if isinstance(head, str) else LayerPath(dict(zip(_RESULTS, head, strict=True)), caches, shared)
    )


def _copy_between(
    graph: ir.Graph,
    body: Sequence[ir.Node],
    start: ir.Value,
    wanted: Sequence[ir.Value],
    replacement: ir.Value,
    moving: set[ir.Node],
    place: str,
) -> list[ir.Value] | str:
    """`wanted` computed from `replacement` in place of `start`, by copies of the nodes between them.

    `moving` are all nodes that depend on the first residual: none but those between may be read, or the layer reads
    more than the residual stream.
    """
    inside = _descendants(start) & _ancestors(wanted)
    values: dict[ir.Value, ir.Value] = {start: replacement}
    for node in body:
        if node not in inside:
            continue
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if value not in values and producer in moving and producer not in inside:
                return (
                    f"{place} reads {value.name if value else ''}, which is not part of the residual stream"
                )
        values |= dict(zip(node.outputs, _copy(graph, node, values), strict=True))
    return [values[value] for value in wanted]


def _copy(graph: ir.Graph, node: ir.Node, values: dict[ir.Value, ir.Value]) -> Sequence[ir.Value]:
    copied = ir.Node(
        node.domain,
        node.op_type,
        [values.get(value, value) if value is not None else None for value in node.inputs],
        attributes=list(node.attributes.values()),
        num_outputs=len(node.outputs),
        name=f"{DRAFT_PREFIX}{node.name}",
        metadata_props=dict(node.metadata_props),
    )
    for old, new in zip(node.outputs, copied.outputs, strict=True):
        new.name, new.type, new.shape = f"{DRAFT_PREFIX}{old.name}", old.type, old.shape
    graph.append(copied)
    return copied.outputs


def _descendants(value: ir.Value) -> set[ir.Node]:
    """Every node that depends on `value`."""
    found: set[ir.Node] = set()
    pending = [value]
    while pending:
        for node in pending.pop().consumers():
            if node not in found:
                found.add(node)
                pending.extend(node.outputs)
    return found


def _ancestors(values: Iterable[ir.Value]) -> set[ir.Node]:
    """Every node that `values` depend on."""
    found: set[ir.Node] = set()
    pending = list(values)
    while pending:
        node = pending.pop().producer()
        if node is not None and node not in found:
            found.add(node)
            pending.extend(value for value in node.inputs if value is not None)
    return found


def _read_sizes_of_kept(graph: ir.Graph, dropped: Sequence[ir.Value]) -> str | None:
    """Nodes that take a size from a dropped cache take it from a kept one of its shape; the reason where none is."""
    kept = [value for value in graph.inputs if (value.name or "").startswith("past_")]
    for value in dropped:
        readers = list(value.uses())
        alike = next((cache for cache in kept if cache.shape == value.shape), None)
        if readers and (alike is None or any(use.node.op_type != "Shape" for use in readers)):
            return f"a kept layer reads {value.name}, a cache of a layer that is not kept"
        for use in readers:
            use.node.replace_input_with(use.idx, alike)
    return None


def _drop_unreachable(graph: ir.Graph) -> None:
    """Remove the nodes that no output needs, readers before what they read."""
    needed = _ancestors(graph.outputs)
    for node in reversed(list(graph)):
        if node not in needed:
            graph.remove(node, safe=True)


_ROWS_LAST = (0, 2, 1)
_BEHIND_THE_HEAD = ("Mul", "Div", "Tanh", "Cast")  # scales and soft-caps


class MergeEqualWeights(GraphPass):
    """No two weights have the same content."""

    name = "merge-equal-weights"

    def __call__(self, model: ir.Model) -> PassReport:
        before = len(model.graph.initializers)
        DeduplicateHashedInitializersPass()(model)
        changed = before - len(model.graph.initializers)
        return PassReport(self.name, changed, () if changed else ("no two weights are equal",))

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        """Look at small weights only: comparing all of a large model again takes seconds."""
        known: dict[object, str | None] = {}
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.size > _COMPARED or value.is_graph_output():
                continue
            content = (tensor.dtype, tuple(tensor.shape), tensor.tobytes())
            if content in known:
                return f"{known[content]} and {value.name} are equal"
            known[content] = value.name
        return None


class ShareHeadWeights(GraphPass):
    """Where it fires: the head of the draft path has the weights as its left operand, as they are stored."""

    name = "share-head-weights"

    def requires(self, model: ir.Model) -> str | None:
        return lacks_outputs(model, f"{DRAFT_PREFIX}logits")

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        output = next(v for v in model.graph.outputs if v.name == f"{DRAFT_PREFIX}logits")
        head = _head(output)
        turned = head is not None and _untransposed(head.inputs[1]) is not None
        return f"{DRAFT_PREFIX}logits still turns the weights of its head" if turned else None

    def __call__(self, model: ir.Model) -> PassReport:
        graph = model.graph
        output = next((v for v in graph.outputs if v.name == f"{DRAFT_PREFIX}logits"), None)
        if output is None:
            return PassReport(self.name, 0, ("the graph has no draft path",))
        product = _head(output)
        weights = _untransposed(product.inputs[1]) if product is not None else None
        if product is None or weights is None:
            return PassReport(
                self.name, 0, ("the head is not a product with a transposed [vocab, hidden] matrix",)
            )
        build = Builder(graph, "draft_head")
        columns = build.add("Transpose", [product.inputs[0]], perm=_ROWS_LAST)  # [B, hidden, R]
        scores = build.add("MatMul", [weights, columns])  # [B, vocab, R]
        logits = build.add("Transpose", [scores], perm=_ROWS_LAST)
        old = product.outputs[0]
        name, logits.shape, logits.type = old.name, old.shape, old.type
        old.name, logits.name = f"{name}_packed", name
        old.replace_all_uses_with(logits, replace_graph_outputs=True)
        graph.remove(product, safe=True)
        graph.sort()
        return PassReport(self.name, 1)


def _head(logits: ir.Value) -> ir.Node | None:
    node = logits.producer()
    while node is not None and node.op_type in _BEHIND_THE_HEAD:
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    return node if node is not None and node.op_type == "MatMul" else None


def _untransposed(value: ir.Value | None) -> ir.Value | None:
    """W [vocab, hidden] of a value that is its transpose."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != "Transpose" or tuple(node.attributes.get_ints("perm", ())) != (1, 0):
        return None
    return node.inputs[0]
