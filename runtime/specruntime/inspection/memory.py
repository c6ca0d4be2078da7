"""Computes how much memory a bundle needs from its manifest alone: no engine is opened.

Owns the arithmetic of rows, context and budgets. A row is one sequence that is decoded: a session, or a line of a
batch. Megabytes are 10^6 bytes.
"""

import re
from dataclasses import dataclass
from typing import cast

from specruntime.engines.layout import bytes_of, cached_inputs
from specruntime.errors import InvalidArgument
from specruntime.inspection.summary import cache_bytes, graphs_of, opened_here, shown_size, weight_bytes
from specruntime.manifest.schema import GraphSpec, Manifest

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_MB = 1e6


@dataclass(frozen=True, slots=True)
class GraphMemory:
    """One graph's bytes: what all sessions share, what each token of a row costs, and what each row costs on top."""

    weights: int
    token: float  # KV cache per token and row; 0 for a graph without a cache
    buffers: int  # inputs and outputs of every profile, per row
    capacity: int

    @property
    def row(self) -> float:
        """Bytes of one row at the graph's capacity."""
        return self.token * self.capacity + self.buffers

    @classmethod
    def of(cls, manifest: Manifest, graph: GraphSpec) -> "GraphMemory":
        """Count the graph that this host would open."""
        graph = opened_here(graph)
        aliases = {name for pair in graph.aliases for name in (pair.input, pair.output)}
        staged = [tensor for tensor in (*graph.inputs, *graph.outputs) if tensor.name not in aliases]
        buffers = 0
        for profile in graph.profiles:
            wanted = {t.name for t in graph.inputs} | set(profile.outputs or (t.name for t in graph.outputs))
            buffers += sum(bytes_of(tensor, graph, profile) for tensor in staged if tensor.name in wanted)
        cached = cache_bytes(graph) if cached_inputs(graph) else 0
        return cls(
            weights=weight_bytes(manifest, graph),
            token=cached / graph.batch / graph.capacity,
            buffers=-(-buffers // graph.batch),
            capacity=graph.capacity,
        )


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """What fits into a budget in addition to the weights."""

    left: float  # bytes after the weights; below 0 when they do not fit
    rows: int  # at the bundle's capacity
    context: int  # tokens of a single row, whatever the bundle's capacity


@dataclass(frozen=True, slots=True)
class Memory:
    """A bundle's memory with and without its draft."""

    target: GraphMemory
    draft: GraphMemory | None

    @property
    def draft_row_share(self) -> float:
        """The draft's part of what a row costs, 0 to 1."""
        return 0.0 if self.draft is None else self.draft.row / (self.draft.row + self.target.row)

    def room(self, budget: float, *, with_draft: bool) -> MemoryBudget:
        """Return what `budget` bytes hold."""
        graphs = [self.target, *([self.draft] if with_draft and self.draft is not None else [])]
        left = budget - sum(graph.weights for graph in graphs)
        row = sum(graph.row for graph in graphs)
        token, buffers = sum(graph.token for graph in graphs), sum(graph.buffers for graph in graphs)
        return MemoryBudget(left, max(0, int(left // row)), max(0, int((left - buffers) // token)))


def memory_of(manifest: Manifest) -> Memory:
    graphs = {role: GraphMemory.of(manifest, graph) for role, graph in graphs_of(manifest).items()}
    return Memory(graphs["target"], graphs.get("draft"))


def parse_size(text: str, name: str) -> int:
    """Bytes of a size as people write it: `8GB`, `512 MB`, `1.5GiB`, or a number of bytes.

    Raises `InvalidArgument` with what the size is called and the forms.
    """
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS or float(match[1]) == 0:
        raise InvalidArgument(f"{name} is {text!r}, expected a size such as 8GB, 512MB or 1.5GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def summarise_memory(manifest: Manifest, budget: int | None) -> dict[str, object]:
    """JSON-ready; sizes in megabytes but for the bytes of a token."""
    memory = memory_of(manifest)
    summary: dict[str, object] = {
        "name": manifest.name,
        "capacity": memory.target.capacity,
        "draft_kind": manifest.draft.kind,
        "draft_row_share": memory.draft_row_share,
    }
    for role, graph in (("target", memory.target), ("draft", memory.draft)):
        summary[role] = None if graph is None else {
            "weights_mb": graph.weights / _MB,
            "kv_bytes_per_token": graph.token,
            "row_mb": graph.row / _MB,
            "buffers_mb": graph.buffers / _MB,
            "capacity": graph.capacity,
        }  # fmt: skip
    if budget is not None:
        summary["budget_mb"] = budget / _MB
        for name, with_draft in (("with_draft", True), ("without_draft", False)):
            room = memory.room(budget, with_draft=with_draft)
            summary[name] = {"left_mb": room.left / _MB, "rows": room.rows, "context": room.context}
    return summary


def render_memory(summary: dict[str, object]) -> str:
    """Return the summary as lines for people."""
    lines = [
        f"{summary['name']}   memory by the manifest, MB = 10^6 bytes; the libraries themselves come on top"
    ]
    for role in ("target", "draft"):
        graph = summary[role]
        if isinstance(graph, dict):
            lines.append(
                f"{role:8} weights {shown_size(graph['weights_mb'])}, shared by all rows; "
                f"each row {shown_size(graph['row_mb'])}"
            )
            lines.append(
                f"         {graph['kv_bytes_per_token']:.0f} bytes of KV cache a token, capacity {graph['capacity']}; "
                f"{shown_size(graph['buffers_mb'])} of buffers a row"
            )
    share = summary["draft_row_share"]
    none = "no graph of its own" if summary["draft"] is None else f"{share:.1%} of a row"
    lines.append(f"share    the {summary['draft_kind']} draft has {none}")
    if "budget_mb" in summary:
        lines.append(f"budget   {shown_size(cast(float, summary['budget_mb']))}")
        for key, words in (("with_draft", "with the draft"), ("without_draft", "without it")):
            lines.append(f"         {words:14} {_described(summary[key], summary['capacity'])}")
    return "\n".join(lines)


def _described(room: object, capacity: object) -> str:
    assert isinstance(room, dict)
    if room["left_mb"] < 0:
        return f"the weights are {shown_size(-room['left_mb'])} too large"
    return (
        f"{shown_size(room['left_mb'])} left after the weights: {room['rows']} rows of {capacity} tokens, or one row "
        f"of {room['context']} tokens"
    )
