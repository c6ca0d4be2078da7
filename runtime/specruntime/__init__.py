"""Runs speculative-decoding bundles with numpy, pydantic and the engine's own library.

The names below are the public ones; the modules behind them may move. Importing them loads no engine library, no
tokenizer library, and nothing of the build host (torch, transformers, onnx): those are imported when a bundle that
needs them is opened.
"""

from specruntime.bundle import LoadedBundle, load_manifest, open_bundle
from specruntime.engines import EngineOptions
from specruntime.errors import (
    BackendIncompatible,
    BackendMissing,
    BufferTooSmall,
    BundleHashMismatch,
    BundleInvalid,
    BundleTooNew,
    CapacityExceeded,
    ConstraintInvalid,
    ConstraintTooLarge,
    DeadEnd,
    EmptyPrompt,
    EngineFailed,
    InvalidArgument,
    InvalidHandle,
    OutOfMemory,
    SessionBusy,
    SessionPoisoned,
    SpecError,
    Status,
    WrongState,
)
from specruntime.generation import Completion, Delta, complete, generate
from specruntime.llm.engine import LLM, AsyncLLM
from specruntime.llm.outputs import CompletionOutput, Logprob, RequestOutput
from specruntime.manifest.schema import SCHEMA_VERSION, Manifest
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import TokenLogprobs
from specruntime.sampling.structured import StructuredOutputsParams
from specruntime.session import Session
from specruntime.statistics import Statistics
from specruntime.text.codec import TextCodec, TextStream
from specruntime.trace import RoundTrace, RowScores
from specruntime.verify import Round

__all__ = [
    "LLM",
    "SCHEMA_VERSION",
    "AsyncLLM",
    "BackendIncompatible",
    "BackendMissing",
    "BufferTooSmall",
    "BundleHashMismatch",
    "BundleInvalid",
    "BundleTooNew",
    "CapacityExceeded",
    "Completion",
    "CompletionOutput",
    "ConstraintInvalid",
    "ConstraintTooLarge",
    "DeadEnd",
    "Delta",
    "EmptyPrompt",
    "EngineFailed",
    "EngineOptions",
    "InvalidArgument",
    "InvalidHandle",
    "LoadedBundle",
    "Logprob",
    "Manifest",
    "OutOfMemory",
    "RequestOutput",
    "Round",
    "RoundTrace",
    "RowScores",
    "SamplingParams",
    "Session",
    "SessionBusy",
    "SessionPoisoned",
    "SpecError",
    "Statistics",
    "Status",
    "StructuredOutputsParams",
    "TextCodec",
    "TextStream",
    "TokenLogprobs",
    "WrongState",
    "complete",
    "generate",
    "load_manifest",
    "open_bundle",
]
