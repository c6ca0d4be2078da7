"""Builds a bundle from a recipe: load, export, lower, check parity, write.

The order of stages and nothing else; each stage is a function of its own module.
"""

import platform
from collections.abc import Callable
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from shutil import copyfile, copytree

import yaml
from specruntime.bundle import load_manifest
from specruntime.errors import SpecError
from specruntime.manifest import (
    SCHEMA_VERSION,
    CheckPrompt,
    CheckSpec,
    DraftSpec,
    GraphSpec,
    Manifest,
    ModelDraft,
    NgramDraft,
    NoneDraft,
)

from specexport.bundle_writer import BUILD_RECORD_NAME, record_files, staged_bundle, write_build_record, write_manifest
from specexport.checkpoint import Checkpoint, load_checkpoint, source_digest
from specexport.compiled_graph import CompiledGraph, check_parity, compile_graph, graph_key
from specexport.graph_files import GRAPH_NAME, WEIGHTS_NAME, draft_profiles, target_profiles
from specexport.parity import ParityReport, require_parity
from specexport.recipe import ModelDraft as ModelDraftRecipe
from specexport.recipe import NgramDraft as NgramDraftRecipe
from specexport.recipe import Recipe
from specexport.sources.cache import text_sha256
from specexport.step_times import measure_step_times
from specexport.tokenizer_files import describe_tokenizer
from specexport.vocabulary import require_shared_vocabulary

Announce = Callable[[str], None]
RECIPE_NAME = "recipe.yaml"


def default_output(recipe: Recipe) -> Path:
    """Where a recipe's bundle goes when nobody says: `./<recipe name>.bundle`."""
    return Path(f"{recipe.name}.bundle")


def build(recipe: Recipe, output: Path | None = None, *, force: bool = False, announce: Announce = lambda stage: None) -> Path:
    """Writes the bundle of `recipe` to `output` and returns its path; unchanged stages are taken from the cache.

    `announce` hears the name of each stage as it begins. Raises a `BuildError` that names cause and cure; the old
    bundle, if any, is untouched then.
    """
    output = output or default_output(recipe)
    announce("fetching the checkpoint")
    checkpoints = _Checkpoints(recipe, announce)
    key = build_key(recipe, checkpoints)
    if not force and _is_current(output, key):
        announce("nothing changed")
        return output
    target = _compile_target(recipe, checkpoints, force)
    draft = _compile_draft(recipe, checkpoints, force)
    parity = {
        name: _require_parity(recipe, name, graph, load, announce, force)
        for name, graph, load in (("target", target, checkpoints.load_target), ("draft", draft, checkpoints.load_draft))
        if graph is not None
    }
    checkpoints.release()
    announce("writing the bundle")
    with staged_bundle(output) as root:
        _copy_graph(target, root / "target")
        if draft is not None:
            _copy_graph(draft, root / "draft")
        if target.tokenizer is not None:
            copytree(target.tokenizer, root / "tokenizer")
        (root / RECIPE_NAME).write_text(_resolved(recipe))
        write_build_record(root, _build_record(recipe, key, target, draft, parity, root, announce))
        write_manifest(root, _manifest(recipe, target, draft, root))
        load_manifest(root, verify=False)
    return output


class _Checkpoints:
    """The recipe's checkpoints, loaded when first needed and kept until `release`."""

    def __init__(self, recipe: Recipe, announce: Announce) -> None:
        self._recipe = recipe
        self._announce = announce
        self.target_digest = source_digest(recipe.target)
        draft = recipe.draft
        self.draft_digest = source_digest(draft, self.target_digest) if isinstance(draft, ModelDraftRecipe) else None

    @cached_property
    def _target(self) -> Checkpoint:
        self._announce("loading the target")
        checkpoint = load_checkpoint(self._recipe.target, self._recipe.precision)
        self._announce("exporting the target")
        return checkpoint

    @cached_property
    def _draft(self) -> Checkpoint:
        assert isinstance(self._recipe.draft, ModelDraftRecipe)
        target = self._target
        self._announce("loading the draft")
        checkpoint = load_checkpoint(self._recipe.draft, self._recipe.precision, target=target)
        self._announce("exporting the draft")
        return checkpoint

    def load_target(self) -> Checkpoint:
        return self._target

    def load_draft(self) -> Checkpoint:
        return self._draft

    def release(self) -> None:
        """Frees the PyTorch weights."""
        self.__dict__.pop("_target", None)
        self.__dict__.pop("_draft", None)


def build_key(recipe: Recipe, checkpoints: "_Checkpoints") -> str:
    """Of everything that decides the bundle: recipe, checkpoints, code and libraries."""
    graph = graph_key(
        checkpoints.target_digest, precision=recipe.precision, capacity=recipe.capacity, backend=recipe.backend
    )
    return text_sha256(f"{recipe.model_dump_json()}|{graph}|{checkpoints.draft_digest}|{version('specexport')}")


