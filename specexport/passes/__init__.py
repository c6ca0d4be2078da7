"""Ordered graph passes: the canonical graph in, one backend's variant out.

A pass changes a graph in place and reports how often it fired, and why not where it did not. Knows nothing of files.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir


@dataclass(frozen=True)
class PassReport:
    """What one pass did: `changed` rewrites, and a reason for each place it had to leave alone."""

    name: str
    changed: int
    reasons: tuple[str, ...] = ()


class GraphPass(Protocol):
    """One rewrite. `requires` and `ensures` say in words what must hold before and what holds after."""

    name: str
    requires: str
    ensures: str

    def __call__(self, model: ir.Model) -> PassReport: ...


def run_passes(model: ir.Model, passes: Iterable[GraphPass]) -> tuple[PassReport, ...]:
    """Runs `passes` on `model` in order, in place."""
    return tuple(graph_pass(model) for graph_pass in passes)
