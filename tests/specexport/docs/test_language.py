"""Text that people read is plain English: words and turns that were retired do not come back."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

RETIRED = re.compile(
    r"\b([Ll]aws?|[Tt]old|[Tt]all(?:y|ies)|[Aa]new|[Bb]esides?|[Ff]oretells?|[Ff]oretold|[Ww]hoever|[Nn]obody|[Ss]omebody"
    r"|[Ll]ikeliest|[Tt]wins?|is no(?! longer\b| more than\b) \w+|(?:are|is) none)\b"
)
CODE = re.compile(r"\{+[^{}\n]*\}+|`\w+`|^(['\"])\w+\1$")  # expressions inside a string, and names
FOLDERS = ("specexport", "runtime", "docs", "recipes", "benchmarks", "tests")
EXEMPT = {"CHANGELOG.md", "test_language.py"}  # history; this list itself


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a page; of a module its comments and strings alone."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), start=1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            for offset, line in enumerate(CODE.sub("", token.string).splitlines()):
                yield token.start[0] + offset, line


def pages() -> list[Path]:
    found = [REPOSITORY / "README.md", REPOSITORY / "Makefile"]
    for folder in FOLDERS:
        for suffix in ("py", "md", "yaml", "html"):
            found += sorted((REPOSITORY / folder).rglob(f"*.{suffix}"))
    return [path for path in found if path.name not in EXEMPT]


@pytest.mark.parametrize("folder", ["README.md", "Makefile", *FOLDERS])
def test_no_retired_word_is_used(folder: str) -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}: {hit.group(0)!r} in {text.strip()[:100]}"
        for path in pages()
        if path.relative_to(REPOSITORY).parts[0] == folder
        for line, text in texts(path)
        for hit in RETIRED.finditer(text)
    ]
    assert found == [], "\n".join(found)
