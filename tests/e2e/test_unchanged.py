"""What builds decide, the C header and both schemas are what they were: moving code changes none of them.

A change that is meant goes into `unchanged.json` with the commit that makes it; the text that changed is what
`python -m tests.e2e.bundle_shapes BUNDLE` prints before and after.
"""

import json
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.e2e.bundle_shapes import bundle_shapes, digest, header_without_comments, schema_shape
from tests.e2e.conftest import DRAFT_KINDS, Built

KNOWN: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("unchanged.json").read_text())


@pytest.mark.parametrize("kind", DRAFT_KINDS)
def test_the_bundle_of_a_kind(built: Built, kind: str) -> None:
    require_equal(f"tiny-{kind}", bundle_shapes(built(kind)))


def test_the_bundle_of_a_small_model(tiny_bundle: Path) -> None:
    require_equal("tiny-random", bundle_shapes(tiny_bundle))


def test_header_and_schemas() -> None:
    header = (REPOSITORY / "runtime" / "include" / "specruntime.h").read_text()
    found = {"specruntime.h": header_without_comments(header)}
    for path in sorted((REPOSITORY / "docs" / "schema").glob("*.json")):
        found[path.name] = schema_shape(json.loads(path.read_text()))
    require_equal("published", found)


def require_equal(name: str, found: dict[str, str]) -> None:
    assert {part: digest(text) for part, text in found.items()} == KNOWN[name]
