"""What a build refuses after the recipe was read: told with the recipe's file and the key that has to change."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specexport.errors import CheckpointUnsupported, SourceError, TokenizerMismatch
from specexport.recipe.schema import Recipe

_KEY = re.compile(rf"({'|'.join(Recipe.model_fields)})[.\[:]")
_BELOW_SOURCE = "source."


@contextmanager
def naming_source(side: str) -> Iterator[None]:
    """A refusal of the checkpoint of `side` ("target" or "draft") begins with the key that names it.

    A message about a key below, `source.random.seed`, gets the rest of the path; one that has its key stays.
    """
    try:
        yield
    except (SourceError, CheckpointUnsupported) as error:
        text = str(error)
        if _KEY.match(text):
            raise
        place = f"{side}." if text.startswith(_BELOW_SOURCE) else f"{side}.source: "
        raise type(error)(f"{place}{text}") from error


@contextmanager
def naming_file(path: Path | str) -> Iterator[None]:
    """A refusal that begins with a key of the recipe, or is of its two vocabularies, begins with the file."""
    try:
        yield
    except (SourceError, CheckpointUnsupported, TokenizerMismatch) as error:
        text = str(error)
        if not (_KEY.match(text) or isinstance(error, TokenizerMismatch)):
            raise
        raise type(error)(f"{path}: {text}") from error
