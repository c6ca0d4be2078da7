"""Who closes what: engines outlive their contexts, a failed session leaves nothing open, a closed bundle says so."""

from pathlib import Path
from weakref import WeakSet

import pytest

from specruntime.bundle import LoadedBundle, open_bundle
from specruntime.drafts import DraftSpec, ModelDraft, NgramDraft, NoneDraft
from specruntime.errors import InvalidArgument, OutOfMemory, WrongState
from specruntime.generation import complete
from specruntime.manifest.schema import GraphSpec
from specruntime.sampling.params import SamplingParams
from tests.runtime.scripted_engine import (
    Language,
    ScriptedContext,
    draft_spec,
    graph_spec,
    scripted_manifest,
    target_spec,
)
from tests.runtime.stacked_batch import StackedBatch


class ScriptedEngine:
    """Knows its contexts; refuses to be closed under one. `room` is how many contexts it has memory for."""

    def __init__(self, spec: GraphSpec, language: Language, room: int = 8) -> None:
        self.spec = spec
        self.made = 0
        self.closed = False
        self._contexts: WeakSet[ScriptedContext] = WeakSet()  # a dropped session frees its buffers
        self._language = language
        self._room = room

    def new_context(self) -> ScriptedContext:
        if len(self.open_contexts) >= self._room:
            raise OutOfMemory("no room for another context")
        context = ScriptedContext(self.spec, self._language)
        self._contexts.add(context)
        self.made += 1
        return context

    def new_batch(self, rows: int) -> StackedBatch:
        return StackedBatch(self.spec, rows, self.new_context)

    @property
    def open_contexts(self) -> list[ScriptedContext]:
        return [context for context in self._contexts if not context.closed]

    def close(self) -> None:
        assert not self.open_contexts, "closed under a context"
        self.closed = True


class Opened:
    """A loaded bundle over scripted engines, with the engines at hand."""

    def __init__(self, draft: DraftSpec, draft_room: int = 8) -> None:
        language = Language()
        self.target = ScriptedEngine(target_spec(), language)
        self.draft = None
        if isinstance(draft, ModelDraft):
            self.draft = ScriptedEngine(draft.graph, language, draft_room)
        manifest = scripted_manifest(self.target.spec, draft)
        self.bundle = LoadedBundle(manifest, Path("unused"), self.target, self.draft)


MODEL = ModelDraft(k=4, graph=draft_spec())
KINDS = [NoneDraft(), NgramDraft(k=4, max_n=3, min_n=2), MODEL]


@pytest.mark.parametrize("draft", KINDS, ids=lambda draft: draft.kind)
def test_plain_and_speculative_sessions_of_one_bundle_agree(draft: DraftSpec) -> None:
    with Opened(draft).bundle as bundle:
        params = SamplingParams(max_tokens=24)
        plain = complete(bundle.new_session(speculate=False), [3, 1, 4], params)
        speculative = complete(bundle.new_session(), [3, 1, 4], params)
    assert speculative.token_ids == plain.token_ids
    assert plain.stats.accepted == 0
    assert isinstance(draft, ModelDraft) == (speculative.stats.accepted > 0)


def test_closing_the_bundle_closes_sessions_before_engines() -> None:
    opened = Opened(MODEL)
    sessions = [opened.bundle.new_session(), opened.bundle.new_session()]
    assert opened.draft is not None
    assert len(opened.target.open_contexts) == len(opened.draft.open_contexts) == 2
    opened.bundle.close()
    opened.bundle.close()
    assert opened.target.closed and opened.draft.closed
    with pytest.raises(WrongState):
        sessions[0].append([1])


def test_a_session_may_be_closed_before_its_bundle() -> None:
    opened = Opened(MODEL)
    opened.bundle.new_session().close()
    assert opened.target.open_contexts == []
    opened.bundle.close()


def test_a_closed_bundle_has_no_new_sessions() -> None:
    opened = Opened(NoneDraft())
    opened.bundle.close()
    with pytest.raises(WrongState, match="the bundle is closed; open it again"):
        opened.bundle.new_session()


def test_a_session_whose_draft_has_no_room_leaves_nothing_open() -> None:
    opened = Opened(MODEL, draft_room=0)
    with pytest.raises(OutOfMemory):
        opened.bundle.new_session()
    assert opened.target.open_contexts == []


def test_a_session_whose_draft_does_not_fit_leaves_nothing_open() -> None:
    foreign = graph_spec([("step", 1, 1), ("catch_up", 2, 1), ("prefill", 8, 1)], vocab=50)
    opened = Opened(ModelDraft(k=4, graph=foreign))
    assert opened.draft is not None
    with pytest.raises(InvalidArgument, match="share one tokenizer"):
        opened.bundle.new_session()
    assert opened.target.open_contexts == opened.draft.open_contexts == []


def test_plain_sessions_take_no_draft_context() -> None:
    opened = Opened(MODEL)
    assert opened.draft is not None
    opened.bundle.new_session(speculate=False)
    assert opened.draft.made == 0
    opened.bundle.close()


def test_a_bundle_without_a_tokenizer_has_none() -> None:
    assert Opened(NoneDraft()).bundle.tokenizer is None


def test_opening_and_decoding_writes_nothing_into_the_bundle(tiny_bundle: Path) -> None:
    def state() -> dict[Path, tuple[int, int]]:
        return {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(tiny_bundle.rglob("*"))}

    before = state()
    with open_bundle(tiny_bundle) as bundle:
        assert bundle.tokenizer is not None
        complete(bundle.new_session(), bundle.tokenizer.encode("a b a b"), SamplingParams(max_tokens=8))
    assert state() == before
