"""Weights packed at build: ONNX Runtime saves its optimised graph, its packed weights go behind the plain ones.

Owns the file that names both and the proof that it computes what the graph's own file does. The plain weights stay
where they are: the graph's own file is what a host with another processor or library loads.
"""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from specexport.bundle.record import stage_window
from specexport.cache.entries import file_sha256
from specexport.errors import BuildError
from specexport.graph.files import WEIGHTS_NAME
from specexport.parity.host import opened_context
from specruntime.engines.prepacked import architecture, processor_features
from specruntime.engines.protocol import Context
from specruntime.manifest.schema import GraphSpec, OnnxRuntimeEngine, PrepackedWeights

PACKED_NAME = "packed.onnx"
_SAVED = "saved.onnx", "saved.weights"
_ALIGNMENT = 4096  # a page, so that a mapping begins where its weight does; kernels load 64 bytes at a time
_PACKED_KEY = "prepacked"  # what the keys of packed weights begin with in a tensor's `external_data`


def pack_weights(spec: GraphSpec, root: Path) -> PrepackedWeights | None:
    """Save the packed weights of a graph whose files lie in `root`; None where the library packs none of them.

    Raises `BuildError` where they cannot be saved, or compute other numbers.
    """
    import onnxruntime

    assert isinstance(spec.engine, OnnxRuntimeEngine), (
        "the recipe allows packed weights for ONNX Runtime alone"
    )
    spec = spec.model_copy(update={"engine": spec.engine.model_copy(update={"window": None})})
    path = root / spec.file
    weights = root / spec.weights_directory / WEIGHTS_NAME
    before, plain_sha256 = weights.stat().st_size, file_sha256(weights)
    with TemporaryDirectory(dir=root) as name:
        saved = Path(name)
        _save_optimised(onnxruntime, path, saved)
        graph, packs = _point_to(weights, path, saved)
    if not packs:
        return None
    onnx.save(graph, path.with_name(PACKED_NAME))
    features = processor_features()
    assert features is not None, "the backend checked the machine first"
    packed = PrepackedWeights(
        file=Path(spec.file).with_name(PACKED_NAME).as_posix(),
        version=onnxruntime.__version__,
        architecture=architecture(),
        features=features,
        weights=(spec.weights_directory / WEIGHTS_NAME).as_posix(),
        bytes=weights.stat().st_size - before,
        plain_sha256=plain_sha256,
    )
    engine = spec.engine.model_copy(update={"prepacked": packed})
    _require_equal(spec, spec.model_copy(update={"engine": engine}), root)
    return packed


