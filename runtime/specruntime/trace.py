"""One round as a record: what was proposed, what the target's window held and answered, and what became of it.

For finding out why a token is what it is. A session builds a record only where it has a trace; see `Session`.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts import Proposal
from specruntime.engines.windows import Rows
from specruntime.verify import Outcome

_SHOWN_ROWS = 16  # of a prompt's window, the last ones


@dataclass(frozen=True, slots=True)
class RowScores:
    """What the target says of the token after one window row, before any option of the answer changes it."""

    row: int
    best: int  # the engine's own argmax
    second: int  # the best of the others
    margin: float  # logit of `best` minus logit of `second`


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """One round, before it is committed. A prompt's round shows the last of its windows and proposes nothing.

    Row 0 of the window is the last committed token, row i + 1 drafted token i. `mask[i][j]`: row i sees row j.
    """

    seed: int | None  # with `position` it keys the noise of a sampled answer; None: greedy
    position: int  # in the answer, of the first emitted token
    profile: str
    start: int  # cache row of window row 0; every row sees the cache before it
    proposal: tuple[int, ...]
    parents: tuple[int, ...] | None  # the window row that each drafted token follows; None: a chain
    ids: tuple[int, ...]
    positions: tuple[int, ...]
    mask: tuple[tuple[bool, ...], ...]
    scores: tuple[RowScores, ...]  # of the judged rows, ascending
    path: tuple[int, ...]  # accepted window rows, ascending, without row 0
    tokens: tuple[int, ...]  # emitted

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


Trace = Callable[[RoundTrace], None]


def trace_round(
    rows: Rows,
    logits: NDArray[np.float32],
    proposal: Proposal,
    outcome: Outcome,
    *,
    seed: int | None,
    position: int,
) -> RoundTrace:
    """Return the record of a judged round; `logits` [n, vocab] are those of `rows`."""
    window = rows.window
    count = int(window.logits_rows[0, 0]) + 1 if window.profile.rows == 1 else rows.first + rows.count
    mask = (
        np.tri(count, dtype=np.bool_) if window.window_mask is None else window.window_mask[0, :count, :count]
    )
    top = window.top_ids[0, rows.first : rows.first + rows.count].tolist()
    scores = (_scores(count - rows.count + index, top[index], logits[index]) for index in range(rows.count))
    return RoundTrace(
        seed=seed,
        position=position,
        profile=window.profile.name,
        start=int(window.cache_length[0]),
        proposal=tuple(proposal.ids.tolist()),
        parents=None if proposal.parents is None else tuple(proposal.parents.tolist()),
        ids=tuple(window.input_ids[0, :count].tolist()),
        positions=tuple(window.position_ids[0, :count].tolist()),
        mask=tuple(tuple(row) for row in mask.tolist()),
        scores=tuple(scores),
        path=outcome.path,
        tokens=tuple(outcome.tokens),
    )


def _scores(row: int, best: int, logits: NDArray[np.float32]) -> RowScores:
    others = logits.copy()
    others[best] = -np.inf
    second = int(np.argmax(others))
    return RowScores(row, best, second, float(logits[best]) - float(logits[second]))


def render_round(trace: RoundTrace) -> str:
    """Return the record as lines for people: one for each window row."""
    last = trace.position + len(trace.tokens) - 1
    tokens = f"token {last}" if last == trace.position else f"tokens {trace.position} to {last}"
    seed = "greedy" if trace.seed is None else f"seed {trace.seed}"
    lines = [
        f"{tokens} of the answer, {seed}: window {trace.profile} at cache row {trace.start}",
        f"{'row':>5} {'under':>5} {'id':>8} {'position':>8} {'best':>8} {'second':>8} {'margin':>10}  sees",
    ]
    hidden = max(len(trace.ids) - max(_SHOWN_ROWS, len(trace.proposal) + 1), 0)
    if hidden:
        lines.append(f"  ... {hidden} rows before")
    scores = {each.row: each for each in trace.scores}
    lines += [_render_row(trace, row, scores.get(row)) for row in range(hidden, len(trace.ids))]
    accepted = ", ".join(map(str, trace.path)) or "none"
    lines.append(f"  accepted rows: {accepted}; emitted: {', '.join(map(str, trace.tokens))}")
    return "\n".join(lines)


def _render_row(trace: RoundTrace, row: int, scores: RowScores | None) -> str:
    under = "" if row == 0 else str(row - 1 if trace.parents is None else trace.parents[row - 1])
    sees = [other for other, seen in enumerate(trace.mask[row]) if seen]
    whole = sees == list(range(row + 1))
    judged = ("", "", "") if scores is None else (scores.best, scores.second, f"{scores.margin:.4g}")
    line = f"{row:5} {under:>5} {trace.ids[row]:8} {trace.positions[row]:8} "
    line += f"{judged[0]:>8} {judged[1]:>8} {judged[2]:>10}  "
    line += f"0 to {row}" if whole and row > 1 else " ".join(map(str, sees))
    return line + ("  accepted" if row in trace.path else "")
