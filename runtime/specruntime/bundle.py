"""Opening a bundle: a directory that holds everything one pair of models needs to decode.

Owns the order of refusals (a newer schema before its keys, keys before files, files before engines) and the lifetime
of what is opened. Never writes into the bundle and keeps no path of the working directory, so a bundle may be moved,
copied or mounted read-only; once open, it must stay where it is.
"""

import json
import mmap
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import WeakSet

from pydantic import ValidationError

from specruntime.batches import Batch, LaneGroup
from specruntime.constraints import Compiler
from specruntime.drafts import Draft, DraftSpec, NoneDraft, find_kind, new_draft
from specruntime.drafts.adaptive import adaptive_draft
from specruntime.engines import EngineOptions, open_engine
from specruntime.engines.kernels import is_forced
from specruntime.engines.protocol import Context, Engine
from specruntime.errors import BundleInvalid, BundleTooNew, InvalidArgument, WrongState, memory_named
from specruntime.manifest.checks import check_manifest
from specruntime.manifest.files import Ending, check_files, read_regular
from specruntime.manifest.messages import describe_problem, shorten
from specruntime.manifest.refusals import REBUILD
from specruntime.manifest.schema import MANIFEST_NAME, SCHEMA_VERSION, Manifest, prepacked_of, window_of
from specruntime.preload import Begun, Preload
from specruntime.session import Session
from specruntime.text.codec import TextCodec
from specruntime.trace import Trace

MAX_MANIFEST_BYTES = 16 * 2**20  # a manifest of hundreds of layers is below one
_HEADROOM_BYTES = 64 * 2**20


def load_manifest(path: str | Path, verify: bool = True) -> Manifest:
    """Return the manifest of the bundle directory `path`, checked against itself and against the files next to it.

    `verify=False` skips the sha256 of the files (their presence and size are still checked); hashing takes about
    0.4 s for a 540 MB bundle. Raises `BundleTooNew`, `BundleHashMismatch` or `BundleInvalid`, naming the file or key.
    """
    root = Path(path)
    manifest = _checked_manifest(root)
    check_files(root, manifest.files, hashes=verify)()
    return manifest


@memory_named("open the bundle")
def open_bundle(
    path: str | Path, *, options: EngineOptions | None = None, verify: bool = True, text: bool = False
) -> "LoadedBundle":
    """Load the bundle's engines; `options` override what the manifest says of threads and provider.

    `text=True`, for a host that will need the tokenizer, reads it meanwhile; `tokenizer` raises what that met. Raises
    what `load_manifest` raises, `BackendMissing` or `BackendIncompatible` when an engine cannot be loaded here,
    `OutOfMemory` when it does not fit.
    """
    _require_headroom()
    manifest = _checked_manifest(Path(path))
    root = Path(path).resolve()
    _require_operators(manifest, options)
    with Preload(manifest, text) as preload:
        rest = preload.check(
            check_files(root, manifest.files, hashes=verify, endings=_packed_endings(manifest))
        )
        tokenizer = preload.tokenizer(root)
        try:
            target, draft = _open_engines(manifest, root, options or EngineOptions())
        except Exception:
            rest()  # a hash mismatch is a better error than the library's
            raise
        bundle = LoadedBundle(manifest, root, target, draft, tokenizer)
        try:
            rest()
        except BaseException:
            bundle.close()
            raise
        return bundle


def _require_operators(manifest: Manifest, options: EngineOptions | None) -> None:
    """Raise `InvalidArgument` for a path of kernels by name where the bundle holds no graph that could run on it."""
    asked = None if options is None else options.kernels
    if asked is not None and is_forced(asked) and window_of(manifest.target) is None:
        raise InvalidArgument(
            f"kernels {asked!r}: this bundle holds no graph over the operators of specruntime-kernels; use auto or "
            "off, or build it again with backend.kernels"
        )


def _require_headroom() -> None:
    """Raise `MemoryError` where libraries would abort the process: they do when a thread's own data does not fit.

    What is mapped here is given back untouched.
    """
    try:
        mmap.mmap(-1, _HEADROOM_BYTES).close()
    except OSError as error:
        raise MemoryError(str(error)) from error


