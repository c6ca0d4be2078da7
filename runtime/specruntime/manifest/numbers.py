"""Bounds of what a manifest may count, far above any real bundle and below what breaks a runtime; its base class."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_THREADS = 1024
MAX_PROFILES = 128  # a recipe's widest choice: 64 verify widths, the step and a prefill ladder
MAX_FILES = 4096
MAX_PATH = 1000
MAX_NODES = 1024  # of a drafted tree
MAX_LAYERS = 4096

Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
Index = Annotated[int, Field(ge=0, le=2**31 - 1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Threads = Annotated[int, Field(ge=1, le=MAX_THREADS)]
Version = Annotated[
    str, Field(max_length=60, pattern=r"^[0-9]{1,6}(\.[0-9]{1,6}){1,3}([a-z.+-][0-9a-z.+-]*)?$")
]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
RelativePath = Annotated[str, Field(min_length=1, max_length=MAX_PATH)]


class Closed(BaseModel):
    """A part of a manifest: no unknown keys, no changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)
