"""Defines the interface of drafts: they propose the tokens that may follow, as a chain or as a tree.

A draft sees the committed tokens, and of the target what `observe` shows it. It derives from the tokens what it has
not seen yet, so a round that committed fewer tokens than it proposed needs no message of its own.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specruntime.sampling.sampler import Sampler
from specruntime.statistics import EngineCounters


@dataclass(frozen=True, slots=True)
class Room:
    """How much one round can use of a proposal; both 0 or more. A chain of n tokens takes n of either."""

    depth: int  # the most tokens that may be accepted
    nodes: int  # the most drafted tokens one target window judges


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted ids [n], n >= 0: node i is window row i + 1; row 0 is the last committed token.

    `parents` [n] is the window row of each node's parent, an earlier row; None: a chain. `ranks` [n] says which of the
    parent's candidates a node is, 0 the most likely; None: nothing is known of it, a chain's are 0.
    `probabilities` is None when the ids are a function of tokens, features and seed. For a chain: [n, vocab], the
    distribution each id was drawn from. For a tree: [n + 1, vocab], row i the distribution that the first child of
    window row i was drawn from, its siblings after it from the same one without those before them, in window order.
    """

    ids: NDArray[np.int64]
    probabilities: NDArray[np.float32] | None = None
    parents: NDArray[np.int64] | None = None
    ranks: NDArray[np.int64] | None = None


NOTHING = Proposal(np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one target window, reported to the draft before its tokens are committed."""

    start: int  # position of the first kept row
    features: (
        NDArray[np.float32] | None
    )  # [kept, F] of positions start.., valid during the call; None: the graph has none
    kept: int  # rows that stay in the cache: the whole chunk, or row 0 and the accepted ones
    proposal: Proposal | None  # that was judged, of no ids in a plain step; None for a chunk of a prompt
    path: tuple[int, ...]  # accepted window rows, ascending, without row 0
    width: int  # of the window
    draft_seconds: float
    verify_seconds: float


class Draft:
    """Proposes continuations of one sequence. Not thread-safe.

    A draft that keeps nothing between rounds overrides `propose` alone. `k` is the most tokens a round can accept of
    its proposals. Engine calls are counted in an object that the session replaces with each answer.
    """

    k: int
    counters: EngineCounters
    drafts_behind: bool = False
    """Whether it can propose while more than the last token is missing from the target's cache, as after tokens that
    were committed without the target: then it has seen nothing of the target for them."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.counters = EngineCounters()

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        """Return what may follow `tokens` (all committed ids, a view that is only read), within `room` and `k`.

        Raises `EngineFailed` when its own engine fails; only `reset` and `close` are defined then. Raises
        `InvalidArgument`, between engine calls and with all it holds still sound, when every token is banned.
        """
        raise NotImplementedError

    def observe(self, verdict: Verdict) -> None:
        """Take note of a target window, after each.

        Positions seen before come again after `rewind` and after a round that found every token banned: the last
        verdict on a position counts. Raises `EngineFailed` as `propose` does.
        """

    def start_from(self, source: "Draft", length: int) -> None:
        """Take over, right after `reset`, what `source` knows of its first `length` tokens, which are this one's too.

        `source` is a sound draft of another session of the same bundle. Raises `EngineFailed` as `propose` does.
        """

    def rewind(self, length: int) -> None:
        """Forget every token from index `length` on."""

    def reset(self) -> None:
        """Forget everything, a failure too."""

    def close(self) -> None:
        """Free its buffers. Idempotent."""
