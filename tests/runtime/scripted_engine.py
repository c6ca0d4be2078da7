"""A language model without weights, for tests of the loop: every mistake of the loop changes its tokens.

Each cache row stores the (token id, position) that was written there. The logits of a window row are a hash of the
rows it sees: the cache below `cache_length` as it lies in memory, and the window nodes its mask allows. So a wrong
row, a stale row, a wrong position or a wrong mask gives other tokens than a clean run.
"""

from collections.abc import Callable, Container, Sequence

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts import Draft, DraftSpec, ModelDraft, NoneDraft, Proposal, Room, new_draft
from specruntime.engines.protocol import Context, Window
from specruntime.errors import EngineFailed, WrongState
from specruntime.manifest.schema import (
    AliasPair,
    CheckSpec,
    GraphSpec,
    Manifest,
    OnnxRuntimeEngine,
    Profile,
    TensorSpec,
)
from specruntime.sampling.constraint import Constrain, Constraint, unconstrained
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler
from specruntime.session import Session
from specruntime.trace import Trace
from tests.scripted_clock import CLOCK, STEP, window_seconds

VOCAB = 97
PADDED = 104
CACHE = "past_key.0"
DRAFT_STEP = STEP / 16  # seconds of a draft model's step


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _uniform(key: int, count: int) -> NDArray[np.float32]:
    """[count] numbers in [0, 1), a function of key alone."""
    words = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    return ((_mix(words) >> np.uint64(40)) * np.float64(2.0**-24)).astype(np.float32)


