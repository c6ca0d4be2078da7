"""Bounds of what a manifest may count: far above any real bundle, far below what breaks a runtime."""

from typing import Annotated

from pydantic import Field

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
