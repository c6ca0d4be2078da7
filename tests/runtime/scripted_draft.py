"""Draft graphs without weights that see everything they are fed: pairs, heads, and a target that skips layers.

A hidden row is (rows seen, mark, token id) as `features_of` says; the mark weighs what the target saw, so a row of
another branch or another context differs. A pair row of the draft's cache holds the hidden row it was given with
(token id, position). Since the hidden rows spell out the tokens before, such a draft can know its target's next token
exactly: an oracle.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts import EagleDraft, MedusaDraft, Proposal, Room, Verdict
from specruntime.engines.protocol import Window
from specruntime.errors import EngineFailed
from specruntime.manifest.schema import GraphSpec, Profile, TensorSpec
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler
from tests.runtime.scripted_engine import (
    VOCAB,
    Language,
    ScriptedContext,
    _window,
    clean_logits,
    clean_rows,
    features_of,
    graph_spec,
)

FEATURES = 3
DRAFTED = -1.0  # the mark of a hidden row that the draft made itself
CANDIDATES = 8
Profiles = Sequence[tuple[str, int, int]]


def clean_features(tokens: Sequence[int]) -> NDArray[np.float32]:
    """[n, 3] what the target shows of each of `tokens` after a clean prefill."""
    rows = clean_rows(tokens)
    return np.stack([features_of(rows[: end + 1]) for end in range(len(tokens))])


def clean_pairs(tokens: Sequence[int]) -> NDArray[np.float32]:
    """[n - 1, 5] the draft's cache rows after a clean pass over `tokens`: features, token id, position."""
    count = len(tokens) - 1
    following = np.asarray(tokens[1:], np.float32).reshape(-1, 1)
    positions = np.arange(count, dtype=np.float32).reshape(-1, 1)
    return np.concatenate([clean_features(tokens)[:count], following, positions], axis=1)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    return np.asarray(wide - np.log(np.exp(wide).sum()))


def best_of(logits: NDArray[np.float32], count: int = CANDIDATES) -> tuple[list[int], list[float]]:
    """(ids, log-probabilities) of the most likely tokens, best first."""
    order = np.argsort(-logits, stable=True)[:count]
    return order.tolist(), log_softmax(logits)[order].tolist()


class PairContext(ScriptedContext):
    """An EAGLE draft of one scripted layer. `forget` shifts its ids: a draft that is always wrong."""

    def __init__(self, spec: GraphSpec, language: Language, *, forget: int = 0) -> None:
        super().__init__(spec, language)
        self.forget = forget
        self._cache = np.zeros((1, 1, spec.capacity, FEATURES + 2), np.float32)
        self._windows = {profile.name: _pair_window(profile) for profile in spec.profiles}

    def run(self, window: Window) -> None:
        name, width = window.profile.name, window.profile.width
        self._count_run(window)
        start = int(window.cache_length[0])
        assert window.hidden is not None and window.next_hidden is not None
        assert window.topk_ids is not None and window.topk_logprobs is not None
        assert window.window_mask is not None and window.query_lengths is not None
        if start + width > self.spec.capacity:
            raise EngineFailed(f"rows {start}..{start + width} pass the capacity of {self.spec.capacity}")
        assert window.position_ids.max() < self.spec.capacity, "rotary tables end at the capacity"
        rows = self._cache[0, 0]
        rows[start : start + width, :FEATURES] = window.hidden[0]
        rows[start : start + width, FEATURES] = window.input_ids[0]
        rows[start : start + width, FEATURES + 1] = window.position_ids[0]
        if self.failing():
            rows[:] = 12345.0
            raise EngineFailed("scripted failure")
        valid = int(window.query_lengths[0])
        self.valid.append(valid)
        window.next_hidden.fill(np.nan)
        for row in range(valid):
            id_, position = rows[start + row, FEATURES:]
            window.next_hidden[0, row] = (position + 2, DRAFTED, id_)
        self._logits[name].fill(np.nan)
        for index, row in enumerate(window.logits_rows[0].tolist()):
            visible = np.flatnonzero(window.window_mask[0, row]) + start
            assert row < valid and visible[-1] == start + row, "judged rows are real and see themselves last"
            logits = self.language.logits(_told(rows[np.concatenate((np.arange(start), visible))]))
            logits = np.roll(logits, self.forget)
            ids, logprobs = best_of(logits, CANDIDATES)
            window.topk_ids[0, index], window.topk_logprobs[0, index] = ids, logprobs
            if window.profile.computes("logits"):
                self._logits[name][0, index, : self.spec.vocab_size] = logits


