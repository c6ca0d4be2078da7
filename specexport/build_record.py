"""What a bundle says of itself: the manifest a runtime reads, and the build record a person reads."""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from specexport.bundle_writer import record_files
from specexport.compiled_graph import CompiledGraph
from specexport.currency import LIBRARIES
from specexport.parity import ParityReport
from specexport.recipe import NgramDraft as NgramRecipe
from specexport.recipe import Recipe
from specexport.step_times import measure_step_times
from specexport.tensorrt.compile import CompiledEngine
from specexport.tokenizer_files import describe_tokenizer
from specruntime.errors import BackendIncompatible, BackendMissing
from specruntime.manifest import (
    SCHEMA_VERSION,
    CheckPrompt,
    CheckSpec,
    DraftSpec,
    GraphSpec,
    Manifest,
    NgramDraft,
    NoneDraft,
)
from specruntime.manifest import ModelDraft as ModelDraftSpec


@dataclass(frozen=True)
class BuiltGraph:
    """A compiled graph past its parity check; `engine` is the compiler's report where one made an engine file."""

    compiled: CompiledGraph
    parity: ParityReport
    engine: CompiledEngine | None = None


def build_record(recipe: Recipe, graphs: Mapping[str, BuiltGraph], root: Path) -> dict[str, object]:
    """Versions, parity, passes and step times of the graphs already copied to `root`."""
    versions = {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES}
    return {
        "machine": {"processor": platform.processor() or platform.machine(), "system": platform.platform()},
        "versions": versions,
        "graphs": {
            name: {
                "checkpoint": graph.compiled.canonical.name,
                "key": graph.compiled.key,
                "parity": asdict(graph.parity) | {"tolerance": recipe.parity.tolerance},
                "passes": [asdict(report) for report in graph.compiled.passes],
                "engine": graph.engine.model_dump(mode="json") if graph.engine is not None else None,
                **_step_times(graph, name, root),
            }
            for name, graph in graphs.items()
        },
    }


def _step_times(graph: BuiltGraph, name: str, root: Path) -> dict[str, object]:
    """`step_ms` by width, or null and `step_ms_reason` where this machine cannot run the engine it built."""
    try:
        return {"step_ms": measure_step_times(_placed(graph, name), root)}
    except (BackendMissing, BackendIncompatible) as error:  # a device this host lacks: parity ran on its CPU
        return {"step_ms": None, "step_ms_reason": f"the build host cannot run the engine: {error}"}


def bundle_manifest(recipe: Recipe, graphs: Mapping[str, BuiltGraph], root: Path) -> Manifest:
    """The manifest of a bundle whose files are all in `root` by now."""
    target = graphs["target"].compiled.canonical
    return Manifest(
        schema_version=SCHEMA_VERSION,
        name=recipe.name,
        producer=f"specexport {version('specexport')}",
        precision=recipe.precision,
        target=_placed(graphs["target"], "target"),
        draft=_draft_spec(recipe, graphs),
        eos_token_ids=target.eos_token_ids,
        tokenizer=describe_tokenizer(root, "tokenizer") if target.tokenizer is not None else None,
        rope=target.rope,
        check=_check_spec(recipe),
        files=record_files(root),
    )


def _placed(graph: BuiltGraph, directory: str) -> GraphSpec:
    """The graph's entry with its file's path inside the bundle."""
    spec = graph.compiled.spec
    return spec.model_copy(update={"file": f"{directory}/{spec.file}"})


def _draft_spec(recipe: Recipe, graphs: Mapping[str, BuiltGraph]) -> DraftSpec:
    draft = recipe.draft
    if isinstance(draft, NgramRecipe):
        return NgramDraft(k=draft.k, max_n=draft.max_n, min_n=draft.min_n)
    if draft.kind == "model":
        return ModelDraftSpec(k=draft.k, fused=draft.fused, graph=_placed(graphs["draft"], "draft"))
    return NoneDraft()


def _check_spec(recipe: Recipe) -> CheckSpec:
    prompts = tuple(
        CheckPrompt(id=f"prompt-{n}", text=prompt, chat=recipe.check.chat)
        if isinstance(prompt, str)
        else CheckPrompt(id=f"prompt-{n}", ids=prompt, chat=False)
        for n, prompt in enumerate(recipe.check.prompts)
    )
    return CheckSpec(prompts=prompts, max_new_tokens=recipe.check.max_new_tokens)