def _packed_endings(manifest: Manifest) -> dict[str, Ending]:
    """Packed weights, at the end of their file: bytes that the library compares with its own before it uses them."""
    records = (
        prepacked_of(graph) for graph in (manifest.target, manifest.draft.own_graph) if graph is not None
    )
    return {each.weights: Ending(each.bytes, each.plain_sha256) for each in records if each is not None}


def _open_engines(manifest: Manifest, root: Path, options: EngineOptions) -> tuple[Engine, Engine | None]:
    graph = manifest.draft.own_graph
    if (
        graph is not None
    ):  # two engines in turns: with two spinning pools SmolLM2 with EAGLE-3 is half as fast
        options = replace(options, spinning=False)
    target = open_engine(manifest.target, root, options)
    if graph is None:
        return target, None
    try:
        return target, open_engine(graph, root, options)
    except BaseException:
        target.close()
        raise


class LoadedBundle:
    """Engines of one bundle, shared by its sessions. Closing it closes them all. A context manager.

    `new_session` may be called from any thread; each session belongs to one thread at a time.
    """

    def __init__(
        self,
        manifest: Manifest,
        root: Path,
        target: Engine,
        draft: Engine | None,
        tokenizer: Begun[TextCodec] | None = None,
    ) -> None:
        """Take ownership of the engines; `draft` is None for kinds without a graph of their own, `tokenizer` where
        it was not read yet."""
        self.manifest = manifest
        self.root = root
        self._target = target
        self._draft = draft
        self._sessions: WeakSet[Session] = WeakSet()
        self._batches: WeakSet[Batch] = WeakSet()
        self._closed = False
        self._tokenizer = tokenizer
        self.constraints = Compiler(
            lambda: self.tokenizer, manifest.target.vocab_size, manifest.eos_token_ids
        )

    @property
    def kernels(self) -> str | None:
        """Instruction-set path of `specruntime-kernels` that the target runs on; None on the plain graph."""
        return getattr(self._target, "kernels", None)

    @property
    def rows_are_exact(self) -> bool:
        """Whether the target runs on operators whose rows have the same bits at every width of a window."""
        window = window_of(self.manifest.target)
        return self.kernels is not None and window is not None and window.exact

    @cached_property
    def tokenizer(self) -> TextCodec | None:
        """Text in and out; None for a bundle without a tokenizer. Raises as `TextCodec.open`."""
        if self._tokenizer is not None:
            return self._tokenizer.result()
        spec = self.manifest.tokenizer
        return None if spec is None else TextCodec.open(self.root, spec)

    @memory_named("open a session")
    def new_session(
        self,
        speculate: bool = True,
        *,
        dynamic: bool = True,
        adapt: Callable[[Draft], Draft] = lambda draft: draft,
        trace: Trace | None = None,
    ) -> Session:
        """Return a session with its own buffers; `speculate=False` decodes plainly on the same engine.

        `dynamic=False` drafts at the full length each round where the bundle has a dynamic one. `adapt` may wrap the
        draft the session would use; the session closes what it returns. `trace` gets a record of each round. Raises
        `WrongState` on a closed bundle, `OutOfMemory` when the buffers do not fit.
        """
        self._require_open()
        spec = self.manifest.draft if speculate else NoneDraft()
        target = self._target.new_context()
        draft_context = None
        try:
            if spec.own_graph is not None:
                draft_context = self._draft_engine().new_context()
            session = self._session(spec, target, draft_context, dynamic, adapt, trace=trace)
        except BaseException:
            target.close()
            if draft_context is not None:
                draft_context.close()
            raise
        self._sessions.add(session)
        return session

    @memory_named("open a batch")
    def new_batch(
        self,
        count: int,
        speculate: bool = True,
        *,
        dynamic: bool = True,
        adapt: Callable[[Draft], Draft] = lambda draft: draft,
        trace: Callable[[int], Trace] | None = None,
    ) -> Batch:
        """`count` sessions whose windows are launched together; the options as of `new_session`, for each of them.

        `trace` is called with the number of each session and returns what gets a record of each of its rounds.
        Raises `InvalidArgument` for more sessions than the bundle was built for, `WrongState` on a closed bundle,
        `OutOfMemory` when the buffers do not fit.
        """
        self._require_open()
        sizes = self.manifest.target.batch_sizes
        rows = next((size for size in sizes if size >= count), None)
        if count < 1 or rows is None:
            raise InvalidArgument(
                f"found a batch of {count}, this bundle has batch sizes {', '.join(map(str, sizes))}: list a larger "
                "one under `batch` in the recipe and build again"
            )
        spec = self.manifest.draft if speculate else NoneDraft()
        traces = (None if trace is None else trace(number) for number in range(count))
        groups: list[LaneGroup] = []
        try:
            groups.append(LaneGroup(self._target.new_batch(rows), count))
            if spec.own_graph is not None:
                groups.append(LaneGroup(self._draft_engine().new_batch(rows), count))
            batch = Batch(
                groups[0],
                groups[1] if len(groups) > 1 else None,
                lambda target, draft, clock: self._session(
                    spec, target, draft, dynamic, adapt, clock, next(traces)
                ),
            )
        except BaseException:
            for group in groups:
                group.context.close()
            raise
        self._batches.add(batch)
        return batch

    def close(self) -> None:
        """Close all sessions, then free the weights. Idempotent."""
        self._closed = True
        self.constraints.close()
        for batch in list(self._batches):
            batch.close()
        for session in list(self._sessions):
            session.close()
        self._target.close()
        if self._draft is not None:
            self._draft.close()

    def __enter__(self) -> "LoadedBundle":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise WrongState("the bundle is closed; open it again")

    def _draft_engine(self) -> Engine:
        assert self._draft is not None, "open_bundle opens the graph of every draft that has one"
        return self._draft

    def _session(
        self,
        spec: DraftSpec,
        target: Context,
        draft_context: Context | None,
        dynamic: bool,
        adapt: Callable[[Draft], Draft],
        clock: Callable[[], float] | None = None,
        trace: Trace | None = None,
    ) -> Session:
        draft = new_draft(spec, draft_context, self.manifest.target.vocab_size, target=target)
        if spec.nodes and dynamic and self.manifest.adaptive is not None:
            draft = adaptive_draft(draft, self.manifest)
        return Session(
            target,
            adapt(draft),
            manifest=self.manifest,
            clock=clock,
            trace=trace,
            constrain=self.constraints.constrain,
        )


