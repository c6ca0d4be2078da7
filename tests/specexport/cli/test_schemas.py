"""The published schemas are those of the code."""

from pathlib import Path

import pytest

from specexport.schemas import MODELS, SchemaName, render_schema, write_schemas

PUBLISHED = Path(__file__).resolve().parents[3] / "docs" / "schema"


@pytest.mark.parametrize("name", MODELS)
def test_published_schema_equals_the_code(name: SchemaName) -> None:
    published = (PUBLISHED / f"{name}.schema.json").read_text(encoding="utf-8")
    assert published == render_schema(name), "run `python -m specexport.schemas docs/schema` and commit"


def test_schemas_are_written_under_their_names(tmp_path: Path) -> None:
    assert {path.name for path in write_schemas(tmp_path / "new")} == {
        f"{name}.schema.json" for name in MODELS
    }
