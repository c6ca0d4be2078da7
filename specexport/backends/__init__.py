"""The build side of each backend: one class per backend, named by the recipe's `backend:` section.

Light to import: a backend imports its compiler and its passes when a build reaches them.
"""

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, ClassVar, Protocol

from specexport.context import BuildContext
from specexport.recipe.schema import Backend, Recipe

if TYPE_CHECKING:
    from specexport.graph.plan import GraphPlan, WindowPlan
    from specexport.graph.stages import BuiltGraph
    from specexport.passes import GraphPass
    from specruntime.manifest.schema import OnnxRuntimeEngine


class BackendBuild(Protocol):
    """What a build asks of the backend that its recipe names."""

    passes_module: ClassVar[str]
    """The module of its passes: the cached graphs depend on what it imports."""
    runs_parts: ClassVar[bool]
    """An engine call computes only the outputs that its profile lists."""

    def check_machine(self, recipe: Recipe) -> None:
        """Refuse a machine that cannot build what the recipe asks, before any work.

        Raises `BackendMissing` or `BackendIncompatible`.
        """

    def libraries(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the distributions that a bundle depends on in addition to those of every build."""

    def processor(self) -> tuple[str, ...]:
        """Return what a bundle depends on of the build host's processor."""

    def passes(self, plan: "GraphPlan", batch: int) -> "tuple[GraphPass, ...]":
        """Return what turns the graph of `plan` into this backend's variant."""

    def decides_passes(self, batch: int) -> list[str | int]:
        """Return what `passes` depends on in addition to the plan, for the cache's key."""

    def window(self, recipe: Recipe) -> "WindowPlan | None":
        """Return which operators of `specruntime_kernels` a graph has a variant over; None: it has none."""

    def host_engine(self, minimum_version: str) -> "OnnxRuntimeEngine":
        """How ONNX Runtime runs the variant: in the bundle, or on the build host to compare it with PyTorch."""

    def finish(self, graph: "BuiltGraph", name: str, recipe: Recipe, context: BuildContext) -> "BuiltGraph":
        """Return what the bundle holds of the graph `name`, which has passed its parity check."""

    def place(
        self, graphs: "Mapping[str, BuiltGraph]", root: Path, context: BuildContext
    ) -> "Mapping[str, BuiltGraph]":
        """Return the graphs after what is left to do with their files, which are in the bundle `root`."""


def backend_of(section: Backend) -> BackendBuild:
    """Return the build side of the backend that a recipe's section names."""
    build_side: BackendBuild = resolve_name(section.build_side)(section)
    return build_side
