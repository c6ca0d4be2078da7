"""Builds a bundle from a recipe: load, export, lower, check parity, write.

The order of stages and nothing else; each stage is a function of its own module.
"""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from shutil import copyfile, copytree

import yaml

from specexport.build_record import LIBRARIES, BuiltGraph, build_record, bundle_manifest
from specexport.bundle_writer import BUILD_RECORD_NAME, staged_bundle, write_build_record, write_manifest
from specexport.canonical_graph import CanonicalGraph, canonical_key, code_digest, export_canonical
from specexport.checkpoint import Checkpoint, load_checkpoint, source_digest
from specexport.compiled_graph import check_parity, compile_graph
from specexport.graph_files import draft_profiles, target_profiles
from specexport.parity import require_parity
from specexport.recipe import ModelDraft, Recipe
from specexport.sources.cache import text_sha256
from specexport.vocabulary import require_shared_vocabulary
from specruntime.bundle import load_manifest
from specruntime.errors import SpecError
from specruntime.manifest import Profile

Announce = Callable[[str], None]
RECIPE_NAME = "recipe.yaml"


def _silent(stage: str) -> None: ...


def default_output(recipe: Recipe) -> Path:
    """Where a recipe's bundle goes when nobody says: `./<recipe name>.bundle`."""
    return Path(f"{recipe.name}.bundle")


def build(
    recipe: Recipe, output: Path | None = None, *, force: bool = False, announce: Announce = _silent
) -> Path:
    """Writes the bundle of `recipe` to `output` and returns its path; unchanged stages are taken from the cache.

    `announce` hears the name of each stage as it begins. Raises a `BuildError` that names cause and cure; the old
    bundle, if any, is untouched then.
    """
    output = output or default_output(recipe)
    announce("fetching the checkpoint")
    checkpoints = _Checkpoints(recipe, announce)
    key = _build_key(recipe, checkpoints)
    if not force and _is_current(output, key):
        announce("nothing changed")
        return output
    stages = _Stages(recipe, force, announce)
    canonical = _export(recipe, checkpoints, force)
    checkpoints.release()
    graphs = {name: stages.compile(name, graph) for name, graph in canonical.items()}
    announce("writing the bundle")
    with staged_bundle(output) as root:
        for name, graph in graphs.items():
            _copy_graph(graph, root / name)
        if (tokenizer := canonical["target"].tokenizer) is not None:
            copytree(tokenizer, root / "tokenizer")
        (root / RECIPE_NAME).write_text(_resolved(recipe))
        announce("timing the widths")
        write_build_record(root, {"key": key, **build_record(recipe, graphs, root)})
        write_manifest(root, bundle_manifest(recipe, graphs, root))
        load_manifest(root, verify=False)
    return output


class _Checkpoints:
    """The recipe's checkpoints by graph name, loaded when first needed and kept until `release`."""

    def __init__(self, recipe: Recipe, announce: Announce) -> None:
        self._recipe = recipe
        self._announce = announce
        self._loaded: dict[str, Checkpoint] = {}
        self.digests = {"target": source_digest(recipe.target)}
        if isinstance(recipe.draft, ModelDraft):
            self.digests["draft"] = source_digest(recipe.draft, self.digests["target"])

    def loader(self, name: str) -> Callable[[], Checkpoint]:
        return lambda: self._load(name)

    def release(self) -> None:
        """Frees the PyTorch weights."""
        self._loaded.clear()

    def _load(self, name: str) -> Checkpoint:
        if name not in self._loaded:
            recipe = self._recipe
            target = self._load("target") if name == "draft" else None
            self._announce(f"loading the {name} into PyTorch")
            spec = recipe.draft if name == "draft" and isinstance(recipe.draft, ModelDraft) else recipe.target
            self._loaded[name] = load_checkpoint(spec, recipe.precision, target=target)
        return self._loaded[name]


class _Stages:
    """What happens to each graph after its export."""

    def __init__(self, recipe: Recipe, force: bool, announce: Announce) -> None:
        self._recipe = recipe
        self._force = force
        self._announce = announce

    def compile(self, name: str, canonical: CanonicalGraph) -> BuiltGraph:
        recipe = self._recipe
        self._announce(f"compiling the {name} for {recipe.backend.kind}")
        compiled = compile_graph(
            canonical, recipe.backend, profiles=_profiles(recipe, name), batch=recipe.batch, force=self._force
        )
        self._announce(f"checking the {name} against PyTorch")
        report = check_parity(compiled, force=self._force)
        require_parity(report, recipe.parity.tolerance, name)
        return BuiltGraph(compiled, report)


def _export(recipe: Recipe, checkpoints: _Checkpoints, force: bool) -> dict[str, CanonicalGraph]:
    """The canonical graphs by name: the target, and the draft where it is a model with the target's vocabulary."""
    capacities = {"target": recipe.capacity, "draft": recipe.draft_capacity}
    graphs = {}
    for name, digest in checkpoints.digests.items():
        tokens, capacity = recipe.parity.tokens, capacities[name]
        key = canonical_key(digest, precision=recipe.precision, capacity=capacity, reference_tokens=tokens)
        graphs[name] = export_canonical(
            key, checkpoints.loader(name), capacity=capacity, reference_tokens=tokens, force=force
        )
    sides = [(graph.name, graph.tokenizer, graph.facts.vocab_size) for graph in graphs.values()]
    for draft in sides[1:]:
        require_shared_vocabulary(sides[0], draft)
    return graphs


def _profiles(recipe: Recipe, name: str) -> tuple[Profile, ...]:
    if name == "draft":
        return draft_profiles(recipe.prefill_chunk)
    return target_profiles(recipe.verify_widths, recipe.prefill_chunk)


def _build_key(recipe: Recipe, checkpoints: _Checkpoints) -> str:
    """Of everything that decides the bundle: recipe, checkpoints, code and libraries."""
    libraries = [f"{name} {version(name)}" for name in LIBRARIES]
    digests = [recipe.model_dump_json(), code_digest("**/*.py"), *checkpoints.digests.values(), *libraries]
    return text_sha256("|".join(digests))


def _is_current(output: Path, key: str) -> bool:
    """Whether `output` is an intact bundle built from the same inputs."""
    try:
        load_manifest(output)
        record = yaml.safe_load((output / BUILD_RECORD_NAME).read_text())
    except (SpecError, OSError, yaml.YAMLError):
        return False
    return isinstance(record, dict) and record.get("key") == key


def _copy_graph(graph: BuiltGraph, destination: Path) -> None:
    destination.mkdir()
    for name in graph.compiled.files:
        copyfile(graph.compiled.directory / name, destination / name)


def _resolved(recipe: Recipe) -> str:
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
