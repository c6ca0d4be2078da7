"""Numbers with commas, as the value of an option."""

from typing import Any

import click


class NumberList(click.ParamType[tuple[int, ...]]):
    name = "N,N,..."

    def __init__(self, expected: str) -> None:
        """`expected`: what a message says of such a list."""
        self._expected = expected

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        try:
            return value if isinstance(value, tuple) else tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"found {value!r}, expected {self._expected}", param, ctx)
