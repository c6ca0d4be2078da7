"""Writes a bundle, and what it says of itself: the manifest a runtime reads, the build record a person reads."""

import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from shutil import copyfile, copytree

import yaml

from specexport.backends import BackendBuild
from specexport.bundle.times import ProfileTimes, measure_profile_times
from specexport.bundle.up_to_date import LIBRARIES, is_in_use
from specexport.bundle.writer import record_files, staged_bundle, write_build_record, write_manifest
from specexport.cache.context import BuildContext
from specexport.draft_kinds.lookup import lookup_spec
from specexport.draft_kinds.windows import LAW_SUFFIX
from specexport.graph.built import BuiltGraph
from specexport.graph.plan import DRAFT_PROFILE
from specexport.recipe.schema import Recipe
from specexport.tokenizer.files import describe_tokenizer
from specruntime.bundle import load_manifest
from specruntime.drafts import DraftSpec
from specruntime.manifest.schema import (
    SCHEMA_VERSION,
    AdaptiveSpec,
    CheckPrompt,
    CheckSpec,
    Manifest,
)

RECIPE_NAME = "recipe.yaml"


def write_bundle(
    output: Path,
    key: str,
    recipe: Recipe,
    backend: BackendBuild,
    graphs: Mapping[str, BuiltGraph],
    context: BuildContext,
) -> None:
    """Write graphs, tokenizer and records, and put them into the place of `output` as a whole.

    `key`: of what the bundle is built from. Raises `BundleNotWritten`.
    """
    context.announce("writing the bundle")
    with staged_bundle(output) as root:
        for name, graph in graphs.items():
            _copy_graph(graph, root / name)
        graphs = backend.place(graphs, root, context)
        if (tokenizer := graphs["target"].compiled.canonical.tokenizer) is not None:
            copytree(tokenizer, root / "tokenizer")
        document = recipe.model_dump(mode="json")
        (root / RECIPE_NAME).write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
        context.announce("timing the widths")
        times = {name: measure_profile_times(graph.placed(name), root) for name, graph in graphs.items()}
        write_build_record(root, {"key": key, **build_record(recipe, graphs, times)})
        write_manifest(root, bundle_manifest(recipe, graphs, times, root))
        load_manifest(root, verify=False)
        is_in_use(output, root)


def _copy_graph(graph: BuiltGraph, destination: Path) -> None:
    destination.mkdir()
    for name in graph.compiled.files:
        copyfile(graph.compiled.directory / name, destination / name)


def build_record(
    recipe: Recipe, graphs: Mapping[str, BuiltGraph], times: Mapping[str, ProfileTimes]
) -> dict[str, object]:
    """Versions, parity, passes and step times of the bundle's graphs."""
    versions = {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES}
    return {
        "machine": {"processor": platform.processor() or platform.machine(), "system": platform.platform()},
        "versions": versions,
        "graphs": {
            name: {
                "checkpoint": graph.compiled.canonical.name,
                "key": graph.compiled.key,
                "plan": graph.compiled.plan.describe(),
                "parity": asdict(graph.parity) | {"tolerance": recipe.parity.tolerance},
                "fidelity": asdict(graph.fidelity) if graph.fidelity is not None else None,
                "warnings": list(graph.warnings),
                "passes": [asdict(report) for report in graph.compiled.passes],
                "engine": graph.engine.model_dump(mode="json") if graph.engine is not None else None,
                **times[name].record(graph.compiled.spec),
            }
            for name, graph in graphs.items()
        },
    }


def bundle_manifest(
    recipe: Recipe, graphs: Mapping[str, BuiltGraph], times: Mapping[str, ProfileTimes], root: Path
) -> Manifest:
    """Return the manifest of a bundle whose files are all in `root` by now."""
    target = graphs["target"].compiled.canonical
    return Manifest(
        schema_version=SCHEMA_VERSION,
        name=recipe.name,
        producer=f"specexport {version('specexport')}",
        precision=recipe.shown_precision,
        target=graphs["target"].placed("target"),
        draft=_draft_spec(recipe, graphs),
        adaptive=_adaptive_spec(recipe, {name: found.by_name for name, found in times.items()}),
        eos_token_ids=target.eos_token_ids,
        tokenizer=describe_tokenizer(root, "tokenizer") if target.tokenizer is not None else None,
        rope=target.rope,
        check=_check_spec(recipe),
        files=record_files(root),
    )


def _draft_spec(recipe: Recipe, graphs: Mapping[str, BuiltGraph]) -> DraftSpec:
    own = graphs.get("draft")
    if own is None:
        return recipe.draft.spec(None, None)
    return recipe.draft.spec(own.placed("draft"), own.compiled.canonical)


def _adaptive_spec(recipe: Recipe, times: Mapping[str, Mapping[str, float]]) -> AdaptiveSpec | None:
    """Return what a dynamic length starts from; `times` are milliseconds by profile, of each graph by name."""
    draft = recipe.draft
    if not draft.follows_acceptance:
        return None
    lookup = draft.lookup_beside
    return AdaptiveSpec(
        step_ms={name: ms for name, ms in times["target"].items() if name != DRAFT_PROFILE},
        draft_ms={name: ms for name, ms in draft.step_times(times).items() if not name.endswith(LAW_SUFFIX)},
        lookup=lookup_spec(lookup) if lookup else None,
    )


def _check_spec(recipe: Recipe) -> CheckSpec:
    prompts = tuple(
        CheckPrompt(id=f"prompt-{n}", text=prompt, chat=recipe.check.chat)
        if isinstance(prompt, str)
        else CheckPrompt(id=f"prompt-{n}", ids=prompt, chat=False)
        for n, prompt in enumerate(recipe.check.prompts)
    )
    return CheckSpec(prompts=prompts, max_new_tokens=recipe.check.max_new_tokens)
