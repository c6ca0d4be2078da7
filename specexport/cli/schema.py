"""`schema`: the JSON schema of the files people and tools write or read."""

import click


@click.command("schema")
@click.argument("name", type=click.Choice(["recipe", "manifest"]))
def schema_command(name: str) -> None:
    """Prints the JSON schema of a recipe or of a bundle's manifest."""
    from specexport.schemas import render_schema

    click.echo(render_schema("recipe" if name == "recipe" else "manifest"), nl=False)