def _save_optimised(ort: Any, path: Path, directory: Path) -> None:
    """Write the graph as the library would run it here, and every weight plain and packed, in files of its own
    layout.
    """
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    settings.optimized_model_filepath = str(directory / _SAVED[0])
    for key, value in (
        ("session.optimized_model_external_initializers_file_name", _SAVED[1]),
        ("session.save_external_prepacked_constant_initializers", "1"),
    ):
        settings.add_session_config_entry(key, value)
    try:
        ort.InferenceSession(path, settings, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:
        raise BuildError(
            f"onnxruntime {ort.__version__} cannot save the packed weights of {path.parent.name}: "
            f"{str(error).splitlines()[0]}; leave backend.prepacked out"
        ) from error


def _point_to(weights: Path, path: Path, saved: Path) -> tuple[Any, int]:
    """Return the saved graph over `weights`, which grows by what it lacks, and how many packed weights that are."""
    own = {
        tensor.name: _entries(tensor)
        for tensor in onnx.load(path, load_external_data=False).graph.initializer
    }
    graph = onnx.load(saved / _SAVED[0], load_external_data=False)
    location = weights.relative_to(path.parent).as_posix()
    packs = 0
    with weights.open("r+b") as file, (saved / _SAVED[1]).open("rb") as source:
        for tensor in graph.graph.initializer:
            found = _entries(tensor)
            if not found:
                continue  # small ones are inside the graph
            plain = _read(source, int(found["offset"]), int(found["length"]))
            known = own.get(tensor.name, {})
            if known.get("location", location) != location:
                # Another graph's weight: it stays there, unless its packed form must lie in the same file.
                if not any(key.startswith(_PACKED_KEY) for key in found) and _holds(path, known, plain):
                    _set_entries(tensor, known)
                    continue
                known = {}
            if not known or _read(file, int(known.get("offset", 0)), int(known["length"])) != plain:
                known = {"offset": str(_append(file, plain)), "length": found["length"]}
            moved = {"location": location, **{key: known.get(key, "0") for key in ("offset", "length")}}
            for key, value in found.items():
                if key.startswith(_PACKED_KEY):
                    moved[key] = _move_packed(value, source, file)
                    packs += 1
            _set_entries(tensor, moved)
    return graph, packs


def _holds(path: Path, entries: Mapping[str, str], plain: bytes) -> bool:
    """Whether a weight of the graph file `path` lies where its `entries` say."""
    with (path.parent / entries["location"]).open("rb") as file:
        return _read(file, int(entries.get("offset", 0)), int(entries["length"])) == plain


def _set_entries(tensor: Any, entries: Mapping[str, str]) -> None:
    del tensor.external_data[:]
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def _entries(tensor: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _move_packed(entry: str, source: IO[bytes], file: IO[bytes]) -> str:
    """Return a tensor's entry of packed blobs, `key|offset;length;checksum|...`, once they are copied to the end of
    `file`.
    """
    key, *blobs = entry.split("|")
    moved = [key]
    for blob in blobs:
        offset, length, checksum = blob.split(";")
        moved.append(f"{_append(file, _read(source, int(offset), int(length)))};{length};{checksum}")
    return "|".join(moved)


def _read(file: IO[bytes], offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(length)


def _append(file: IO[bytes], content: bytes) -> int:
    """Where in `file` it begins."""
    end = file.seek(0, 2)
    file.write(bytes(-end % _ALIGNMENT))
    at = file.tell()
    file.write(content)
    return at


def _require_equal(plain: GraphSpec, packed: GraphSpec, root: Path) -> None:
    """Check the packed graph. It is another file than the one that was held to PyTorch: it must compute the
    same bits.
    """
    expected, found = (_compute(spec, root) for spec in (plain, packed))
    for name, array in expected.items():
        if found[name].tobytes() != array.tobytes():
            raise BuildError(
                f"the packed weights of {plain.file} compute other numbers than the plain ones ({name}); leave "
                "backend.prepacked out and report the model and the version of onnxruntime"
            )


def _compute(spec: GraphSpec, root: Path) -> dict[str, NDArray[Any]]:
    """Return what every profile answers to random ids, and the cache they leave."""
    with opened_context(spec, root) as context:
        return _answers(context, np.random.default_rng(0))


def _answers(context: Context, random: np.random.Generator) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for profile in context.spec.profiles:
        window = context.window(profile.name)
        ids = random.integers(0, context.spec.vocab_size, profile.width)
        hidden = None
        if window.hidden is not None:
            hidden = random.standard_normal(window.hidden.shape[1:]).astype(np.float32)
        stage_window(context, window, ids, hidden=hidden, rows=np.arange(profile.width)[-profile.rows :])
        context.run(window)
        found[f"top_ids of {profile.name}"] = window.top_ids.copy()
        for name in ("features", "next_hidden", "topk_logprobs"):
            if (array := getattr(window, name)) is not None:
                found[f"{name} of {profile.name}"] = array.copy()
        if {"logits", "draft_logits"} & {t.name for t in context.spec.outputs if profile.computes(t.name)}:
            found[f"logits of {profile.name}"] = context.logits(window).copy()
    return found | {f"rows of {name}": rows.copy() for name, rows in context.cache().items()}