def _is_current(output: Path, key: str) -> bool:
    """Whether `output` is an intact bundle built from the same inputs."""
    try:
        load_manifest(output)
        record = yaml.safe_load((output / BUILD_RECORD_NAME).read_text())
    except (SpecError, OSError, yaml.YAMLError):
        return False
    return isinstance(record, dict) and record.get("key") == key


def _compile_target(recipe: Recipe, checkpoints: _Checkpoints, force: bool) -> CompiledGraph:
    return compile_graph(
        graph_key(checkpoints.target_digest, precision=recipe.precision, capacity=recipe.capacity, backend=recipe.backend),
        checkpoints.load_target,
        capacity=recipe.capacity,
        backend=recipe.backend,
        profiles=target_profiles(recipe.verify_widths, recipe.prefill_chunk),
        batch=recipe.batch,
        force=force,
    )


def _compile_draft(recipe: Recipe, checkpoints: _Checkpoints, force: bool) -> CompiledGraph | None:
    if checkpoints.draft_digest is None:
        return None
    graph = compile_graph(
        graph_key(checkpoints.draft_digest, precision=recipe.precision, capacity=recipe.draft_capacity, backend=recipe.backend),
        checkpoints.load_draft,
        capacity=recipe.draft_capacity,
        backend=recipe.backend,
        profiles=draft_profiles(recipe.prefill_chunk),
        batch=recipe.batch,
        force=force,
    )
    target = _compile_target(recipe, checkpoints, False)
    require_shared_vocabulary(
        (target.name, target.tokenizer, target.spec.vocab_size), (graph.name, graph.tokenizer, graph.spec.vocab_size)
    )
    return graph


def _require_parity(
    recipe: Recipe,
    name: str,
    graph: CompiledGraph,
    load: Callable[[], Checkpoint],
    announce: Announce,
    force: bool,
) -> ParityReport:
    announce(f"checking the {name} against PyTorch")
    report = check_parity(graph, load, tokens=recipe.parity.tokens, force=force)
    require_parity(report, recipe.parity.tolerance, name)
    return report


def _copy_graph(graph: CompiledGraph, destination: Path) -> None:
    destination.mkdir()
    for name in (GRAPH_NAME, WEIGHTS_NAME):
        copyfile(graph.directory / name, destination / name)


def _resolved(recipe: Recipe) -> str:
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _build_record(
    recipe: Recipe,
    key: str,
    target: CompiledGraph,
    draft: CompiledGraph | None,
    parity: dict[str, ParityReport],
    root: Path,
    announce: Announce,
) -> dict[str, object]:
    announce("timing the widths")
    graphs = {"target": target} | ({"draft": draft} if draft is not None else {})
    libraries = ("specexport", "specruntime", "torch", "transformers", "onnx", "onnxruntime", "optimum")
    return {
        "key": key,
        "machine": {"processor": platform.processor() or platform.machine(), "system": platform.platform()},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in libraries}},
        "graphs": {
            name: {
                "checkpoint": graph.name,
                "key": graph.key,
                "parity": {
                    "logit_difference": parity[name].logit_difference,
                    "layer_difference": list(parity[name].layer_difference),
                    "tokens": parity[name].tokens,
                    "tolerance": recipe.parity.tolerance,
                },
                "passes": [{"name": r.name, "changed": r.changed, "reasons": list(r.reasons)} for r in graph.passes],
                "step_ms": measure_step_times(_placed(graph, name), root),
            }
            for name, graph in graphs.items()
        },
    }


def _placed(graph: CompiledGraph, directory: str) -> GraphSpec:
    return graph.spec.model_copy(update={"file": f"{directory}/{graph.spec.file}"})


def _manifest(recipe: Recipe, target: CompiledGraph, draft: CompiledGraph | None, root: Path) -> Manifest:
    return Manifest(
        schema_version=SCHEMA_VERSION,
        name=recipe.name,
        producer=f"specexport {version('specexport')}",
        precision=recipe.precision,
        target=_placed(target, "target"),
        draft=_draft_spec(recipe, draft),
        eos_token_ids=target.eos_token_ids,
        tokenizer=describe_tokenizer(root, "tokenizer") if target.tokenizer is not None else None,
        rope=target.rope,
        check=_check_spec(recipe),
        files=record_files(root),
    )


def _draft_spec(recipe: Recipe, draft: CompiledGraph | None) -> DraftSpec:
    if isinstance(recipe.draft, NgramDraftRecipe):
        return NgramDraft(k=recipe.draft.k, max_n=recipe.draft.max_n, min_n=recipe.draft.min_n)
    if isinstance(recipe.draft, ModelDraftRecipe):
        assert draft is not None
        return ModelDraft(k=recipe.draft.k, graph=_placed(draft, "draft"))
    return NoneDraft()


def _check_spec(recipe: Recipe) -> CheckSpec:
    prompts = tuple(
        CheckPrompt(id=f"prompt-{n}", text=prompt, chat=recipe.check.chat)
        if isinstance(prompt, str)
        else CheckPrompt(id=f"prompt-{n}", ids=prompt, chat=False)
        for n, prompt in enumerate(recipe.check.prompts)
    )
    return CheckSpec(prompts=prompts, max_new_tokens=recipe.check.max_new_tokens)
