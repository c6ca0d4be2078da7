"""Is the exported draft graph the draft module? Every window of the graph against what PyTorch computed.

Whole windows that extend the cache, single steps, and the tree windows of every level.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specexport.errors import ParityError
from specexport.parity.draft_reference import TREE_PARENTS, DraftReference, load_draft_reference, tree_paths
from specruntime.engines.protocol import Context, Window
from specruntime.engines.windows import stage
from specruntime.manifest.graph import LEVEL
from specruntime.manifest.schema import Profile


@dataclass(frozen=True)
class DraftParityReport:
    """Largest absolute differences from PyTorch: of log-probabilities and logits, and of KV rows by layer.

    `hidden_difference` is of `next_hidden`, as a share of its largest value. `trees`: levels of a tree were compared.
    """

    logit_difference: float
    hidden_difference: float
    layer_difference: tuple[float, ...]
    tokens: int
    widths: tuple[int, ...]
    trees: bool
    widened: bool = False


def compare_heads(context: Context, directory: Path) -> DraftParityReport:
    """Every head against the reference in `directory`."""
    return _Compared(context, load_draft_reference(directory)).heads()


def compare_layer(context: Context, directory: Path) -> DraftParityReport:
    """Every profile of a layer's graph against the reference in `directory`."""
    return measure_layer(context, load_draft_reference(directory))


def measure_layer(context: Context, reference: DraftReference) -> DraftParityReport:
    """Every profile of a layer's graph against `reference`."""
    return _Compared(context, reference).layer()


def require_draft_parity(report: DraftParityReport, tolerance: float) -> None:
    """Raise `ParityError` with what differs and by how much."""
    for what, found in (
        ("a logit", report.logit_difference),
        ("its hidden state, in units of the largest,", report.hidden_difference),
    ):
        if not found <= tolerance:
            raise ParityError(
                f"the draft graph differs from PyTorch by {found:.3g} on {what}, the recipe allows {tolerance:.3g}: "
                "raise the tolerance only if that is the precision you expect, otherwise report the draft",
                key="parity.tolerance",
            )


class _Compared:
    """The differences found so far, over one context."""

    def __init__(self, context: Context, reference: DraftReference) -> None:
        self._context, self._reference = context, reference
        self._places = np.full(context.spec.padded_vocab_size, -1)  # index of a target id among the scores
        self._places[reference.target_ids] = np.arange(len(reference.target_ids))
        self._logit = self._hidden = 0.0
        self._widths: set[int] = set()
        scores = reference.scores.astype(np.float64)
        scores -= scores.max(axis=-1, keepdims=True)
        self._logprobs = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))

    def heads(self) -> DraftParityReport:
        (profile,) = self._context.spec.profiles
        window = self._context.window(profile.name)
        assert window.hidden is not None
        for row, hidden in enumerate(self._reference.hidden):
            window.hidden[0, 0] = hidden
            self._context.run(window)
            self._compare_candidates(window, 0, row)
        return DraftParityReport(self._logit, 0.0, (), self._reference.pairs, (1,), trees=False)

    def layer(self) -> DraftParityReport:
        levels = [p for p in self._context.spec.profiles if p.name.startswith(LEVEL)]
        chain = [p for p in self._context.spec.profiles if p not in levels]
        for profile in chain:
            self._run_chain(profile)
        layers = tuple(
            max(self._cache_difference("key", n, key), self._cache_difference("value", n, value))
            for n, (key, value) in enumerate(zip(self._reference.keys, self._reference.values, strict=True))
        )
        for profile in levels:
            self._run_tree(profile)
        widths = tuple(sorted(self._widths))
        return DraftParityReport(
            self._logit, self._hidden, layers, self._reference.pairs, widths, trees=bool(levels)
        )

    def _run_chain(self, profile: Profile) -> None:
        """All pairs of the chain, window by window; the last is padded."""
        window, pairs = self._context.window(profile.name), self._reference.pairs
        start = 0
        while start < pairs and start + profile.width <= self._context.spec.capacity:
            rows = np.arange(start, min(start + profile.width, pairs))
            self._run(window, rows, start, judged=np.full(profile.rows, len(rows) - 1))
            self._compare(window, profile, {0: int(rows[-1])}, dict(enumerate(rows.tolist())))
            start += len(rows)

    def _run_tree(self, profile: Profile) -> None:
        """As many nodes as fit, all of them judged where the profile has rows for them."""
        window, pairs = self._context.window(profile.name), self._reference.pairs
        if pairs + profile.width > self._context.spec.capacity:
            return  # the runtime asks for no level there either
        nodes = min(profile.width, len(TREE_PARENTS))
        paths = tree_paths()[:nodes]
        sees = np.zeros((nodes, nodes), np.bool_)
        for node, path in enumerate(paths):
            sees[node, list(path)] = True
        rows = pairs + np.arange(nodes)
        positions = pairs + np.array([len(path) - 1 for path in paths])
        judged = np.arange(max(0, nodes - profile.rows), nodes)
        self._run(window, rows, pairs, judged=judged, positions=positions, sees=sees)
        answers = {row: int(rows[node]) for row, node in enumerate(judged.tolist())}
        self._compare(window, profile, answers, dict(enumerate(rows.tolist())))

    def _run(
        self,
        window: Window,
        rows: NDArray[np.int64],
        start: int,
        *,
        judged: NDArray[np.int64],
        positions: NDArray[np.int64] | None = None,
        sees: NDArray[np.bool_] | None = None,
    ) -> None:
        ids, hidden = self._reference.ids[rows], self._reference.hidden[rows]
        stage(window, ids, start, positions=positions, sees=sees, hidden=hidden, rows=judged)
        self._context.run(window)
        self._widths.add(window.profile.width)

    def _compare(
        self, window: Window, profile: Profile, answers: dict[int, int], hidden: dict[int, int]
    ) -> None:
        """`answers`: reference row by judged row; `hidden`: reference row by window row."""
        for judged, row in answers.items():
            self._compare_candidates(window, judged, row)
            if profile.computes("logits"):
                logits = self._context.logits(window)[0, judged, self._reference.target_ids]
                self._logit = max(self._logit, _difference(logits, self._reference.scores[row]))
        assert window.next_hidden is not None
        scale = max(1e-6, float(np.abs(self._reference.following).max()))
        for place, row in hidden.items():
            found = _difference(window.next_hidden[0, place], self._reference.following[row])
            self._hidden = max(self._hidden, found / scale)

    def _compare_candidates(self, window: Window, judged: int, row: int) -> None:
        """Compare the best K by log-probability, whichever of equals were named, and what is said of each."""
        assert window.topk_ids is not None and window.topk_logprobs is not None
        ids, found = window.topk_ids[0, judged], window.topk_logprobs[0, judged]
        expected = self._logprobs[row]
        places = self._places[ids]
        if (places < 0).any():
            self._logit = float("inf")
            return
        best = -np.sort(-expected, axis=-1)[..., : ids.shape[-1]]
        named = np.take_along_axis(expected, places, axis=-1)
        self._logit = max(self._logit, _difference(found, best), _difference(found, named))

    def _cache_difference(self, kind: str, layer: int, expected: NDArray[np.float32]) -> float:
        rows = self._context.cache()[f"past_{kind}.{layer}"][0, :, : self._reference.pairs]
        return _difference(rows.astype(np.float32), expected)


def _difference(found: NDArray[np.floating], expected: NDArray[np.floating]) -> float:
    difference = np.abs(np.asarray(found, np.float64) - expected).max()
    return float(difference) if np.isfinite(difference) else float("inf")
