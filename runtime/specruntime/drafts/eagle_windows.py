"""Runs an EAGLE draft's graph over pairs of a hidden row and a token, and looks ahead of its cache level by level.

Pair t joins what is known of position t and token t + 1: cache row t, position t, and its answer is about token t + 2.
The hidden row is the target's features where the target has been, and the draft's own `next_hidden` beyond. Owns the
staging of windows; knows nothing of what is proposed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specruntime.engines.protocol import Context, Window
from specruntime.engines.windows import run_counted, stage, stage_chain
from specruntime.manifest.graph import LEVEL, LOGITS_SUFFIX, STEP
from specruntime.statistics import EngineCounters


@dataclass(frozen=True, slots=True)
class Expansion:
    """The candidates of the judged rows of one run. Views, valid until the next run of the window."""

    window: Window
    count: int

    @property
    def ids(self) -> NDArray[np.int64]:
        """[count, K] target ids, best first."""
        assert self.window.topk_ids is not None
        return self.window.topk_ids[0, : self.count]

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """[count, K] under the draft's own distribution."""
        assert self.window.topk_logprobs is not None
        logprobs: NDArray[np.float32] = self.window.topk_logprobs[0, : self.count]
        return logprobs

    @property
    def next_hidden(self) -> NDArray[np.float32]:
        """[W, h] by window row."""
        assert self.window.next_hidden is not None
        rows: NDArray[np.float32] = self.window.next_hidden[0]
        return rows

    @property
    def row(self) -> int:
        """The window row of the first judged one."""
        return int(self.window.logits_rows[0, 0])


@dataclass(frozen=True, slots=True)
class Ladder:
    """The windows of one kind of proposal: all compute logits, or none need to."""

    chain: tuple[Window, ...]  # one judged row, ascending widths, the first of width 1
    levels: tuple[Window, ...]  # of trees: the one at index d takes all asked nodes down to depth d + 1


class PairFeeder:
    """Feeds one context of an EAGLE draft. The cache beyond what the caller counts as valid is scratch."""

    def __init__(self, context: Context, vocab_size: int) -> None:
        """`vocab_size` is the target's."""
        spec = context.spec
        self.context = context
        self.capacity = spec.capacity
        self.vocab_size = vocab_size
        self.counters = EngineCounters()
        windows = {profile.name: context.window(profile.name) for profile in spec.profiles}
        plain = _ladder(windows, "")
        assert plain is not None, "a manifest without such windows is refused"
        everywhere = all(_has_logits(context, window) for window in windows.values())
        self.plain = plain
        self.with_logits = plain if everywhere else _ladder(windows, LOGITS_SUFFIX)
        self.hidden_size = _hidden(self.plain.chain[0]).shape[2]
        widest = max(window.profile.width for window in windows.values())
        self._tree = _Asked(widest, self.hidden_size)

    def extend(
        self, ladder: Ladder, features: NDArray[np.float32], tokens: NDArray[np.int64], start: int
    ) -> Expansion:
        """Write the pairs from `start` on that `tokens` [n] completes, in as many windows as they take.

        `features` [n - 1 or more, h] by position. The answer is about token n, from a window of the ladder; a prompt
        before it goes through the plain ones, which are wider. start <= n - 2.
        """
        end = len(tokens) - 1
        if ladder is not self.plain and end - start > ladder.chain[-1].profile.width:
            self._extend_to(end - 1, self.plain, features, tokens, start)
            start = end - 1
        return self._extend_to(end, ladder, features, tokens, start)

    def step(self, ladder: Ladder, before: Expansion, token: int, position: int) -> Expansion:
        """Return the pair at `position` of a drafted token, with the draft's own hidden row of the pair `before`."""
        ids = np.array([token])
        return self._run_chain(
            ladder.chain[0], before.next_hidden[before.row : before.row + 1], ids, position
        )

    def begin_tree(self) -> None:
        """Forget the nodes asked before."""
        self._tree.count = 0

    def fits_level(self, ladder: Ladder, depth: int, start: int) -> bool:
        """Whether nodes of `depth` (1 and more) can be asked for their children behind `start` cache rows."""
        return depth <= len(ladder.levels) and start + ladder.levels[depth - 1].profile.width <= self.capacity

    def ask(
        self,
        ladder: Ladder,
        before: Expansion,
        ids: NDArray[np.int64],
        parents: NDArray[np.int64],
        depth: int,
        start: int,
    ) -> Expansion:
        """Candidates for the children of the nodes `ids` [m], all of one depth, the next after those asked before.

        `parents` [m]: slot of each node's parent in the order asked, -1 for row 0. The whole tree so far is fed again,
        in window rows that are its slots, behind the `start` pairs in the cache, which stay the only valid ones.
        """
        tree, window = self._tree, ladder.levels[depth - 1]
        rows = parents if depth > 1 else np.full(len(ids), before.row)
        first = tree.add(ids, before.next_hidden[rows], parents, start + depth - 1)
        count = tree.count
        stage(
            window,
            tree.ids[:count],
            start,
            positions=tree.positions[:count],
            sees=tree.mask[:count, :count],
            hidden=tree.hidden[:count],
            rows=np.arange(first, count),
        )
        run_counted(self.context, window, self.counters)
        return Expansion(window, len(ids))

    def logits(self, answer: Expansion) -> NDArray[np.float32]:
        """[count, vocab] over the target's tokens, -inf for those the draft lacks; valid until the next run."""
        return self.context.logits(answer.window)[0, : answer.count, : self.vocab_size]

    def _extend_to(
        self,
        end: int,
        ladder: Ladder,
        features: NDArray[np.float32],
        tokens: NDArray[np.int64],
        start: int,
    ) -> Expansion:
        while True:
            window = self._chunk(ladder, end - start, start)
            stop = min(start + window.profile.width, end)
            answer = self._run_chain(window, features[start:stop], tokens[start + 1 : stop + 1], start)
            if stop == end:
                return answer
            start = stop

    def _chunk(self, ladder: Ladder, count: int, start: int) -> Window:
        """Return the narrowest window for all of the pairs, or the widest; only such that fit behind `start`."""
        fitting = [w for w in ladder.chain if start + w.profile.width <= self.capacity]
        return next((window for window in fitting if window.profile.width >= count), fitting[-1])

    def _run_chain(
        self, window: Window, hidden: NDArray[np.float32], ids: NDArray[np.int64], start: int
    ) -> Expansion:
        stage(window, ids, start, hidden=hidden)
        run_counted(self.context, window, self.counters)
        return Expansion(window, 1)


