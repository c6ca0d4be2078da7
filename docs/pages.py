"""Adapts docs/*.md for the site: fills in the generated parts and follows links that leave docs/.

A hook module of mkdocs (`hooks` in mkdocs.yml). A page asks for a generated part by a comment on a line of its own:

    <!-- schema: recipe -->      every section and key of docs/schema/recipe.schema.json, as tables

Nothing generated is written into docs/. Needs only the standard library until mkdocs calls it.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
_OUTSIDE = "repository/"
"""Folder of the site with the files outside docs/ that pages link to."""
_SCHEMA = re.compile(r"^<!-- schema: (\w+) -->$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]\n]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")

Schema = dict[str, Any]


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs with the text of each page."""
    markdown = _SCHEMA.sub(lambda found: schema_tables(read_schema(found[1])), markdown)
    return relink(markdown, page.file.src_uri)


def on_files(files: Any, *, config: Any, **_: Any) -> Any:
    """Called by mkdocs with the files of docs/: adds those outside docs/ that a page links to."""
    from properdocs.structure.files import File

    for linked in linked_files():
        text = (REPOSITORY / linked).read_text(encoding="utf-8")
        files.append(File.generated(config, _OUTSIDE + linked, content=text))
    return files


def linked_files() -> list[str]:
    """The files outside docs/ that a page of docs/ links to, as paths from the repository's root."""
    found = set()
    for page in (REPOSITORY / "docs").rglob("*.md"):
        folder = page.parent.relative_to(REPOSITORY).as_posix()
        for link in _LINK.finditer(page.read_text(encoding="utf-8")):
            path = normpath(f"{folder}/{link[2]}")
            if not path.startswith("docs/") and (REPOSITORY / path).is_file():
                found.add(path)
    return sorted(found)


def relink(markdown: str, uri: str) -> str:
    """The text of the site's page `uri` with links to where their files are in the site.

    A link to a directory, which the site has no page for, becomes its text.
    """
    source = PurePosixPath(uri.removeprefix(_OUTSIDE) if uri.startswith(_OUTSIDE) else f"docs/{uri}")

    def moved(link: re.Match[str]) -> str:
        path = normpath(f"{source.parent}/{link[2]}")
        if (REPOSITORY / path).is_dir():
            return link[1]
        target = path.removeprefix("docs/") if path.startswith("docs/") else _OUTSIDE + path
        return f"[{link[1]}]({relpath(target, PurePosixPath(uri).parent)}{link[3] or ''})"

    return _LINK.sub(moved, markdown)


def read_schema(name: str) -> Schema:
    """The published JSON schema `name`, a test holds it to the code."""
    schema: Schema = json.loads(
        (REPOSITORY / "docs" / "schema" / f"{name}.schema.json").read_text(encoding="utf-8")
    )
    return schema


def schema_tables(schema: Schema) -> str:
    """One section per object of a JSON schema, the root first: its description, then a row per key."""
    objects = {schema["title"]: schema}
    objects.update((name, part) for name, part in schema["$defs"].items() if "properties" in part)
    return "\n\n".join(_section(name, part) for name, part in objects.items())


def _section(name: str, part: Schema) -> str:
    required = part.get("required", ())
    rows = [
        f"| `{key}` | {_type(value)} | {_default(key, value, required)} | {_line(value.get('description', ''))} |"
        for key, value in part.get("properties", {}).items()
    ]
    head = ["| key | type | default | meaning |", "|---|---|---|---|"]
    return "\n".join([f"## {name}", "", _line(part.get("description", ""), cell=False), "", *head, *rows])


def _default(key: str, value: Schema, required: Any) -> str:
    if key in required:
        return "required"
    if "default" not in value:
        return "from other keys"
    return f"`{json.dumps(value['default'])}`" if value["default"] is not None else "none"


def _type(value: Schema) -> str:
    """A JSON schema's type in words; objects link to their section."""
    if "$ref" in value:
        name = value["$ref"].rsplit("/", 1)[1]
        return "any JSON value" if name == "JsonValue" else f"[{name}](#{name.lower()})"
    if choices := value.get("anyOf", value.get("oneOf")):
        return " or ".join(dict.fromkeys(_type(choice) for choice in choices if choice.get("type") != "null"))
    if "const" in value or "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value.get("enum", [value.get("const")]))
    return "".join(_plain_type(value))


def _plain_type(value: Schema) -> Iterator[str]:
    kind = value.get("type", "any")
    if kind == "array":
        yield f"list of {_type(value['items'])}" if "items" in value else "list"
        return
    if kind == "object" and isinstance(value.get("additionalProperties"), dict):
        yield f"mapping to {_type(value['additionalProperties'])}"
        return
    yield {"string": "text", "boolean": "true or false"}.get(kind, kind)
    if "pattern" in value:
        yield f" like `{value['pattern']}`".replace("|", "&#124;")
    bounds = (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<"))
    for key, sign in bounds:
        # The bounds of 32-bit and 64-bit integers say nothing to a reader.
        if key in value and value[key] not in (2**31 - 1, 2**63 - 1):
            yield f", {sign} {value[key]}"


def _line(text: str, *, cell: bool = True) -> str:
    """A description as Markdown; in a cell of a table on one line. Angle brackets outside code are text."""
    if cell:
        text = " ".join(text.split()).replace("|", "\\|")
    parts = text.split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))
