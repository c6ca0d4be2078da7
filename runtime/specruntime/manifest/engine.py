"""What the runtime must know of a backend: one class, which is the backend's section of the manifest as well."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from specruntime.manifest.numbers import Closed

if TYPE_CHECKING:
    from specruntime.engines import EngineOptions
    from specruntime.engines.protocol import Engine
    from specruntime.manifest.graph import GraphSpec
    from specruntime.manifest.schema import FileRecord


class EngineSection(Closed):
    """What runs a graph. Its fields are the keys of its section, `kind` among them as a `Literal` of its names.

    The methods say what depends on the backend; those that are not overridden are right for one whose engine is one
    file that holds its weights and computes every output.
    """

    runs_parts: ClassVar[bool] = False
    """An engine call computes only the outputs that its profile lists."""
    reads_weights: ClassVar[bool] = False
    """Weights may lie in files that the graph's entry names."""

    if TYPE_CHECKING:  # each backend has it as a field
        kind: str

    def open(self, graph: "GraphSpec", root: Path, options: "EngineOptions") -> "Engine":
        """Load the weights and code of `graph`, whose files lie under `root`.

        Raises `BackendMissing` when the backend's library is not installed, `BackendIncompatible` when it cannot load
        this graph here.
        """
        raise NotImplementedError

    def load_library(self) -> None:
        """Import what `open` needs and takes long: it is begun ahead, on a thread of its own."""

    def check(self, label: str, graph: "GraphSpec") -> None:
        """Raise `BundleInvalid` for what contradicts itself or `graph`, whose tensors and profiles have been checked;
        `label` is the key that the graph is found under.
        """

    def check_files(self, label: str, records: "Mapping[str, FileRecord]") -> None:
        """Raise `BundleInvalid` for what contradicts the entries of its `files`, which are all there."""

    def files(self, graph: "GraphSpec") -> Iterable[str]:
        """Return the files that it needs in addition to those of the graph and its profiles, as the bundle has them."""
        return ()
