"""The site holds every page, what pages name exists, and the generated parts are complete."""

import re
from pathlib import Path

import pytest
import yaml

import specruntime
from docs.pages import linked_files, read_schema, relink, schema_tables
from specruntime.abi import ENTRIES
from tests.conftest import REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
FILE = re.compile(r"`((?:specexport|runtime|tests|recipes|docs|benchmarks)/[\w./-]+)`")


def listed(entry: object) -> list[str]:
    """Pages below an entry of mkdocs.yml's `nav`."""
    if isinstance(entry, str):
        return [entry]
    children = entry.values() if isinstance(entry, dict) else entry
    assert not isinstance(children, str)
    return [page for child in children for page in listed(child)]  # type: ignore[attr-defined]


def test_the_navigation_holds_every_page_once() -> None:
    nav = listed(yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())["nav"])
    assert sorted(nav) == sorted(
        [*PAGES, *(f"repository/{page}" for page in linked_files() if page.endswith(".md"))]
    )


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_exist(page: str) -> None:
    named = FILE.findall((DOCS / page).read_text())
    assert [path for path in named if not (REPOSITORY / path).exists()] == []


def test_the_tour_names_files() -> None:
    assert len(FILE.findall((DOCS / "architecture.md").read_text())) > 40


def test_the_python_reference_has_every_public_name() -> None:
    named = re.findall(
        r"^::: specruntime\.(\w+)$", (DOCS / "reference" / "python.md").read_text(), re.MULTILINE
    )
    assert sorted(named) == sorted(specruntime.__all__)


def test_entries_that_the_c_page_names_exist() -> None:
    named = set(re.findall(r"`(spx_\w+)`", (DOCS / "c-api.md").read_text()))
    assert named
    assert named <= set(ENTRIES)


@pytest.mark.parametrize("name", ["recipe", "manifest"])
def test_schema_tables_have_a_row_for_every_key(name: str) -> None:
    schema = read_schema(name)
    sections = {text.partition("\n")[0]: text for text in ("\n" + schema_tables(schema)).split("\n## ")[1:]}
    objects = {schema["title"]: schema} | {n: o for n, o in schema["$defs"].items() if "properties" in o}
    assert set(sections) == set(objects)
    for title, part in objects.items():
        rows = re.findall(r"^\| `(\w+)` \|", sections[title], re.MULTILINE)
        assert rows == list(part.get("properties", {}))
        assert {
            line.replace("\\|", "").count("|")
            for line in sections[title].splitlines()
            if line.startswith("|")
        } <= {5}


def test_a_schema_table_says_type_default_and_meaning() -> None:
    schema = {
        "title": "Thing",
        "description": "A thing.",
        "required": ["kind"],
        "properties": {
            "kind": {"enum": ["a", "b"]},
            "size": {
                "type": "integer",
                "minimum": 2,
                "maximum": 2**31 - 1,
                "default": 3,
                "description": "x | `<a>` <y>",
            },
            "parts": {"type": "array", "items": {"$ref": "#/$defs/Part"}},
            "part": {"anyOf": [{"$ref": "#/$defs/Part"}, {"type": "null"}], "default": None},
        },
        "$defs": {"Part": {"type": "object", "properties": {}}},
    }
    assert schema_tables(schema).splitlines()[:9] == [
        "## Thing",
        "",
        "A thing.",
        "",
        "| key | type | default | meaning |",
        "|---|---|---|---|",
        "| `kind` | `a`, `b` | required |  |",
        "| `size` | integer, >= 2 | `3` | x \\| `<a>` &lt;y> |",
        "| `parts` | list of [Part](#part) | from other keys |  |",
    ]
    assert "| `part` | [Part](#part) | none |  |" in schema_tables(schema)


@pytest.mark.parametrize(
    ("uri", "link", "moved"),
    [
        ("benchmark.md", "[how](../benchmarks/README.md)", "[how](repository/benchmarks/README.md)"),
        ("benchmark.md", "[x](weights.md#packed)", "[x](weights.md#packed)"),
        ("reference/recipe.md", "[x](../../benchmarks/README.md)", "[x](../repository/benchmarks/README.md)"),
        ("reference/recipe.md", "[x](../drafts.md)", "[x](../drafts.md)"),
        ("repository/benchmarks/README.md", "[x](../docs/scaling.md)", "[x](../../scaling.md)"),
        ("benchmark.md", "[x](../recipes)", "x"),
        ("benchmark.md", "[x](https://example.org/a)", "[x](https://example.org/a)"),
        ("benchmark.md", "[x](#part)", "[x](#part)"),
    ],
)
def test_links_lead_to_where_the_site_has_the_file(uri: str, link: str, moved: str) -> None:
    assert relink(f"a {link} b", uri) == f"a {moved} b"


def test_no_page_is_fetched_from_elsewhere() -> None:
    settings = (REPOSITORY / "mkdocs.yml").read_text()
    assert "http" not in settings
    assert "analytics" not in settings
    for page in PAGES:
        assert "<script" not in Path(DOCS / page).read_text()
