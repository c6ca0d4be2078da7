"""Checks whether a bundle is up to date: what its recipe would build now. Cheap: no checkpoint is loaded, torch is not
imported.
"""

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from specexport.backends import backend_of
from specexport.bundle.writer import BUILD_RECORD_NAME
from specexport.cache.code_digest import code_digest
from specexport.cache.entries import cache_directory, text_sha256
from specexport.cache.held_entries import hold
from specexport.recipe.schema import Recipe
from specruntime.bundle import load_manifest
from specruntime.errors import SpecError
from specruntime.manifest.schema import MANIFEST_NAME

LIBRARIES = (
    "specexport",
    "specruntime",
    "torch",
    "transformers",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "onnxruntime",
    "optimum",
)


def default_output(recipe: Recipe) -> Path:
    """Return the default output directory of a recipe: `./<recipe name>.bundle`."""
    return Path(f"{recipe.name}.bundle")


def build_key(recipe: Recipe, digests: Mapping[str, str]) -> str:
    """Return the digest of everything that decides the bundle: recipe, checkpoints (`checkpoint_digests`), code and
    libraries, and the processor where weights are packed for it."""
    backend = backend_of(recipe.backend)
    libraries = [f"{name} {_version(name)}" for name in (*LIBRARIES, *backend.libraries(recipe))]
    written = [recipe.model_dump_json(), *recipe.left_to_checkpoint]
    parts = [
        *written,
        code_digest("specexport.build", type(recipe.draft).__module__),
        *digests.values(),
        *libraries,
        *backend.processor(),
    ]
    return text_sha256("|".join(parts))


def is_in_use(output: Path, root: Path) -> bool:
    """Hold the bundle in `root` where `output`, its place, lies in the cache; False without such a bundle."""
    cached = cache_directory().resolve() in output.resolve().parents
    return not cached or hold(root / MANIFEST_NAME)


def is_current(output: Path, key: str) -> bool:
    """Whether `output` is an intact bundle that was built from the same inputs."""
    try:
        load_manifest(output)
        record = json.loads((output / BUILD_RECORD_NAME).read_text())
    except (SpecError, OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("key") == key


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"
