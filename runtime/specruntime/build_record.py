"""What of `build.json` is shown to people. A bundle decodes without it, so a record that cannot be read is none.

Owns the types of the keys that are read and nothing of how they are shown; other keys are left alone.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, ValidationError

from specruntime.bundle_files import read_regular
from specruntime.errors import BundleInvalid

BUILD_RECORD_NAME = "build.json"
MAX_RECORD_BYTES = 64 * 2**20

_Bytes = Annotated[int, Field(ge=0, le=2**63 - 1)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class ParityRecord(_Record):
    """How far the logits were from PyTorch's."""

    model_config = ConfigDict(extra="allow")

    logit_difference: FiniteFloat
    tokens: NonNegativeInt
    tolerance: FiniteFloat


class EngineReport(_Record):
    """What the compiler made of the graph: names of nodes and layers, sizes."""

    engine_bytes: _Bytes
    weights_bytes: _Bytes
    compiled_layers: NonNegativeInt
    fused_attention: list[str]
    unfused_attention: list[str]
    kv_cache_updates: list[str]
    cache_copies: list[str]


class EngineRecord(_Record):
    report: EngineReport | None = None


class PassRecord(_Record):
    """What one pass over the graph changed, and what it has to say of that."""

    name: str
    reasons: list[str] = []


class GraphRecord(_Record):
    """One graph's build; all of it may be absent."""

    checkpoint: str | None = None
    parity: ParityRecord | None = None
    engine: EngineRecord | None = None
    passes: list[PassRecord] = []
    warnings: list[str] = []
    step_ms: dict[str, FiniteFloat] | None = None
    step_ms_reason: str | None = None


class BuildRecord(_Record):
    """All that is read of `build.json`."""

    versions: dict[str, Any] = {}
    graphs: dict[str, GraphRecord] = {}


def read_build_record(root: Path) -> BuildRecord:
    """`build.json` of the bundle at `root`; an empty record where it is absent, is no regular file or says nonsense."""
    try:
        return BuildRecord.model_validate_json(read_regular(root, BUILD_RECORD_NAME, MAX_RECORD_BYTES))
    except (OSError, BundleInvalid, ValidationError):
        return BuildRecord()
