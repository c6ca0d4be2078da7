"""Checkpoints that are already on this machine."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specexport.cache.entries import file_sha256, text_sha256
from specexport.checkpoints.address import LocalDirectory, LocalGguf
from specexport.errors import SourceError
from specruntime.manifest.messages import nearest


@dataclass(frozen=True)
class Located:
    """A checkpoint on this machine: `directory` for transformers, the GGUF file in it if it is one.

    `digest` is a hex SHA-256 that changes when the checkpoint does; it does not depend on where the files lie.
    """

    directory: Path
    gguf_file: str | None
    digest: str


_GGUF_MAGIC = b"GGUF"
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
_IRRELEVANT = {".md", ".gitattributes", ".gitignore"}


def locate_directory(address: LocalDirectory, *, weights: bool = True) -> Located:
    """Return a Hugging Face directory: config.json and weights. Raises `SourceError` naming what is not there.

    Without `weights` the digest leaves them out, which takes no reading of gigabytes.
    """
    directory = address.path
    if not directory.is_dir():
        what = "a file, expected a directory or a .gguf file" if directory.is_file() else "no such directory"
        raise SourceError(f"{directory}: {what}{_neighbour(directory)}")
    if not (directory / "config.json").is_file():
        raise SourceError(f"{directory}: no config.json in it, expected a Hugging Face checkpoint directory")
    if not any(next(directory.glob(pattern), None) for pattern in _WEIGHTS):
        raise SourceError(f"{directory}: no weights in it, expected *.safetensors next to config.json")
    return Located(directory, None, _directory_digest(directory, () if weights else _WEIGHTS))


def locate_gguf(address: LocalGguf, sha256: str | None) -> Located:
    """Return a GGUF file. Raises `SourceError` when it is missing, something else, or not what the recipe expects."""
    path = address.path
    if not path.is_file():
        what = "a directory, expected a file" if path.is_dir() else "no such file"
        raise SourceError(f"{path}: {what}{_neighbour(path)}")
    check_gguf_magic(path, str(path))
    found = file_sha256(path)
    require_sha256(str(address), found, sha256)
    return Located(path.parent, path.name, found)


def require_sha256(shown: str, found: str, expected: str | None) -> None:
    """Raise `SourceError` with both hashes when the recipe expects another one."""
    if expected is not None and found != expected:
        raise SourceError(
            f"{shown}: sha256 is {found}, the recipe expects {expected}; get the right file or correct it"
        )


def check_gguf_magic(path: Path, shown: str) -> None:
    """Raise `SourceError` unless the file starts as GGUF files do."""
    with path.open("rb") as stream:
        if (start := stream.read(4)) != _GGUF_MAGIC:
            raise SourceError(
                f"{shown}: not a GGUF file (it starts with {start!r}, expected {_GGUF_MAGIC!r})"
            )


def _directory_digest(directory: Path, left_out: Sequence[str] = ()) -> str:
    irrelevant = {*_IRRELEVANT, *(pattern.removeprefix("*") for pattern in left_out)}
    files = sorted(p for p in directory.iterdir() if p.is_file() and p.suffix not in irrelevant)
    return text_sha256("\n".join(f"{path.name} {file_sha256(path)}" for path in files))


def _neighbour(path: Path) -> str:
    beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    return nearest(path.name, beside)


FORMAT_KEY, FORMAT = "format", "specexport-pruned"
_CONFIG_NAME = "config.json"


def is_pruned(directory: Path) -> bool:
    """Whether `directory` says that it holds a pruned draft, which takes tables from its target."""
    try:
        config = json.loads((directory / _CONFIG_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get(FORMAT_KEY) == FORMAT
