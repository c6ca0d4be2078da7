"""What lies in the cache is keyed by all code that decides it: a change in any import of a stage makes a new entry."""

import ast
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import specexport
import specruntime
from specexport.cache import code_digest
from specexport.cache.code_digest import Sources
from specexport.checkpoints import loading as checkpoint
from specexport.checkpoints.loading import load_checkpoint
from specexport.draft_kinds.canonical import canonical_draft_key
from specexport.graph.canonical import LOADER, canonical_key, export_canonical
from tests.specexport.conftest import random_target

PACKAGES = {package.__name__: Path(str(package.__file__)).parent for package in (specexport, specruntime)}
WINGS = {
    *(f"specexport.{name}" for name in ("cli", "tune", "training", "bench", "profile", "deploy")),
    *(
        f"specruntime.{name}"
        for name in ("cli", "server", "serving", "batches", "llm", "flat", "abi", "clib")
    ),
}
STAGES = {
    "canonical": ("specexport.graph.canonical", LOADER),
    "canonical draft": ("specexport.draft_kinds.canonical", LOADER),
    "compiled": ("specexport.graph.compiled", "specexport.passes.pipeline"),
    "compiled for an engine": ("specexport.graph.compiled", "specexport.tensorrt.lowering"),
    "parity": ("specexport.parity.target",),
    "draft parity": ("specexport.parity.target", "specexport.draft_kinds.eagle"),
    "fidelity": ("specexport.parity.fidelity",),
    "engine": ("specexport.tensorrt.build_engine",),
    "engine weights": ("specexport.tensorrt.weights.build_weights",),
    "tokenizer": ("specexport.tokenizer.files", "specexport.checkpoints.loading"),
    "bundle": ("specexport.build",),
}
DECIDED_BY = {
    "canonical": (
        "specexport/checkpoints/loading.py", "specexport/tokenizer/files.py",
        "specexport/checkpoints/refusals.py", "specexport/checkpoints/random_model.py",
        "specexport/draft_models/pruned.py",
        "specexport/export/adapter.py", "specexport/export/__init__.py", "specexport/graph/canonical.py",
        "specexport/checkpoints/named.py",
    ),
    "canonical draft": (
        "specexport/draft_models/random_drafts.py", "specexport/draft_models/eagle_formats.py",
        "specexport/export/trace_draft.py", "specexport/parity/draft_reference.py",
        "specexport/tokenizer/files.py",
        "specexport/checkpoints/named.py",
    ),
    "compiled": (
        "specexport/passes/quantize_weights.py", "specexport/passes/weight_blocks.py", "specexport/graph/plan.py",
        "specexport/graph/compiled.py", "specexport/passes/window_operators.py",
        "specexport/passes/packed_weights.py", "specexport/passes/linear_layers.py",
    ),
    "compiled for an engine": (
        "specexport/tensorrt/lowering/attention_inputs.py", "specexport/graph/plan.py",
        "specexport/passes/layer_path.py", "specexport/graph/compiled.py",
    ),
    "parity": (
        "specexport/parity/target.py", "specexport/parity/path.py", "specexport/parity/host.py",
        "specexport/graph/compiled.py", "specruntime/engines/windows.py", "specruntime/engines/onnxruntime.py",
    ),
    "draft parity": (
        "specexport/parity/draft_reference.py", "specexport/graph/compiled.py", "specruntime/engines/protocol.py",
        "specruntime/engines/onnx_buffers.py",
    ),
    "fidelity": (
        "specexport/parity/fidelity.py", "specexport/checkpoints/fitting.py",
        "specexport/passes/host_numbers.py", "specruntime/engines/windows.py", "specruntime/text/codec.py",
    ),
    "engine": ("specexport/tensorrt/compile.py", "specexport/tensorrt/engine_report.py"),
    "engine weights": ("specexport/tensorrt/weights/quantise.py", "specexport/passes/graph_builder.py"),
    "tokenizer": (
        "specexport/checkpoints/loading.py", "specexport/checkpoints/random_model.py",
        "specexport/tokenizer/gguf_rules.py",
        "specexport/tokenizer/__init__.py",
    ),
    "bundle": ("specexport/tokenizer/files.py", "specruntime/manifest/schema.py", "specexport/bundle/record.py"),
}  # fmt: skip


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both packages' sources, to be changed by a test and put back."""
    place = tmp_path_factory.mktemp("copied")
    for name, directory in PACKAGES.items():
        shutil.copytree(
            directory, place / name, ignore=lambda at, names: [n for n in names if n == "__pycache__"]
        )
    return {name: place / name for name in PACKAGES}


Change = Callable[[str], None]


@pytest.fixture
def change(copied: dict[str, Path]) -> Iterator[Change]:
    """Adds a line to a file of the copy."""
    before: dict[Path, str] = {}

    def add(name: str) -> None:
        path = copied[name.partition("/")[0]].parent / name
        before[path] = path.read_text()
        path.write_text(before[path] + "\nCHANGED = True\n")

    yield add
    for path, text in before.items():
        path.write_text(text)


@pytest.mark.parametrize(
    ("stage", "file"), [(stage, file) for stage in DECIDED_BY for file in DECIDED_BY[stage]]
)
def test_a_change_of_what_decides_an_entry_changes_its_key(
    copied: dict[str, Path], change: Change, stage: str, file: str
) -> None:
    before = Sources(copied).digest(*STAGES[stage])
    change(file)
    assert Sources(copied).digest(*STAGES[stage]) != before


@pytest.mark.parametrize(
    "stage", sorted(STAGES.keys() - {"bundle"})
)  # a session of a batch is part of an open bundle
def test_no_stage_is_keyed_by_a_wing(stage: str) -> None:
    modules, _ = Sources(PACKAGES).closure(*STAGES[stage])
    assert {module for module in modules if ".".join(module.split(".")[:2]) in WINGS} == set()


