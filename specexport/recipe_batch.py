"""The recipe's `batch`: how many sequences one engine call may hold."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from specruntime.schema_numbers import MAX_PROFILES, Size


def _sizes(value: Any) -> Any:
    """A number stands for the powers of two below it and itself."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 2**MAX_PROFILES:
        powers = (2**power for power in range(MAX_PROFILES))
        return (*(size for size in powers if size < value), value)
    if isinstance(value, (list, tuple)):
        return tuple(value)
    raise ValueError(
        f"batch: found {value!r}, expected a number of sequences from 1 on, or ascending ones in a list"
    )


BatchSizes = Annotated[
    tuple[Size, ...],
    Field(min_length=1, max_length=MAX_PROFILES),
    BeforeValidator(_sizes, json_schema_input_type=Size | list[Size]),
]
