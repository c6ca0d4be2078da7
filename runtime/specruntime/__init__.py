"""Runs speculative-decoding bundles with numpy, pydantic and the engine's own library.

The names below are the public ones; the modules behind them may move. Importing them loads no engine library, no
tokenizer library, and nothing of the build host (torch, transformers, onnx): those are imported when a bundle that
needs them is opened.
"""

from specruntime.errors import (
    BackendIncompatible,
    BackendMissing,
    BufferTooSmall,
    BundleHashMismatch,
    BundleInvalid,
    BundleTooNew,
    CapacityExceeded,
    EmptyPrompt,
    EngineFailed,
    InvalidArgument,
    InvalidHandle,
    OutOfMemory,
    SessionBusy,
    SessionPoisoned,
    SpecError,
    Status,
    WidthExceeded,
    WrongState,
)
from specruntime.manifest import SCHEMA_VERSION, Manifest
from specruntime.text import TextCodec, TextStream

__all__ = [
    "SCHEMA_VERSION",
    "BackendIncompatible",
    "BackendMissing",
    "BufferTooSmall",
    "BundleHashMismatch",
    "BundleInvalid",
    "BundleTooNew",
    "CapacityExceeded",
    "EmptyPrompt",
    "EngineFailed",
    "InvalidArgument",
    "InvalidHandle",
    "Manifest",
    "OutOfMemory",
    "SessionBusy",
    "SessionPoisoned",
    "SpecError",
    "Status",
    "TextCodec",
    "TextStream",
    "WidthExceeded",
    "WrongState",
]
