"""The published JSON schemas of recipe and manifest. `python -m specexport.schemas docs/schema` writes them."""

import json
import sys
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from specexport.recipe.schema import Recipe
from specruntime.manifest.schema import Manifest

SchemaName = Literal["recipe", "manifest"]
MODELS: dict[SchemaName, type[BaseModel]] = {"recipe": Recipe, "manifest": Manifest}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def render_schema(name: SchemaName) -> str:
    """The JSON schema of `name` as text, as it stands in docs/schema/<name>.schema.json."""
    schema = {"$schema": _DIALECT, **MODELS[name].model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def write_schemas(directory: Path) -> list[Path]:
    """Writes every schema into `directory` and returns the paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in MODELS:
        path = directory / f"{name}.schema.json"
        path.write_text(render_schema(name), encoding="utf-8")
        paths.append(path)
    return paths


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
