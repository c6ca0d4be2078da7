"""Digests of the code that decides what a stage writes into the cache: its modules and all that they import.

The import closure is found in the sources, so nothing is imported for it: late imports inside functions count, those
under `TYPE_CHECKING` do not. The modules of this package and of the runtime count by their text, other libraries by
their versions. Imports neither torch nor onnx.
"""

import ast
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path

from specexport.cache.entries import text_sha256

# They judge or print values, and cannot change what a stage computes from them.
_WITHOUT_INFLUENCE = frozenset({"click", "pydantic", "pydantic_core", "rich", "tqdm", "yaml"})


@cache
def code_digest(*modules: str) -> str:
    """Hex SHA-256 of the import closure of `modules`: another for a change of any source that it holds, and for
    another version of a library that these import.

    Raises `ModuleNotFoundError` for a module of this project that is not there.
    """
    return _installed().digest(*modules)


@cache
def _installed() -> "Sources":
    return Sources({name: _directory(name) for name in ("specexport", "specruntime")})


def _directory(package: str) -> Path:
    found = find_spec(package)
    assert found is not None and found.origin is not None, "both are installed where this module runs"
    return Path(found.origin).parent


class Sources:
    """The sources of packages, by name and directory."""

    def __init__(self, packages: Mapping[str, Path]) -> None:
        self._packages = dict(packages)
        self._texts: dict[str, str] = {}

    def digest(self, *modules: str) -> str:
        """As `code_digest`."""
        own, others = self.closure(*modules)
        parts = [f"{module} {text_sha256(self._text(module))}" for module in sorted(own)]
        parts += [f"{library} {_library_version(library)}" for library in sorted(others - _WITHOUT_INFLUENCE)]
        return text_sha256("\n".join(parts))

    def closure(self, *modules: str) -> tuple[frozenset[str], frozenset[str]]:
        """Return the modules of these packages that `modules` import, themselves included, and the other libraries'
        names.

        A package inside another is part of what its modules import. The outermost ones only collect public names for
        their users, so they count where a name is taken from them.
        """
        found: set[str] = set()
        others: set[str] = set()
        waiting = list(modules)
        while waiting:
            module = waiting.pop()
            if module in found:
                continue
            if not self._is_own(module):
                others.add(module.partition(".")[0])
                continue
            found.add(module)
            for imported, name in _imports(self._text(module)):
                inner = f"{imported}.{name}"
                is_module = name and self._is_own(imported) and self._file(inner) is not None
                waiting.append(inner if is_module else imported)
            parent = module.rpartition(".")[0]
            if parent and parent not in self._packages:
                waiting.append(parent)
        return frozenset(found), frozenset(others - sys.stdlib_module_names)

    def _is_own(self, module: str) -> bool:
        return module.partition(".")[0] in self._packages

    def _text(self, module: str) -> str:
        if module not in self._texts:
            file = self._file(module)
            if file is None:
                raise ModuleNotFoundError(
                    f"{module} is imported and has no source in {self._packages[module.partition('.')[0]]}; "
                    "install the package again"
                )
            self._texts[module] = file.read_text(encoding="utf-8")
        return self._texts[module]

    def _file(self, module: str) -> Path | None:
        package, *rest = module.split(".")
        place = self._packages[package].joinpath(*rest)
        candidates = (place / "__init__.py", place.with_suffix(".py"))
        return next((file for file in candidates if file.is_file()), None)


@cache
def _imports(text: str) -> frozenset[tuple[str, str]]:
    """Return (module, name taken from it or "") of the whole text, in functions and branches too, but for what only a
    type checker follows."""
    found: set[tuple[str, str]] = set()
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found.update((name.name, "") for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None and not node.level, "imports are absolute in this project"
            found.update((node.module, name.name) for name in node.names)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
        elif not isinstance(node, ast.expr):
            waiting += ast.iter_child_nodes(node)
    return frozenset(found)


@cache
def _library_version(name: str) -> str:
    """Version of an import name, which is usually that of its distribution too; "none" if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        distributions = packages_distributions().get(name, [])
        return " ".join(version(distribution) for distribution in sorted(set(distributions))) or "none"