class Language:
    """Logits [vocab] of a set of visible (id, position) rows; the order of rows in memory does not matter.

    `habit` weighs what follows the last token alone, so that n-grams repeat; `drift` adds this language's own noise,
    so that two languages of one seed agree as often as wanted (0: always).
    """

    def __init__(self, seed: int = 1, *, habit: float = 0.5, drift: float = 0.0, vocab: int = VOCAB) -> None:
        self.seed, self.habit, self.drift, self.vocab = seed, habit, drift, vocab
        self._bigram = 8 * np.stack([_uniform(seed * 7919 + 31 * token, vocab) for token in range(vocab)])

    def logits(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """rows [n, 2] of (id, position), the last written one last."""
        if not np.isfinite(rows).all():
            return np.full(self.vocab, np.nan, dtype=np.float32)
        ids, positions = rows.astype(np.int64).astype(np.uint64).T
        state = int(
            _mix(ids * np.uint64(1_000_003) + positions * np.uint64(8_191) + np.uint64(self.seed)).sum()
        )
        row = 8 * _uniform(state, self.vocab) + self.habit * self._bigram[int(rows[-1, 0]) % self.vocab]
        if self.drift:
            row += self.drift * _uniform(state ^ 0x5DEECE66D, self.vocab)
        return np.asarray(row, dtype=np.float32)


class ScriptedContext:
    """A `Context` over a `Language`. Padded rows answer -1 and NaN; `failing` is asked before each run.

    A run takes `window_seconds` of the tests' clock, where a window of one row takes `step_seconds`.
    """

    def __init__(self, spec: GraphSpec, language: Language) -> None:
        self.spec = spec
        self.replays: dict[str, int] = {}
        self.language = language
        self.failing: Callable[[], bool] = lambda: False
        self.runs: list[str] = []  # profiles
        self.valid: list[int] = []  # query_lengths of each run
        self.kept: list[tuple[int, list[int]]] = []  # calls of `keep`
        self.closed = False
        self.step_seconds = STEP
        self._cache = np.zeros((1, 1, spec.capacity, 2), dtype=np.float32)
        told = any(tensor.name == "features" for tensor in spec.outputs)
        self._windows = {profile.name: _window(profile, told) for profile in spec.profiles}
        self._logits = {
            p.name: np.zeros((1, p.rows, spec.padded_vocab_size), np.float32) for p in spec.profiles
        }

    def window(self, profile: str) -> Window:
        return self._windows[profile]

    def run(self, window: Window) -> None:
        if self.closed:
            raise WrongState("closed")
        self._count_run(window)
        start, width = int(window.cache_length[0]), window.profile.width
        if start + width > self.spec.capacity:
            raise EngineFailed(f"rows {start}..{start + width} pass the capacity of {self.spec.capacity}")
        rows = self._cache[0, 0]
        rows[start : start + width, 0] = window.input_ids[0]
        rows[start : start + width, 1] = window.position_ids[0]
        if self.failing():
            rows[:] = 12345.0
            raise EngineFailed("scripted failure")
        assert window.window_mask is not None and window.query_lengths is not None
        self.valid.append(int(window.query_lengths[0]))
        self._tell(window, start, rows)
        for index, node in enumerate(window.logits_rows[0]):
            logits = self._logits[window.profile.name][0, index]
            logits.fill(np.nan)
            window.top_ids[0, index] = -1
            if node < window.query_lengths[0]:
                visible = np.flatnonzero(window.window_mask[0, node]) + start
                seen = rows[np.concatenate((np.arange(start), visible))]
                logits[: self.spec.vocab_size] = self.language.logits(seen)
                logits[self.spec.vocab_size :] = 1e9  # never emitted
                window.top_ids[0, index] = np.argmax(logits[: self.spec.vocab_size])

    def _count_run(self, window: Window) -> None:
        self.runs.append(window.profile.name)
        CLOCK.advance(window_seconds(window.profile.width, self.step_seconds))

    def _tell(self, window: Window, start: int, rows: NDArray[np.float32]) -> None:
        if window.features is None or window.window_mask is None or window.query_lengths is None:
            return
        window.features.fill(np.nan)
        for node in range(int(window.query_lengths[0])):
            visible = np.flatnonzero(window.window_mask[0, node]) + start
            window.features[0, node] = features_of(rows[np.concatenate((np.arange(start), visible))])

    def logits(self, window: Window) -> NDArray[np.float32]:
        return self._logits[window.profile.name]

    def keep(self, start: int, rows: NDArray[np.int64]) -> None:
        assert (np.diff(rows) > 0).all() and rows[0] >= 0, "strictly ascending"
        self.kept.append((start, rows.tolist()))
        self._cache[0, 0, start : start + len(rows)] = self._cache[0, 0, start + rows]

    def copy_rows(self, source: Context, count: int) -> None:
        assert isinstance(source, ScriptedContext)
        self._cache[:, :, :count] = source._cache[:, :, :count]
        if self.failing():
            raise EngineFailed("scripted failure")

    def cache(self) -> dict[str, NDArray[np.generic]]:
        return {CACHE: self._cache}

    def zero(self) -> None:
        self._cache.fill(0)

    def close(self) -> None:
        self.closed = True

    def rows(self, count: int) -> NDArray[np.float32]:
        """[count, 2] copy of the first cache rows."""
        return self._cache[0, 0, :count].copy()

    def poison(self, start: int, value: float) -> None:
        """Overwrites the cache rows from `start` on."""
        self._cache[0, 0, start:] = value


def features_of(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """[3] what identifies a row: how many rows it sees, their ids weighed by position, its own id."""
    return np.array([len(rows), rows[:, 0] @ (rows[:, 1] + 1), rows[-1, 0]], dtype=np.float32)


def _window(profile: Profile, told: bool) -> Window:
    width, rows = profile.width, profile.rows
    return Window(
        profile=profile,
        input_ids=np.zeros((1, width), np.int64),
        position_ids=np.zeros((1, width), np.int64),
        cache_length=np.zeros(1, np.int64),
        logits_rows=np.zeros((1, rows), np.int64),
        window_mask=np.zeros((1, width, width), np.bool_),
        query_lengths=np.zeros(1, np.int32),
        top_ids=np.zeros((1, rows), np.int64),
        features=np.zeros((1, width, 3), np.float32) if told else None,
    )


def graph_spec(
    widths: Sequence[tuple[str, int, int]], *, capacity: int = 64, batch: int = 1, vocab: int = VOCAB
) -> GraphSpec:
    """A graph with profiles (name, width, rows)."""
    cache = TensorSpec(name=CACHE, dtype="float32", shape=("B", 1, capacity, 2))
    present = cache.model_copy(update={"name": "present_key.0"})
    return GraphSpec(
        file="scripted.onnx",
        inputs=(
            TensorSpec(name="input_ids", dtype="int64", shape=("B", "W")),
            TensorSpec(name="position_ids", dtype="int64", shape=("B", "W")),
            TensorSpec(name="cache_length", dtype="int64", shape=("B",)),
            TensorSpec(name="logits_rows", dtype="int64", shape=("B", "R")),
            TensorSpec(name="window_mask", dtype="bool", shape=("B", "W", "W")),
            TensorSpec(name="query_lengths", dtype="int32", shape=("B",)),
            cache,
        ),
        outputs=(
            TensorSpec(name="top_ids", dtype="int64", shape=("B", "R")),
            TensorSpec(name="logits", dtype="float32", shape=("B", "R", vocab + PADDED - VOCAB)),
            present,
        ),
        aliases=(AliasPair(input=CACHE, output="present_key.0"),),
        profiles=tuple(Profile(name=name, width=width, rows=rows) for name, width, rows in widths),
        batch=batch,
        batch_sizes=tuple(sorted({1, batch, *(2**power for power in range(8) if 2**power < batch)})),
        capacity=capacity,
        layers=1,
        vocab_size=vocab,
        padded_vocab_size=vocab + PADDED - VOCAB,
        engine=OnnxRuntimeEngine(minimum_version="1.23"),
    )


def target_spec(
    *,
    verify: Sequence[int] = (5,),
    prefill: int = 8,
    capacity: int = 64,
    features: bool = False,
    batch: int = 1,
) -> GraphSpec:
    widths = [
        ("step", 1, 1),
        *((f"verify_{width}", width, width) for width in verify),
        ("prefill", prefill, 1),
    ]
    spec = graph_spec(widths, capacity=capacity, batch=batch)
    if not features:
        return spec
    told = TensorSpec(name="features", dtype="float32", shape=("B", "W", 3))
    return spec.model_copy(update={"outputs": (*spec.outputs, told)})


def draft_spec(*, prefill: int = 8, capacity: int = 64, batch: int = 1) -> GraphSpec:
    widths = [("step", 1, 1), ("catch_up", 2, 1), ("prefill", prefill, 1)]
    return graph_spec(widths, capacity=capacity, batch=batch)


def scripted_manifest(target: GraphSpec, draft: DraftSpec, eos: Sequence[int] = ()) -> Manifest:
    return Manifest(
        schema_version=1,
        name="scripted",
        producer="tests",
        precision="fp32",
        target=target,
        draft=draft,
        eos_token_ids=tuple(eos),
        check=CheckSpec(prompts=(), max_new_tokens=1),
        files={},
    )


class Bench:
    """A session over scripted contexts, with the contexts at hand. `proposer` replaces the draft of `draft`."""

    def __init__(
        self,
        draft: DraftSpec | None = None,
        *,
        target: GraphSpec | None = None,
        language: Language | None = None,
        draft_language: Language | None = None,
        proposer: Draft | None = None,
        eos: Sequence[int] = (),
        trace: Trace | None = None,
        constrain: Constrain = unconstrained,
    ) -> None:
        spec = draft or NoneDraft()
        self.language = language or Language()
        self.target = ScriptedContext(target or target_spec(), self.language)
        self.draft: ScriptedContext | None = None
        if isinstance(spec, ModelDraft):
            self.draft = ScriptedContext(spec.graph, draft_language or self.language)
            self.draft.step_seconds = DRAFT_STEP
        self.manifest = scripted_manifest(self.target.spec, spec, eos)
        if proposer is None:
            proposer = new_draft(spec, self.draft, self.target.spec.vocab_size)
        self.session = Session(
            self.target, proposer, manifest=self.manifest, trace=trace, constrain=constrain
        )

    def decode(self, prompt: Sequence[int], count: int, params: SamplingParams | None = None) -> list[int]:
        """The first `count` tokens of the answer to a further prompt, in as many rounds as they take."""
        self.session.append(prompt)
        self.session.begin(params or SamplingParams())
        start = self.session.length
        while self.session.length < start + count:
            self.session.round()
        return [int(token) for token in self.session.tokens[start : start + count]]


def reference_decode(
    language: Language,
    prompt: Sequence[int],
    count: int,
    params: SamplingParams,
    eos: Sequence[int] = (),
    constraint: Constraint | None = None,
) -> list[int]:
    """`count` tokens after the prompt, decoded without a session: no cache, no window, no draft.

    Fewer where a constraint ends the answer.
    """
    sampler = Sampler(params, language.vocab, eos, prompt, constraint)
    tokens = list(prompt)
    for _ in range(count):
        if sampler.ended(()):
            break
        token = sampler.sample(clean_logits(language, tokens))
        sampler.commit([token])
        tokens.append(token)
    return tokens[len(prompt) :]


def clean_logits(language: Language, tokens: Sequence[int]) -> NDArray[np.float32]:
    """[vocab] logits after `tokens`, teacher forced."""
    return language.logits(clean_rows(tokens))


def clean_rows(tokens: Sequence[int]) -> NDArray[np.float32]:
    """[n, 2] the cache rows that a prefill of `tokens` writes."""
    return np.stack([np.asarray(tokens, np.float32), np.arange(len(tokens), dtype=np.float32)], axis=1)


class TableDraft(Draft):
    """Proposes what `answer` says comes next, except at the `wrong` indices of the answer: there another token."""

    def __init__(self, prompt_length: int, answer: Sequence[int], k: int, wrong: Container[int] = ()) -> None:
        super().__init__(k)
        self._prompt_length = prompt_length
        self._ids = np.array(
            [(token + 1) % VOCAB if index in wrong else token for index, token in enumerate(answer)]
        )

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        start = len(tokens) - self._prompt_length
        return Proposal(self._ids[start : start + min(room.depth, room.nodes, self.k)])