def test_every_module_that_fills_the_cache_is_keyed_by_its_own_imports() -> None:
    """But for a file of a wheel, which is kept as it was published."""
    keyed, filling = set(), set()
    for path in PACKAGES["specexport"].rglob("*.py"):
        parts = path.relative_to(PACKAGES["specexport"]).with_suffix("").parts
        name = ".".join(("specexport", *parts)).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id in ("cached_entry", "measured_once"):
                    filling.add(name)
                if node.func.id == "code_digest":
                    keyed.add(name)
                    own = isinstance(node.args[0], ast.Name) and node.args[0].id == "__name__"
                    assert own or name == "specexport.bundle.writer"
    assert keyed >= filling - {"specexport.checkpoints.wheel", "specexport.cache.entries"}
    assert keyed == {modules[0] for modules in STAGES.values()} - {"specexport.build"} | {
        "specexport.bundle.writer"
    }


def test_what_decides_end_tokens_changes_the_canonical_key_and_a_rebuild_takes_it(
    cache: Path, copied: dict[str, Path], change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    def built() -> tuple[str, tuple[int, ...]]:
        target = random_target()
        key = canonical_key("0" * 64, precision="fp32", capacity=32, reference_tokens=8)
        found = export_canonical(
            key, lambda: load_checkpoint(target, "fp32"), capacity=32, reference_tokens=8
        )
        return key, found.eos_token_ids

    read_from(copied, monkeypatch)
    key, ends = built()
    monkeypatch.setattr(checkpoint, "end_token_ids", lambda *_: (7,))
    assert built() == (key, ends), "it comes from the cache"
    change("specexport/tokenizer/files.py")
    read_from(copied, monkeypatch)
    changed, fresh = built()
    assert changed != key and ends != fresh == (7,)


def test_the_draft_is_keyed_by_how_it_is_loaded(
    copied: dict[str, Path], change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key() -> str:
        read_from(copied, monkeypatch)
        return canonical_draft_key("0", "1", precision="fp32", capacity=8, candidates=4, reference_tokens=4)

    before = key()
    assert before == key()
    change("specexport/draft_models/medusa.py")
    assert key() != before


def read_from(packages: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are taken from these sources as they are now."""
    sources = Sources(packages)
    monkeypatch.setattr(code_digest, "_installed", lambda: sources)
    code_digest.code_digest.cache_clear()


@pytest.fixture(autouse=True)
def installed_again() -> Iterator[None]:
    yield
    code_digest.code_digest.cache_clear()


def write(place: Path, **files: str) -> dict[str, Path]:
    """A package `own` of these modules; `below__x` is x of the package below."""
    (place / "own" / "below").mkdir(parents=True)
    for name in ("__init__", "below____init__", *files):
        path = place / "own" / f"{name.replace('below__', 'below/')}.py"
        path.write_text(files.get(name, ""))
    return {"own": place / "own"}


def closure(packages: dict[str, Path], module: str) -> tuple[set[str], set[str]]:
    own, others = Sources(packages).closure(module)
    return set(own), set(others)


def test_imports_are_followed_where_they_are_made(tmp_path: Path) -> None:
    packages = write(
        tmp_path,
        a="import json\nimport torch.nn\nfrom own import b\n"
        "if TYPE_CHECKING:\n    import own.typed\nelse:\n    import own.untyped",
        b="def late():\n    with open():\n        from own.below import x as y, z",
        untyped="try:\n    import own.c\nexcept ImportError:\n    import numpy",
        c="from own.a import late",
        typed="", alone="", below__x="class A:\n    import gguf", below____init__="from own.d import z", d="",
        __init__="from own.alone import public",
    )  # fmt: skip
    own = {"own.a", "own.b", "own.untyped", "own.c", "own.d", "own.below", "own.below.x"}
    assert closure(packages, "own.a") == (own, {"torch", "numpy", "gguf"})


def test_the_outermost_package_counts_where_a_name_is_taken_from_it(tmp_path: Path) -> None:
    packages = write(tmp_path, a="from own import public", b="import own", public_home="",
                     __init__="from own.public_home import public")  # fmt: skip
    for module in ("own.a", "own.b"):
        assert closure(packages, module)[0] == {module, "own", "own.public_home"}
    assert closure(packages, "own.public_home")[0] == {"own.public_home"}


@pytest.mark.parametrize(
    "text", ["import own.gone", "from own.gone import x", "from own.below.gone import x"]
)
def test_a_module_that_is_not_there_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        ModuleNotFoundError, match=r"own\..*gone is imported and has no source in .*own; install"
    ):
        closure(write(tmp_path, a=text), "own.a")
    with pytest.raises(ModuleNotFoundError, match=r"own\.none"):
        closure(write(tmp_path / "other"), "own.none")


def test_the_version_of_a_library_counts_where_it_can_decide_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = write(tmp_path, a="import onnx_ir, numpy, yaml", b="import json")
    found = {name: Sources(packages).digest(f"own.{name}") for name in "ab"}
    usual = code_digest._library_version
    for library, changes in (("onnx_ir", True), ("numpy", True), ("yaml", False), ("torch", False)):
        monkeypatch.setattr(
            code_digest, "_library_version", lambda name, other=library: "0" if name == other else usual(name)
        )
        assert (Sources(packages).digest("own.a") != found["a"]) is changes
        assert Sources(packages).digest("own.b") == found["b"]
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("name", "found"), [("onnx_ir", True), ("torch", True), ("yaml", True), ("no_such", False)]
)
def test_versions_are_found_by_import_name(name: str, found: bool) -> None:
    assert (code_digest._library_version(name) != "none") is found
