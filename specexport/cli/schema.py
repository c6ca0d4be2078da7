"""`schema`: the JSON schema of the files people and tools write or read."""

import json
from typing import Literal, get_args

import click

SchemaName = Literal["recipe", "manifest"]
NAMES: tuple[SchemaName, ...] = get_args(SchemaName)
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


@click.command("schema")
@click.argument("name", type=click.Choice(NAMES))
def schema_command(name: SchemaName) -> None:
    """Print the JSON schema of a recipe or of a bundle's manifest."""
    click.echo(render_schema(name), nl=False)


def render_schema(name: SchemaName) -> str:
    """Return the JSON schema of `name` as text, as it stands in docs/schema/<name>.schema.json."""
    from specexport.recipe.schema import Recipe
    from specruntime.manifest.schema import Manifest

    model = Recipe if name == "recipe" else Manifest
    schema = {"$schema": _DIALECT, **model.model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