def _told(pairs: NDArray[np.float32]) -> NDArray[np.float32]:
    """The (id, position) rows that pairs [n, 5] tell of: their hidden rows', then the last one's token."""
    last = pairs[-1:, FEATURES:] + np.array([[0, 1]], np.float32)
    return np.concatenate([np.stack([pairs[:, 2], pairs[:, 0] - 1], axis=1), last])


def _pair_window(profile: Profile) -> Window:
    width, rows = profile.width, profile.rows
    return replace(
        _window(profile, told=False),
        hidden=np.zeros((1, width, FEATURES), np.float32),
        next_hidden=np.zeros((1, width, FEATURES), np.float32),
        topk_ids=np.zeros((1, rows, CANDIDATES), np.int64),
        topk_logprobs=np.zeros((1, rows, CANDIDATES), np.float32),
    )


def pair_spec(levels: Sequence[tuple[int, int]] = (), *, capacity: int = 64, laws: bool = False) -> GraphSpec:
    """An EAGLE graph with windows of 1, 2, 5 and 8 pairs, and (width, rows) for each level of its trees."""
    widths = [("step", 1, 1), ("extend_2", 2, 1), ("extend_5", 5, 1), ("prefill_8", 8, 1)]
    widths += [(f"level_{depth}", width, rows) for depth, (width, rows) in enumerate(levels, start=1)]
    spec = graph_spec(widths, capacity=capacity)
    outputs = (
        TensorSpec(name="topk_ids", dtype="int64", shape=("B", "R", CANDIDATES)),
        TensorSpec(name="topk_logprobs", dtype="float32", shape=("B", "R", CANDIDATES)),
        TensorSpec(name="next_hidden", dtype="float32", shape=("B", "W", FEATURES)),
        TensorSpec(name="logits", dtype="float32", shape=("B", "R", spec.padded_vocab_size)),
        TensorSpec(name="present_key.0", dtype="float32", shape=("B", 1, capacity, 2)),
    )
    plain = tuple(tensor.name for tensor in outputs if tensor.name != "logits")
    profiles = [profile.model_copy(update={"outputs": plain}) for profile in spec.profiles]
    if laws:
        profiles += [
            profile.model_copy(update={"name": f"{profile.name}_law"})
            for profile in spec.profiles
            if not profile.name.startswith("prefill")
        ]
    return spec.model_copy(update={"outputs": outputs, "profiles": tuple(profiles)})


class HeadsContext(ScriptedContext):
    """Medusa heads that know the language: head i answers what follows greedily after i + 1 more tokens.

    `story` is the committed text so far, which the hidden row only marks; the context checks the mark.
    """

    def __init__(self, spec: GraphSpec, language: Language, story: Callable[[], Sequence[int]]) -> None:
        super().__init__(spec, language)
        self.story = story
        shape = next(tensor.shape for tensor in spec.outputs if tensor.name == "topk_ids")
        heads = int(shape[2])
        self._windows = {
            profile.name: replace(
                _window(profile, told=False),
                hidden=np.zeros((1, 1, FEATURES), np.float32),
                topk_ids=np.zeros((1, 1, heads, CANDIDATES), np.int64),
                topk_logprobs=np.zeros((1, 1, heads, CANDIDATES), np.float32),
            )
            for profile in spec.profiles
        }

    def run(self, window: Window) -> None:
        self._count_run(window)
        if self.failing():
            raise EngineFailed("scripted failure")
        assert window.hidden is not None and window.topk_ids is not None and window.topk_logprobs is not None
        tokens = list(self.story())
        expected = clean_features(tokens[:-1])[-1]
        assert np.array_equal(window.hidden[0, 0], expected), "features of the position before the last token"
        for head in range(window.topk_ids.shape[2]):
            ids, logprobs = best_of(clean_logits(self.language, tokens))
            window.topk_ids[0, 0, head], window.topk_logprobs[0, 0, head] = ids, logprobs
            tokens.append(ids[0])


