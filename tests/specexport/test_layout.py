"""The shape of both packages: folders and files of a size to hold in mind, wings that look into the core only."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PACKAGES = {
    "specexport": REPOSITORY / "specexport",
    "specruntime": REPOSITORY / "runtime" / "specruntime",
}
MODULES_IN_A_FOLDER = 20
MODULES_AT_A_ROOT = 14
LINES = 400
SMALL = 60  # a file below it is imported by more than one other, or is listed here with its reason
SMALL_FOR_A_REASON = {
    "specexport.optimum_register": "optimum finds it as a file",
    "specexport.optimum_plugin": "named by that file alone",
    "specexport.cli.build": "one file a command",
    "specexport.cli.check": "one file a command",
    "specexport.cli.inspect": "one file a command",
    "specexport.cli.profile": "one file a command",
    "specexport.cli.schema": "one file a command",
    "specexport.cli.interrupts": "imported before anything that is slow to import",
}
WINGS = (
    "specruntime.server", "specruntime.serving", "specruntime.batches", "specruntime.abi", "specruntime.flat",
    "specruntime.clib", "specruntime.cli", "specexport.training", "specexport.tune", "specexport.bench",
    "specexport.profile", "specexport.deploy", "specexport.cli",
)  # fmt: skip
# Who may look into a wing from outside of it, and why.
DOORS = {
    ("specruntime.bundle", "specruntime.batches"): "`new_batch` makes one",
    ("specruntime.llm", "specruntime.serving"): "`LLM` serves its requests by the scheduler",
    ("specexport", "specruntime.cli"): "commands of both packages share their options",
}


@cache
def modules() -> dict[str, Path]:
    found = {}
    for root in PACKAGES.values():
        for path in root.rglob("*.py"):
            name = ".".join(path.relative_to(root.parent).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


@cache
def imports(late: bool) -> dict[str, frozenset[str]]:
    """What each module imports of both packages; `late`: inside functions too."""
    known, found = modules(), {}
    for name, path in known.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = ast.walk(tree) if late else iter(tree.body)
        found[name] = frozenset(each for node in nodes for each in _named(node, known) if each != name)
    return found


def _named(node: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            module = f"{node.module}.{alias.name}"
            if (module if module in known else node.module) in known:
                yield module if module in known else node.module
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("package", PACKAGES)
def test_folders_hold_few_modules(package: str) -> None:
    root = PACKAGES[package]
    assert len(list(root.glob("*.py"))) <= MODULES_AT_A_ROOT
    counts = {
        str(path.relative_to(root)): len(list(path.glob("*.py"))) for path in root.rglob("*") if path.is_dir()
    }
    assert {name: count for name, count in counts.items() if count > MODULES_IN_A_FOLDER} == {}


def test_no_file_is_long() -> None:
    assert {name: lines(path) for name, path in modules().items() if lines(path) > LINES} == {}


def test_a_small_file_has_a_reason() -> None:
    importers = defaultdict(set)
    for name, found in imports(late=True).items():
        for each in found:
            importers[each].add(name)
    small = {
        name
        for name, path in modules().items()
        if lines(path) < SMALL and len(importers[name]) == 1 and path.name != "__init__.py"
    }
    assert small - set(SMALL_FOR_A_REASON) == set()


def test_nothing_imports_in_a_circle() -> None:
    try:
        tuple(TopologicalSorter(imports(late=False)).static_order())
    except CycleError as error:
        pytest.fail(f"imports in a circle: {error.args[1]}")


def test_the_core_imports_no_wing() -> None:
    found = set()
    for name, targets in imports(late=True).items():
        for target in targets:
            wing = next((each for each in WINGS if _inside(target, each)), None)
            if wing is None or any(_inside(name, each) for each in WINGS) or "__main__" in name:
                continue
            if not any(_inside(name, door) and _inside(target, into) for door, into in DOORS):
                found.add((name, target))
    assert found == set()


def test_the_runtime_imports_nothing_of_the_build_side() -> None:
    found = {
        (name, each)
        for name, targets in imports(late=True).items()
        for each in targets
        if _inside(name, "specruntime") and _inside(each, "specexport")
    }
    assert found == set()


def test_files_at_a_root_and_folders_are_on_the_map() -> None:
    """README's tree or the architecture page names each."""
    text = (REPOSITORY / "README.md").read_text() + (REPOSITORY / "docs" / "architecture.md").read_text()
    missing = []
    for package, root in PACKAGES.items():
        names = [path.name for path in root.glob("*.py") if path.name != "__init__.py"]
        names += [
            f"{path.name}/" for path in root.iterdir() if path.is_dir() and (path / "__init__.py").exists()
        ]
        missing += [
            f"{package}/{name}" for name in names if not re.search(rf"(?<![\w]){re.escape(name)}", text)
        ]
    assert missing == []


def test_public_classes_have_names_of_their_own() -> None:
    """One word for one idea across both packages."""
    found = defaultdict(list)
    for name, path in modules().items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def _inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")
