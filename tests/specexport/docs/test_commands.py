"""Every command line of README and docs is one that the command lines know: command and options."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from specexport.cli import main as specexport
from specruntime.cli import main as specruntime
from tests.conftest import REPOSITORY

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
GROUPS = {"specexport": specexport, "specruntime": specruntime}
LINE = re.compile(r"\b(specexport|specruntime) ([a-z][^\n`|#]*)")


def command_lines(page: Path) -> Iterator[tuple[click.Command, list[str]]]:
    """The command that each line names, and what comes after its name."""
    for program, rest in LINE.findall(page.read_text().replace("\\\n", " ")):
        try:
            words = shlex.split(rest)
        except ValueError:  # an apostrophe: a sentence
            continue
        command: click.Command | None = GROUPS[program]
        while words and isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        if command is not None and not isinstance(command, click.Group):
            yield command, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_of_the_docs_are_those_of_the_commands(page: Path) -> None:
    for command, words in command_lines(page):
        known = {
            option for parameter in command.params for option in parameter.opts + parameter.secondary_opts
        }
        named = {word.split("=")[0].rstrip(".,;:)") for word in words if word.startswith("--")}
        assert named <= known, f"{command.name}: {sorted(named - known)}"


def test_the_docs_show_most_commands() -> None:
    shown = {command.name for page in PAGES for command, _ in command_lines(page)}
    assert {
        "build",
        "generate",
        "check",
        "bench",
        "tune",
        "train",
        "serve",
        "inspect",
        "ray",
        "triton",
    } <= shown
