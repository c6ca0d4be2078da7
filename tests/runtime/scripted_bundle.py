"""A bundle over scripted engines: what serves many requests is tested on sessions that cost nothing."""

from collections.abc import Callable
from pathlib import Path

from specruntime.bundle import LoadedBundle
from specruntime.drafts import DraftSpec, NgramDraft
from specruntime.manifest.schema import GraphSpec
from tests.runtime.scripted_engine import (
    DRAFT_STEP,
    Language,
    ScriptedContext,
    scripted_manifest,
    target_spec,
)
from tests.runtime.stacked_batch import StackedBatch
from tests.scripted_clock import STEP

NGRAM = NgramDraft(k=4, max_n=3, min_n=1)


class ScriptedEngine:
    """An `Engine` whose contexts speak one language; `failing` is asked before each run of the n-th context."""

    def __init__(self, spec: GraphSpec, language: Language) -> None:
        self.spec = spec
        self.contexts: list[ScriptedContext] = []
        self.step_seconds = STEP
        self.failing: Callable[[int], bool] = lambda context: False
        self.refuse_contexts = False
        self._language = language

    def new_context(self) -> ScriptedContext:
        if self.refuse_contexts:
            raise MemoryError("scripted shortage")
        context, number = ScriptedContext(self.spec.for_one(), self._language), len(self.contexts)
        context.failing = lambda: self.failing(number)
        context.step_seconds = self.step_seconds
        self.contexts.append(context)
        return context

    def new_batch(self, rows: int) -> StackedBatch:
        return StackedBatch(self.spec, rows, self.new_context)

    def close(self) -> None: ...


def scripted_bundle(
    *,
    draft: DraftSpec = NGRAM,
    language: Language | None = None,
    capacity: int = 64,
    eos: tuple[int, ...] = (),
    batch: int = 1,
) -> tuple[LoadedBundle, ScriptedEngine]:
    """A bundle without tokenizer, and its engine."""
    spec = target_spec(capacity=capacity, batch=batch)
    engine = ScriptedEngine(spec, language or Language())
    graph = draft.own_graph
    drafting = None
    if graph is not None:
        drafting = ScriptedEngine(graph, language or Language())
        drafting.step_seconds = DRAFT_STEP
    return LoadedBundle(scripted_manifest(spec, draft, eos), Path(), engine, drafting), engine
