"""The manifest's description of ONNX Runtime: how it runs a graph, and what was saved next to the graph's own file.

Its checks raise `BundleInvalid` naming the graph, the key and both values. Reads no files.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from specruntime.manifest.engine import EngineSection
from specruntime.manifest.numbers import MAX_PROFILES, Closed, RelativePath, Sha256, Threads, Version
from specruntime.manifest.refusals import refuse

if TYPE_CHECKING:
    from specruntime.engines import EngineOptions
    from specruntime.engines.protocol import Engine
    from specruntime.manifest.graph import GraphSpec
    from specruntime.manifest.schema import FileRecord


class PrepackedWeights(Closed):
    """Weights in the layout of ONNX Runtime's CPU kernels, saved at build behind the plain ones, in the same file.

    `file` is the optimised graph that names both, next to the graph's own. It is for hosts with this `version` of the
    library, this `architecture` and exactly these processor `features`; others load the graph's own file and pack.
    """

    file: RelativePath
    version: Version
    architecture: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{1,20}$")]
    features: Annotated[tuple[Annotated[str, Field(pattern=r"^[a-z0-9_]{1,20}$")], ...], Field(max_length=64)]
    weights: RelativePath
    bytes: Annotated[int, Field(ge=1, le=2**63 - 1)]
    """By which the file `weights` is longer than the plain weights."""
    plain_sha256: Sha256
    """The sha256 of the plain weights."""


class WindowGraph(Closed):
    """The same graph over the operators of `specruntime-kernels`, next to the graph's own file.

    `weights` are its packed weights, then the target's where it shares some. `paths` names, by the `file` of a profile,
    the file of the same path over the operators. It takes inputs of the graph by name, not all of them; with `cache`
    int8 a cache row is int8 and 4 bytes longer: its levels, then their float32 scale. `exact`: every product and
    attention runs on the operators, so that a row's numbers do not depend on the window around it.
    """

    file: RelativePath
    weights: Annotated[tuple[RelativePath, ...], Field(min_length=1, max_length=2)]
    operators: Annotated[int, Field(ge=1, le=2**31 - 1)]
    layout: Annotated[int, Field(ge=1, le=2**31 - 1)]
    cache: Literal["fp32", "int8"] = "fp32"
    exact: bool = False
    paths: Annotated[dict[RelativePath, RelativePath], Field(max_length=MAX_PROFILES)] = Field(
        default_factory=dict
    )

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that it names."""
        return (self.file, *self.weights, *self.paths.values())


class OnnxRuntimeEngine(EngineSection):
    runs_parts: ClassVar[bool] = True
    reads_weights: ClassVar[bool] = True

    kind: Literal["onnxruntime"] = "onnxruntime"
    provider: Literal["cpu", "cuda", "tensorrt"] = "cpu"
    minimum_version: Version
    threads: Threads | None = None
    prepacked: PrepackedWeights | None = None
    window: WindowGraph | None = None

    @model_serializer(mode="wrap")
    def _leave_out_window(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write no key for a window graph that is not there: older runtimes refuse keys they do not know."""
        written: dict[str, Any] = serialise(self)
        return written if self.window is not None else {k: v for k, v in written.items() if k != "window"}

    def open(self, graph: "GraphSpec", root: Path, options: "EngineOptions") -> "Engine":
        from specruntime.engines.onnxruntime import OrtEngine

        return OrtEngine(graph, root, options)

    def load_library(self) -> None:
        from specruntime.engines.onnxruntime import import_onnxruntime

        import_onnxruntime()

    def check(self, label: str, graph: "GraphSpec") -> None:
        for key, part in (("prepacked", self.prepacked), ("window", self.window)):
            if part is not None and self.provider != "cpu":
                refuse(f"{label}.engine.{key}: found with provider {self.provider}, expected provider cpu")
        if self.prepacked is not None:
            _check_prepacked(label, graph, self.prepacked)
        if self.window is not None:
            _check_window(label, graph, self.window)

    def check_files(self, label: str, records: "Mapping[str, FileRecord]") -> None:
        packed = self.prepacked
        if packed is not None and packed.bytes >= (found := records[packed.weights].bytes):
            refuse(
                f"{label}.engine.prepacked.bytes: found {packed.bytes}, expected fewer than {packed.weights!r} has, "
                f"which are {found}"
            )

    def files(self, graph: "GraphSpec") -> Iterable[str]:
        if self.prepacked is not None:
            yield from (self.prepacked.file, self.prepacked.weights)
        if self.window is not None:
            yield from self.window.files


def _check_prepacked(label: str, graph: "GraphSpec", packed: PrepackedWeights) -> None:
    places = (
        ("file", packed.file, PurePosixPath(graph.file).parent),
        ("weights", packed.weights, graph.weights_directory),
    )
    for key, name, directory in places:
        if PurePosixPath(name).parent != directory or name == graph.file:
            refuse(
                f"{label}.engine.prepacked.{key}: found {name!r}, expected another file next to {graph.file!r}, whose "
                "weights it shares"
            )


def _check_window(label: str, graph: "GraphSpec", window: WindowGraph) -> None:
    """Check the graph over the operators against the graph that it stands for."""
    key = f"{label}.engine.window"
    _check_places(key, graph, window)
    _check_paths(key, graph, window)
    if window.cache == "int8":
        cached = {pair.input for pair in graph.aliases}
        odd = [tensor for tensor in graph.inputs if tensor.name in cached and tensor.dtype != "float32"]
        if odd:
            refuse(f"{key}.cache is int8, but {odd[0].name} is {odd[0].dtype}; expected float32")


def _check_places(key: str, graph: "GraphSpec", window: WindowGraph) -> None:
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


def _check_paths(key: str, graph: "GraphSpec", window: WindowGraph) -> None:
    files = {profile.file for profile in graph.profiles if profile.file is not None}
    if odd := sorted(files ^ window.paths.keys()):
        refuse(
            f"{key}.paths: {odd[0]!r} is in only one of paths and the files of {key.split('.')[0]}.profiles"
        )
