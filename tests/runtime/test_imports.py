"""The runtime imports what it declares and nothing of the build host."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import specruntime

RUNTIME = Path(specruntime.__file__).parent
PROJECT = RUNTIME.parent / "pyproject.toml"
BUILD_HOST = {"torch", "transformers", "onnx", "onnxscript", "onnx_ir", "optimum", "specexport"}
# Distributions that are not installed here, by the name they are imported under.
IMPORT_NAMES = {
    "tensorrt": "tensorrt",
    "tensorrt-rtx": "tensorrt_rtx",
    "cuda-bindings": "cuda",
    "specruntime-kernels": "specruntime_kernels",
}

PUBLIC_NAMES = [
    "AsyncLLM",
    "BackendIncompatible",
    "BackendMissing",
    "BufferTooSmall",
    "BundleHashMismatch",
    "BundleInvalid",
    "BundleTooNew",
    "CapacityExceeded",
    "Completion",
    "CompletionOutput",
    "ConstraintInvalid",
    "ConstraintTooLarge",
    "DeadEnd",
    "Delta",
    "EmptyPrompt",
    "EngineFailed",
    "EngineOptions",
    "InvalidArgument",
    "InvalidHandle",
    "LLM",
    "LoadedBundle",
    "Logprob",
    "Manifest",
    "OutOfMemory",
    "RequestOutput",
    "Round",
    "RoundTrace",
    "RowScores",
    "SCHEMA_VERSION",
    "SamplingParams",
    "Session",
    "SessionBusy",
    "SessionPoisoned",
    "SpecError",
    "Statistics",
    "Status",
    "StructuredOutputsParams",
    "TextCodec",
    "TextStream",
    "TokenLogprobs",
    "WrongState",
    "complete",
    "generate",
    "load_manifest",
    "open_bundle",
]


def distribution_name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None, requirement
    return match[0].lower().replace("_", "-")


def import_names(requirements: list[str]) -> set[str]:
    """The top-level modules of the distributions that are required."""
    wanted = {distribution_name(requirement) for requirement in requirements}
    installed = {
        module
        for module, distributions in packages_distributions().items()
        if any(distribution_name(name) in wanted for name in distributions)
    }
    return installed | {module for name, module in IMPORT_NAMES.items() if name in wanted}


def declared(extras: bool) -> set[str]:
    project = tomllib.loads(PROJECT.read_text())["project"]
    requirements = list(project["dependencies"])
    if extras:
        requirements += [item for extra in project["optional-dependencies"].values() for item in extra]
    return import_names(requirements)


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module is not None
            yield node.module


def undeclared_imports(source: str, allowed: set[str]) -> set[str]:
    tops = {module.partition(".")[0] for module in imported_modules(ast.parse(source))}
    return tops - sys.stdlib_module_names - allowed - {"specruntime"}


@pytest.mark.parametrize("path", sorted(RUNTIME.rglob("*.py")), ids=lambda p: str(p.relative_to(RUNTIME)))
def test_every_import_is_declared(path: Path) -> None:
    assert undeclared_imports(path.read_text(), declared(extras=True)) == set()


@pytest.mark.parametrize(
    "line", ["import torch.nn", "from onnx import load", "def f():\n    import specexport"]
)
def test_the_check_finds_what_is_not_declared(line: str) -> None:
    assert undeclared_imports(line, declared(extras=True)) & BUILD_HOST


def loaded_after(statement: str) -> set[str]:
    """Top-level modules loaded in a fresh interpreter by `statement`, beyond what the interpreter starts with.

    `-S` leaves out site's `.pth` hooks, which load modules of their own.
    """
    path = repr([str(RUNTIME.parent), *(entry for entry in sys.path if entry)])
    script = f"""
import sys
sys.path[:] = {path}
before = set(sys.modules)
{statement}
print(*sorted({{name.partition('.')[0] for name in set(sys.modules) - before}}))
"""
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_no_extra_and_nothing_of_the_build_host() -> None:
    loaded = loaded_after("import specruntime")
    assert {"specruntime", "numpy", "pydantic"} <= loaded
    assert loaded & BUILD_HOST == set()
    assert loaded & (declared(extras=True) - declared(extras=False)) == set()


def test_decoding_a_bundle_loads_nothing_of_the_build_host(tiny_bundle: Path) -> None:
    loaded = loaded_after(
        f"""import specruntime as s
with s.open_bundle({str(tiny_bundle)!r}) as bundle:
    codec = bundle.tokenizer
    s.complete(bundle.new_session(), codec.encode("ab"), s.SamplingParams(max_tokens=4), codec)"""
    )
    assert {"onnxruntime", "tokenizers"} <= loaded
    assert loaded & BUILD_HOST == set()


def test_the_public_names_are_what_they_should_be() -> None:
    assert sorted(specruntime.__all__) == sorted(PUBLIC_NAMES)
    assert [name for name in PUBLIC_NAMES if not hasattr(specruntime, name)] == []
