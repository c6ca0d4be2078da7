"""Renders rows of text as an aligned table, by rich."""

from collections.abc import Iterable, Sequence
from io import StringIO

from rich.console import Console
from rich.table import Table

_WIDTH = 10_000  # lines are never broken: they may be read by other programs


def render_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,)
) -> list[str]:
    """Return the lines of a table with a header; the columns at the indices `left` are left-aligned, others right."""
    table = Table(box=None, pad_edge=False, header_style="")
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    text = StringIO()
    Console(file=text, width=_WIDTH, color_system=None, markup=False, highlight=False).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]
