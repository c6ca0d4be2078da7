"""What is wrong with a recipe: one line per mistake, and none for what only follows from another."""

from collections.abc import Iterator

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from specruntime.closed_schema import describe, nearest


def explain(error: ValidationError, root: type[BaseModel]) -> Iterator[str]:
    """One line per mistake of a validation of `root`."""
    details = error.errors()
    for item in details:
        if not _follows_from_another(item, details):
            yield describe(item, root)


def _follows_from_another(item: ErrorDetails, details: list[ErrorDetails]) -> bool:
    """Whether pydantic only repeats another mistake: about the list around a bad item, or a key that was misspelt."""
    location, kind = item["loc"], item["type"]
    if kind == "default_factory_not_called":
        return True
    for other in details:
        place = other["loc"]
        if len(place) > len(location) and place[: len(location)] == location:
            return True
        beside = other["type"] == "extra_forbidden" and place[:-1] == location[:-1]
        if kind == "missing" and beside and nearest(str(place[-1]), [str(location[-1])]):
            return True
    return False
