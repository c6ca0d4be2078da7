"""What every file source ends as."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Located:
    """A checkpoint on this machine: `directory` for transformers, the GGUF file in it if it is one.

    `digest` is a hex SHA-256 that changes when the checkpoint does; it does not depend on where the files lie.
    """

    directory: Path
    gguf_file: str | None
    digest: str
