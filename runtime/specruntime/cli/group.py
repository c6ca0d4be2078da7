"""How commands end: 0 done, 1 refused in one line, 2 usage, 130 interrupted. No traceback unless asked for."""

import errno
import os
from typing import Any, ClassVar

import click

from specruntime.errors import SpecError


class RefusingGroup(click.Group):
    """A command group whose errors are lines `error: ...` on stderr."""

    debug_variable: ClassVar[str] = "SPECRUNTIME_DEBUG"  # set: errors keep their traceback

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # click ends quietly when the reader of our output is gone
            if os.environ.get(self.debug_variable):
                raise
            for line in self.describe(error):
                click.echo(f"error: {line}", err=True)
            ctx.exit(1)

    def describe(self, error: Exception) -> list[str]:
        """One line per mistake; an error that knows several has them in `lines`."""
        if isinstance(error, SpecError):
            return [_one_line(line) for line in getattr(error, "lines", None) or [str(error)]]
        if isinstance(error, OSError):
            place = f"{error.filename}: " if error.filename else ""
            return [_one_line(f"{place}{error.strerror or error}")]
        if isinstance(error, MemoryError):
            return ["out of memory: close other programs, or lower `capacity` in the recipe and build again"]
        reason = _one_line(str(error)) or "no message"
        return [
            f"unexpected {type(error).__name__}: {reason}; set {self.debug_variable}=1 to see where, and report it"
        ]


def _one_line(text: str) -> str:
    return " ".join(text.split())
