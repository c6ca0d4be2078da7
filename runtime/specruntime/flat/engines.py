"""Entries of engines: an open bundle and what its callers must know of it."""

import numpy as np
from numpy.typing import NDArray

from specruntime.abi import ABI_VERSION
from specruntime.abi.structs import OPTIONS, PARAMS
from specruntime.bundle import open_bundle
from specruntime.engines import EngineOptions
from specruntime.errors import InvalidArgument, InvalidHandle, Status
from specruntime.flat.arguments import deliver, deliver_text
from specruntime.flat.entry import THREAD_ERRORS, entry
from specruntime.flat.records import HANDLES, OpenEngine


@entry
def spx_engine_open(
    path: str,
    path_length: int,
    options: NDArray[np.void] | None,
    options_size: int,
    engine: NDArray[np.int64],
) -> None:
    if not path or "\0" in path:
        raise InvalidArgument(f"path is {path!r}, expected the path of a bundle directory without NUL")
    chosen, verify = _engine_options(options)
    engine[0] = HANDLES.add(OpenEngine(open_bundle(path, options=chosen, verify=verify)))


@entry
def spx_engine_info(engine: OpenEngine, info: NDArray[np.void], info_size: int) -> None:
    manifest = engine.bundle.manifest
    target, tokenizer = manifest.target, manifest.tokenizer
    info["capacity"] = target.capacity
    info["vocab_size"] = target.vocab_size
    info["padded_vocab_size"] = target.padded_vocab_size
    info["k"] = engine.k
    info["round_tokens"] = engine.k + 1
    info["layers"] = target.layers
    info["batch"] = target.batch
    info["eos_count"] = len(manifest.eos_token_ids)
    info["draft_kind"] = manifest.draft.c_number
    info["has_tokenizer"] = tokenizer is not None
    info["has_chat_template"] = tokenizer is not None and tokenizer.chat_template is not None
    info["open_sessions"] = engine.sessions


@entry
def spx_engine_name(
    engine: OpenEngine, text: NDArray[np.uint8], capacity: int, needed: NDArray[np.int64]
) -> None:
    deliver_text(engine.bundle.manifest.name, text, needed)


@entry
def spx_engine_eos(
    engine: OpenEngine, ids: NDArray[np.int64], capacity: int, count: NDArray[np.int64]
) -> None:
    deliver(list(engine.bundle.manifest.eos_token_ids), ids, count, "ids")


@entry
def spx_engine_close(engine: OpenEngine) -> None:
    engine.close()
    HANDLES.drop(engine)


def _engine_options(options: NDArray[np.void] | None) -> tuple[EngineOptions, bool]:
    """Options and whether to verify hashes."""
    if options is None:
        return EngineOptions(), True
    threads, verify, provider = options[0].item()
    if threads < 0:
        raise InvalidArgument(
            f"threads is {threads}, expected 0 (what the bundle says) or a positive integer"
        )
    if verify not in (0, 1):
        raise InvalidArgument(f"verify is {verify}, expected 0 or 1")
    try:
        name = provider.decode("ascii")
    except UnicodeDecodeError:
        raise InvalidArgument("provider is not ASCII, expected the name of an execution provider") from None
    return EngineOptions(threads=threads or None, provider=name or None), verify == 1


def spx_abi_version() -> int:
    """Return the version of this interface."""
    return ABI_VERSION


@entry
def spx_status_name(status: int, text: NDArray[np.uint8], capacity: int, needed: NDArray[np.int64]) -> None:
    try:
        name = Status(status).name
    except ValueError:
        raise InvalidArgument(f"status is {status}, expected 0 to {max(Status)}") from None
    deliver_text(name, text, needed)


@entry
def spx_last_error(handle: int, text: NDArray[np.uint8], capacity: int, needed: NDArray[np.int64]) -> None:
    record = HANDLES.find(handle)
    if handle and record is None:
        raise InvalidHandle(f"{handle} is not an open handle: pass 0")
    deliver_text(THREAD_ERRORS.text if record is None else record.error, text, needed)


@entry
def spx_options_init(options: NDArray[np.void], options_size: int) -> None:
    options[:] = OPTIONS.defaults()


@entry
def spx_params_init(params: NDArray[np.void], params_size: int) -> None:
    params[:] = PARAMS.defaults()