class _Asked:
    """The tree nodes asked so far, by slot. Allocated once."""

    def __init__(self, nodes: int, hidden_size: int) -> None:
        self.count = 0
        self.ids = np.zeros(nodes, np.int64)
        self.positions = np.zeros(nodes, np.int64)
        self.hidden = np.zeros((nodes, hidden_size), np.float32)
        self.mask = np.zeros((nodes, nodes), np.bool_)

    def add(
        self,
        ids: NDArray[np.int64],
        hidden: NDArray[np.float32],
        parents: NDArray[np.int64],
        position: int,
    ) -> int:
        """Append nodes of one depth; the slot of the first."""
        first, end = self.count, self.count + len(ids)
        self.ids[first:end] = ids
        self.positions[first:end] = position
        self.hidden[first:end] = hidden
        self.mask[first:end] = self.mask[parents] if first else False
        slots = np.arange(first, end)
        self.mask[slots, slots] = True
        self.count = end
        return first


def _ladder(windows: dict[str, Window], suffix: str) -> Ladder | None:
    """Return the windows whose profiles end in `suffix` ("": those without one); None without a step among them."""
    named = {name: w for name, w in windows.items() if name.endswith(LOGITS_SUFFIX) == bool(suffix)}
    step = named.get(STEP + suffix)
    if step is None or step.profile.width != 1:
        return None
    levels: list[Window] = []
    while (level := named.pop(f"{LEVEL}{len(levels) + 1}{suffix}", None)) is not None:
        levels.append(level)
    chain = sorted(
        (w for name, w in named.items() if w.profile.rows == 1 and not name.startswith(LEVEL)),
        key=lambda w: w.profile.width,
    )
    for window in chain:
        stage_chain(window)
    return Ladder(tuple(chain), tuple(levels))


def _has_logits(context: Context, window: Window) -> bool:
    listed = any(tensor.name == "logits" for tensor in context.spec.outputs)
    return listed and window.profile.computes("logits")


def _hidden(window: Window) -> NDArray[np.float32]:
    assert window.hidden is not None
    return window.hidden
