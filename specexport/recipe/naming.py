"""What a build refuses after the recipe was read names the recipe's file and the key that has to change."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specexport.errors import (
    CheckpointUnsupported,
    FidelityError,
    ParityError,
    SourceError,
    TokenizerMismatch,
)


@contextmanager
def naming_source(side: str) -> Iterator[None]:
    """Begin a refusal of the checkpoint of `side` ("target" or "draft") with the key that names it.

    One about a key below, `source.random.seed`, gets the rest of the path; one that has its key stays.
    """
    try:
        yield
    except (SourceError, CheckpointUnsupported) as error:
        if error.key is None:
            raise type(error)(error.message, key=f"{side}.source") from error
        if not error.key.startswith("source."):
            raise
        raise type(error)(error.message, key=f"{side}.{error.key}") from error


@contextmanager
def naming_file(path: Path | str) -> Iterator[None]:
    """Begin a refusal that has a key of the recipe, or is of its two vocabularies, with the recipe's file."""
    try:
        yield
    except (SourceError, CheckpointUnsupported, TokenizerMismatch, ParityError, FidelityError) as error:
        if error.key is None and not isinstance(error, TokenizerMismatch):
            raise
        raise type(error)(f"{path}: {error}") from error
