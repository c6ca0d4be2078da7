"""The published schemas are those of the code."""

import pytest

from specexport.cli.schema import NAMES, SchemaName, render_schema
from tests.conftest import REPOSITORY


@pytest.mark.parametrize("name", NAMES)
def test_published_schema_equals_the_code(name: SchemaName) -> None:
    published = REPOSITORY / "docs" / "schema" / f"{name}.schema.json"
    assert published.read_text(encoding="utf-8") == render_schema(name), (
        f"run `specexport schema {name} > docs/schema/{name}.schema.json` and commit"
    )