def _checked_manifest(root: Path) -> Manifest:
    manifest = _parse_manifest(_read_manifest(root))
    check_manifest(manifest)
    return manifest


def _read_manifest(root: Path) -> bytes:
    if not root.exists():
        raise BundleInvalid(f"no bundle at {root}; build one with: specexport build RECIPE -o {root}")
    if not root.is_dir():
        raise BundleInvalid(f"{root} is a file; a bundle is the directory that holds {MANIFEST_NAME}")
    try:
        return read_regular(root, MANIFEST_NAME, MAX_MANIFEST_BYTES)
    except FileNotFoundError as error:
        raise BundleInvalid(f"{root} has no {MANIFEST_NAME}, so it is not a bundle; {REBUILD}") from error


def _parse_manifest(raw: bytes) -> Manifest:
    try:
        document = json.loads(raw, object_pairs_hook=_refuse_repeated_keys)
    except (ValueError, RecursionError) as error:  # bad UTF-8 is a ValueError too
        raise BundleInvalid(f"{MANIFEST_NAME} is not JSON: {error}; {REBUILD}") from error
    _check_schema_version(document)
    draft = document.get("draft")
    if isinstance(draft, dict) and isinstance(draft.get("kind"), str):
        find_kind(draft["kind"])
    try:
        return Manifest.model_validate_json(raw, strict=True)
    except ValidationError as error:
        problem = describe_problem(error, Manifest)
        raise BundleInvalid(f"{MANIFEST_NAME}: {problem}; {REBUILD}") from error


def _check_schema_version(document: Any) -> None:
    if not isinstance(document, dict):
        raise BundleInvalid(
            f"{MANIFEST_NAME} holds a JSON {type(document).__name__}, expected an object; {REBUILD}"
        )
    version = document.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise BundleInvalid(
            f"{MANIFEST_NAME}: schema_version is {shorten(version)}, expected a whole number from 1 to "
            f"{SCHEMA_VERSION}; {REBUILD}"
        )
    if version > SCHEMA_VERSION:
        raise BundleTooNew(
            f"the bundle has schema version {shorten(version)}, this specruntime reads up to {SCHEMA_VERSION}; "
            "upgrade specruntime, or build the bundle with the version installed here"
        )


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in pairs:
        if key in document:
            raise ValueError(f"the key {shorten(key)} is written twice")
        document[key] = value
    return document
