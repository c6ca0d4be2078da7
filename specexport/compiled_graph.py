"""From a checkpoint to a compiled graph in the cache: export, lower, save; and its parity with PyTorch.

Each result is kept under a key of everything that went into it, so that a build with unchanged inputs loads no
checkpoint and traces nothing.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from shutil import copytree

from specruntime.engines import EngineOptions, open_engine
from specruntime.manifest import GraphSpec, OnnxRuntimeEngine, Profile

import specexport
from specexport.checkpoint import Checkpoint, check_context
from specexport.errors import SourceError
from specexport.export import TracedGraph, check_supported, freeze_rope, trace_graph
from specexport.graph_files import GRAPH_NAME, WEIGHTS_NAME, describe_graph, save_graph
from specexport.parity import ParityReport, measure_parity
from specexport.passes import PassReport, run_passes
from specexport.passes.onnxruntime import onnxruntime_passes
from specexport.quiet import quiet
from specexport.recipe import Backend
from specexport.sources.cache import cache_directory, cached_entry, file_sha256, text_sha256

RECORD_NAME = "record.json"
TOKENIZER_DIRECTORY = "tokenizer"
_KEY_LIBRARIES = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript", "onnxruntime")
_MINIMUM_ONNXRUNTIME = "1.32.0"


@dataclass(frozen=True)
class CompiledGraph:
    """A lowered graph in the cache and what is known of the checkpoint it came from."""

    directory: Path
    name: str
    spec: GraphSpec  # file is relative to `directory`, profiles are those asked for
    tokenizer: Path | None
    eos_token_ids: tuple[int, ...]
    rope: str | None
    passes: tuple[PassReport, ...]
    key: str


def graph_key(digest: str, *, precision: str, capacity: int, backend: Backend) -> str:
    """Hex digest of all that decides a compiled graph's bytes."""
    parts = {
        "checkpoint": digest,
        "precision": precision,
        "capacity": capacity,
        "backend": backend.model_dump(exclude={"threads"}),
        "code": _code_digest(),
        **{library: version(library) for library in _KEY_LIBRARIES},
    }
    return text_sha256(json.dumps(parts, sort_keys=True))


@cache
def _code_digest() -> str:
    """Of the sources that shape a graph, so that a changed exporter does not reuse what an older one made."""
    root = Path(specexport.__file__).parent
    sources = sorted([*root.glob("export/*.py"), *root.glob("passes/*.py"), root / "graph_files.py", Path(__file__)])
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def compile_graph(
    key: str,
    load: Callable[[], Checkpoint],
    *,
    capacity: int,
    backend: Backend,
    profiles: tuple[Profile, ...],
    batch: int,
    force: bool = False,
) -> CompiledGraph:
    """The compiled graph of `key`; `load` is called only when the cache does not hold it (or `force`).

    Raises `CheckpointUnsupported` or `SourceError`.
    """
    place = cache_directory() / "graphs" / key
    if force or not _is_intact(place):
        _discard(place)

    def fill(directory: Path) -> None:
        _write_entry(load(), directory, capacity=capacity, backend=backend)

    return _read_entry(cached_entry(place, fill), key, profiles=profiles, batch=batch, backend=backend)


def _write_entry(checkpoint: Checkpoint, directory: Path, *, capacity: int, backend: Backend) -> None:
    check_context(checkpoint, capacity)
    with quiet():
        layout = check_supported(checkpoint.model)
        rope = freeze_rope(checkpoint.model, capacity)
        traced = trace_graph(checkpoint.model, layout, capacity=capacity, vocab_size=checkpoint.vocab_size)
        reports = run_passes(traced.model, onnxruntime_passes(backend.provider))
        save_graph(traced.model, directory)
    if checkpoint.tokenizer is not None:
        copytree(checkpoint.tokenizer, directory / TOKENIZER_DIRECTORY)
    spec = _describe(traced, backend)
    record = {
        "name": checkpoint.name,
        "spec": spec.model_dump(mode="json"),
        "eos_token_ids": list(checkpoint.eos_token_ids),
        "rope": rope,
        "passes": [asdict(report) for report in reports],
        "sha256": {name: file_sha256(directory / name) for name in (GRAPH_NAME, WEIGHTS_NAME)},
    }
    (directory / RECORD_NAME).write_text(json.dumps(record, indent=1))


def _describe(traced: TracedGraph, backend: Backend) -> GraphSpec:
    engine = OnnxRuntimeEngine(provider=backend.provider, minimum_version=_MINIMUM_ONNXRUNTIME)
    step = (Profile(name="step", width=1, rows=1),)
    return describe_graph(traced.model, traced, file=GRAPH_NAME, profiles=step, batch=1, engine=engine)


def _read_entry(
    place: Path, key: str, *, profiles: tuple[Profile, ...], batch: int, backend: Backend
) -> CompiledGraph:
    record = json.loads((place / RECORD_NAME).read_text())
    spec = GraphSpec.model_validate_json(json.dumps(record["spec"]))
    engine = spec.engine.model_copy(update={"threads": backend.threads})
    tokenizer = place / TOKENIZER_DIRECTORY
    return CompiledGraph(
        directory=place,
        name=record["name"],
        spec=spec.model_copy(update={"profiles": profiles, "batch": batch, "engine": engine}),
        tokenizer=tokenizer if tokenizer.is_dir() else None,
        eos_token_ids=tuple(record["eos_token_ids"]),
        rope=record["rope"],
        passes=tuple(PassReport(r["name"], r["changed"], tuple(r["reasons"])) for r in record["passes"]),
        key=key,
    )


def _is_intact(place: Path) -> bool:
    """Whether a cached entry still holds the bytes it was written with."""
    try:
        record = json.loads((place / RECORD_NAME).read_text())
        return all(file_sha256(place / name) == digest for name, digest in record["sha256"].items())
    except (OSError, ValueError, KeyError):
        return False


def _discard(place: Path) -> None:
    from shutil import rmtree

    if not place.exists():
        return
    try:
        rmtree(place)
    except OSError as error:
        raise SourceError(f"the cached graph {place} cannot be removed ({error}); remove it and build again") from None


def check_parity(graph: CompiledGraph, load: Callable[[], Checkpoint], *, tokens: int, force: bool = False) -> ParityReport:
    """Parity of a compiled graph at its profiles, measured once per key and kept beside the graphs."""
    profiles = [(profile.width, profile.rows) for profile in graph.spec.profiles]
    key = text_sha256(json.dumps([graph.key, profiles, tokens]))
    place = cache_directory() / "parity" / key
    if force:
        _discard(place)

    def fill(directory: Path) -> None:
        report = _run_parity(graph, load(), tokens)
        (directory / RECORD_NAME).write_text(json.dumps(asdict(report)))

    record = json.loads((cached_entry(place, fill) / RECORD_NAME).read_text())
    return ParityReport(
        record["logit_difference"], tuple(record["layer_difference"]), record["tokens"], tuple(record["widths"])
    )


def _run_parity(graph: CompiledGraph, checkpoint: Checkpoint, tokens: int) -> ParityReport:
    freeze_rope(checkpoint.model, graph.spec.capacity)
    engine = open_engine(graph.spec.model_copy(update={"batch": 1}), graph.directory, EngineOptions(provider="cpu"))
    try:
        context = engine.new_context()
        try:
            with quiet():
                return measure_parity(context, checkpoint.model, tokens)
        finally:
            context.close()
    finally:
        engine.close()
