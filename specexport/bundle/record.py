"""What a bundle says of itself: the manifest a runtime reads, and the build record a person reads."""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from specexport.bundle.times import ProfileTimes
from specexport.bundle.up_to_date import LIBRARIES
from specexport.bundle.writer import record_files
from specexport.draft_kinds.canonical import read_tapped
from specexport.draft_kinds.manifest import adaptive_spec, draft_spec
from specexport.graph.compiled import CompiledGraph
from specexport.graph.shared_weights import SHARED_GRAPH_NAME
from specexport.parity.draft import DraftParityReport
from specexport.parity.fidelity import FidelityReport
from specexport.parity.target import ParityReport
from specexport.recipe.schema import EagleDraft, MedusaDraft, Recipe
from specexport.tensorrt.compile import CompiledEngine
from specexport.tokenizer.files import describe_tokenizer
from specruntime.manifest.schema import (
    SCHEMA_VERSION,
    CheckPrompt,
    CheckSpec,
    DraftSpec,
    GraphSpec,
    Manifest,
    PrepackedWeights,
)


@dataclass(frozen=True)
class BuiltGraph:
    """A compiled graph past its parity check.

    `engine`: the compiler's report, where one made an engine file.
    `fidelity`: what the weights' format costs, where the recipe gives a text.
    `warnings`: what people should know of it.
    `prepacked`: its packed weights in the bundle.
    `shared`: its weight files there, where some are another graph's.
    """

    compiled: CompiledGraph
    parity: ParityReport | DraftParityReport
    engine: CompiledEngine | None = None
    fidelity: FidelityReport | None = None
    warnings: tuple[str, ...] = ()
    prepacked: PrepackedWeights | None = None
    shared: tuple[str, ...] = ()

    def placed(self, directory: str) -> GraphSpec:
        """The manifest's entry of the graph, its file in `directory` of the bundle."""
        spec = self.compiled.spec
        profiles = tuple(
            p if p.file is None else p.model_copy(update={"file": f"{directory}/{p.file}"})
            for p in spec.profiles
        )
        engine = spec.engine
        if self.prepacked is not None:
            engine = engine.model_copy(update={"prepacked": self.prepacked})
        file = SHARED_GRAPH_NAME if self.shared else f"{directory}/{spec.file}"
        return spec.model_copy(
            update={"file": file, "weights": self.shared, "profiles": profiles, "engine": engine}
        )


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
    """The manifest of a bundle whose files are all in `root` by now."""
    target = graphs["target"].compiled.canonical
    return Manifest(
        schema_version=SCHEMA_VERSION,
        name=recipe.name,
        producer=f"specexport {version('specexport')}",
        precision=recipe.shown_precision,
        target=graphs["target"].placed("target"),
        draft=_draft_spec(recipe, graphs),
        adaptive=adaptive_spec(recipe.draft, {name: found.by_name for name, found in times.items()}),
        eos_token_ids=target.eos_token_ids,
        tokenizer=describe_tokenizer(root, "tokenizer") if target.tokenizer is not None else None,
        rope=target.rope,
        check=_check_spec(recipe),
        files=record_files(root),
    )


def _draft_spec(recipe: Recipe, graphs: Mapping[str, BuiltGraph]) -> DraftSpec:
    if "draft" not in graphs:
        return draft_spec(recipe.draft, None)
    reads_features = isinstance(recipe.draft, (EagleDraft, MedusaDraft))
    tapped = read_tapped(graphs["draft"].compiled.canonical) if reads_features else None
    return draft_spec(recipe.draft, graphs["draft"].placed("draft"), tapped)


def _check_spec(recipe: Recipe) -> CheckSpec:
    prompts = tuple(
        CheckPrompt(id=f"prompt-{n}", text=prompt, chat=recipe.check.chat)
        if isinstance(prompt, str)
        else CheckPrompt(id=f"prompt-{n}", ids=prompt, chat=False)
        for n, prompt in enumerate(recipe.check.prompts)
    )
    return CheckSpec(prompts=prompts, max_new_tokens=recipe.check.max_new_tokens)