def heads_spec(heads: int) -> GraphSpec:
    spec = graph_spec([("heads", 1, 1)])
    outputs = tuple(
        TensorSpec(name=name, dtype=dtype, shape=("B", "R", heads, CANDIDATES))
        for name, dtype in (("topk_ids", "int64"), ("topk_logprobs", "float32"))
    )
    inputs = (TensorSpec(name="hidden", dtype="float32", shape=("B", "W", FEATURES)),)
    return spec.model_copy(update={"inputs": inputs, "outputs": outputs, "aliases": (), "layers": 0})


def level_sizes(parents: Sequence[int]) -> list[tuple[int, int]]:
    """(width, rows) of the windows that grow a static tree: the nodes with children, level by level."""
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    asked = [
        sum(1 for row in set(parents) if row and depths[row] == depth) for depth in range(1, max(depths))
    ]
    return [(sum(asked[: depth + 1]), rows) for depth, rows in enumerate(asked)]


def eagle_spec(k: int, graph: GraphSpec | None = None, **options: object) -> EagleDraft:
    return EagleDraft.model_validate({"kind": "eagle3", "k": k, "graph": graph or pair_spec(), **options})


def medusa_spec(heads: int, parents: Sequence[int], ranks: Sequence[int]) -> MedusaDraft:
    return MedusaDraft.model_validate(
        {"heads": heads, "graph": heads_spec(heads), "tree": {"parents": parents, "ranks": ranks}}
    )


class Story:
    """The committed tokens of one answer, shown to a draft the way a session does; counts nothing itself."""

    def __init__(self, language: Language, prompt: Sequence[int], params: SamplingParams) -> None:
        self.language, self.params = language, params
        self.tokens = list(prompt)
        self.sampler = Sampler(params, VOCAB, (), prompt)
        self.seen = 0  # positions shown

    def show(self, draft: object, proposal: Proposal | None = None, path: tuple[int, ...] = ()) -> None:
        """Shows all positions but the last one's, as one target window."""
        start, end = self.seen, len(self.tokens) - 1
        if end > start:
            features = clean_features(self.tokens)[start:end]
            verdict = Verdict(start, features, end - start, proposal, path, end - start, 0.0, 0.0)
            draft.observe(verdict)  # type: ignore[attr-defined]
            features.fill(np.nan)  # valid during the call only
        self.seen = max(end, 0)

    def commit(self, draft: object, *tokens: int) -> None:
        self.tokens += tokens
        self.sampler.commit(tokens)
        self.show(draft)

    def rewind(self, draft: object, length: int) -> None:
        draft.rewind(length)  # type: ignore[attr-defined]
        self.tokens = self.tokens[:length]
        self.seen = min(self.seen, max(length - 1, 0))
        self.sampler = Sampler(self.params, VOCAB, (), self.tokens)

    def propose(self, draft: object, depth: int = 99, nodes: int = 99) -> Proposal:
        tokens = np.array(self.tokens, np.int64)
        tokens.flags.writeable = False
        proposal = draft.propose(tokens, Room(depth, nodes), self.sampler)  # type: ignore[attr-defined]
        assert isinstance(proposal, Proposal)
        return proposal


class SkippingTarget(ScriptedContext):
    """A scripted target whose profile `draft` answers in another language over the same cache rows."""

    def __init__(self, spec: GraphSpec, language: Language, shallow: Language) -> None:
        super().__init__(spec, language)
        self._deep, self._shallow = language, shallow

    def run(self, window: Window) -> None:
        self.language = self._shallow if window.profile.name == "draft" else self._deep
        super().run(window)
        self.language = self._deep


def skipping_spec(*, capacity: int = 64, verify: int = 5) -> GraphSpec:
    widths = [("step", 1, 1), (f"verify_{verify}", verify, verify), ("prefill", 8, 1), ("draft", 1, 1)]
    spec = graph_spec(widths, capacity=capacity)
    common = tuple(tensor.name for tensor in spec.outputs)
    added = tuple(
        TensorSpec(name=name, dtype="int64", shape=("B", "R")) for name in ("draft_logits", "draft_top_ids")
    )
    profiles = tuple(
        profile.model_copy(
            update={"outputs": ("draft_logits", "draft_top_ids") if profile.name == "draft" else common}
        )
        for profile in spec.profiles
    )
    return spec.model_copy(update={"outputs": (*spec.outputs, *added), "profiles": profiles})
