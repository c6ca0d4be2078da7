"""Writes a bundle, and what it says of itself: the manifest a runtime reads, the build record a person reads.

Both say how long one window of each width takes on this machine, which is measured here.
"""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from shutil import copyfile, copytree
from statistics import median

import numpy as np
import yaml
from numpy.typing import NDArray

from specexport.backends import BackendBuild
from specexport.bundle.writer import (
    LIBRARIES,
    is_in_use,
    record_files,
    staged_bundle,
    write_build_record,
    write_manifest,
)
from specexport.context import BuildContext
from specexport.draft_kinds.lookup import lookup_spec
from specexport.graph.stages import BuiltGraph
from specexport.parity.host import opened_context
from specexport.recipe.schema import Recipe
from specexport.tokenizer.files import describe_tokenizer
from specruntime import clock
from specruntime.bundle import load_manifest
from specruntime.drafts import DraftSpec
from specruntime.engines import EngineOptions
from specruntime.engines.protocol import Context, Window
from specruntime.engines.windows import stage
from specruntime.errors import BackendIncompatible, BackendMissing
from specruntime.manifest.graph import LOGITS_SUFFIX, SELF_PROFILE
from specruntime.manifest.schema import (
    SCHEMA_VERSION,
    AdaptiveSpec,
    CheckPrompt,
    CheckSpec,
    GraphSpec,
    Manifest,
)

RECIPE_NAME = "recipe.yaml"
CONTEXT_ROWS = 200
_REPEATS = 5


@dataclass(frozen=True)
class ProfileTimes:
    """Median milliseconds by profile name; none, and the `reason`, where this machine cannot run the engine."""

    by_name: dict[str, float] = field(default_factory=dict)
    reason: str | None = None

    def record(self, spec: GraphSpec) -> dict[str, object]:
        """For the build record: `step_ms` by width, and by profile where a width has several."""
        if self.reason is not None:
            return {"step_ms": None, "step_ms_reason": self.reason}
        usual = [p for p in spec.profiles if not p.name.endswith(LOGITS_SUFFIX) and p.name != SELF_PROFILE]
        times = {str(p.width): self.by_name[p.name] for p in reversed(usual or spec.profiles)}
        widths = dict(sorted(times.items(), key=lambda item: int(item[0])))
        return {"step_ms": widths, "profile_ms": self.by_name}


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
    for compiled in (graph.compiled, *((graph.window.compiled,) if graph.window is not None else ())):
        for name in compiled.files:
            copyfile(compiled.directory / name, destination / name)


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
                **({"window": graph.window.record()} if graph.window is not None else {}),
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
    lookup = draft.extra_lookup
    return AdaptiveSpec(
        step_ms={name: ms for name, ms in times["target"].items() if name != SELF_PROFILE},
        draft_ms={
            name: ms for name, ms in draft.step_times(times).items() if not name.endswith(LOGITS_SUFFIX)
        },
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


def measure_step_times(
    spec: GraphSpec, root: Path, *, options: EngineOptions | None = None, repeats: int = _REPEATS
) -> dict[str, float]:
    """As `measure_window_times`, by width; of profiles of one width the first, which computes no more than it must."""
    times = measure_window_times(spec, root, options=options, repeats=repeats)
    return {str(profile.width): times[profile.name] for profile in reversed(spec.profiles)}


def measure_window_times(
    spec: GraphSpec, root: Path, *, options: EngineOptions | None = None, repeats: int = _REPEATS
) -> dict[str, float]:
    """Median milliseconds by profile name, about `CONTEXT_ROWS` tokens in the cache (fewer where they do not fit).

    The windows take turns, so that what disturbs the machine for a while disturbs all of them.
    """
    with opened_context(spec, root, options) as context:
        windows = [context.window(profile.name) for profile in spec.profiles]
        rounds = [[_time_window(context, window) for window in windows] for _ in range(repeats)]
        medians = (round(1e3 * median(times), 3) for times in zip(*rounds, strict=True))
        return dict(zip((window.profile.name for window in windows), medians, strict=True))


def _time_window(context: Context, window: Window) -> float:
    stage_window(context, window)
    began = clock.now()
    context.run(window)
    return clock.now() - began


def stage_window(
    context: Context,
    window: Window,
    ids: NDArray[np.int64] | None = None,
    *,
    hidden: NDArray[np.float32] | None = None,
    rows: NDArray[np.int64] | None = None,
) -> None:
    """Put a window of ids [W], 0 where none are given, behind about `CONTEXT_ROWS` tokens of the cache."""
    width = window.profile.width
    start = min(CONTEXT_ROWS, context.spec.capacity - width - context.spec.drafted + 1)
    stage(window, np.zeros(width, np.int64) if ids is None else ids, start, hidden=hidden, rows=rows)


def measure_profile_times(spec: GraphSpec, root: Path) -> ProfileTimes:
    """Time every profile of a graph whose files lie in `root`."""
    try:
        return ProfileTimes(measure_window_times(spec, root))
    except (BackendMissing, BackendIncompatible) as error:  # a device this host lacks: parity ran on its CPU
        return ProfileTimes(reason=f"the build host cannot run the engine: {error}")
