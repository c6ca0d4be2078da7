"""What a backend offers to the loop: an engine owns weights, a context owns one generation's buffers.

A backend opens an `Engine` from a `GraphSpec`; each session takes its own `Context` from it. All buffers of a context
are allocated when it is made; after that nothing moves and nothing is allocated. Knows nothing of drafts or sampling.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specruntime.manifest.graph import GraphSpec, Profile


@dataclass(frozen=True)
class Window:
    """Host staging buffers of one profile, written before `run` and read after it. B batch rows, W width, R rows.

    The arrays live as long as their context and never move. Those marked `None` are None where the graph has no such
    tensor, or the profile does not compute it; the others are zeros then that nothing reads.
    """

    profile: Profile
    input_ids: NDArray[np.int64]  # [B, W]
    position_ids: NDArray[np.int64]  # [B, W]
    cache_length: NDArray[np.int64]  # [B] committed rows, where this window is written
    logits_rows: NDArray[np.int64]  # [B, R] window rows that get logits
    window_mask: NDArray[np.bool_] | None  # [B, W, W] row i may see window node j
    query_lengths: NDArray[np.int32] | None  # [B] valid rows; the rest of the window is padding
    top_ids: NDArray[np.int64]  # [B, R] out: argmax over the real vocabulary
    hidden: NDArray[np.float32] | None = None  # [B, W, h] in: what the draft's layer reads with the ids
    features: NDArray[np.float32] | None = None  # [B, W, F] out: the features of each row that a draft reads
    next_hidden: NDArray[np.float32] | None = None  # [B, W, h] out: `hidden` of the step after each row
    topk_ids: NDArray[np.int64] | None = (
        None  # [B, R, K] out, [B, R, heads, K] of heads: target ids, best first
    )
    topk_logprobs: NDArray[np.float32] | None = (
        None  # as topk_ids: natural logarithms under the draft's distribution
    )


class Context(Protocol):
    """One session's KV cache and staging buffers over one engine. Not thread-safe."""

    spec: GraphSpec
    replays: dict[str, int]  # launches of captured device graphs by profile; empty where the backend has none

    def window(self, profile: str) -> Window:
        """Return the staging buffers of the profile; KeyError for a name the graph does not have."""
        ...

    def run(self, window: Window) -> None:
        """Run one window: writes its W cache rows at `cache_length` and fill `top_ids`.

        Raises `EngineFailed` when the backend reports an error; the cache is undefined then.
        """
        ...

    def logits(self, window: Window) -> NDArray[np.float32]:
        """[B, R, padded_vocab] of the last run of this window; valid until the next run of this context.

        Raises `InvalidArgument` for a window whose profile computes none.
        """
        ...

    def keep(self, start: int, rows: NDArray[np.int64]) -> None:
        """Move cache row `start + rows[i]` to `start + i` in every cache tensor, in place.

        `rows` is strictly ascending, so `rows[i] >= i` and no row is overwritten before it is read. Called between
        runs; copies no cache. Raises `EngineFailed` when the backend reports an error; the cache is undefined then.
        """
        ...

    def copy_rows(self, source: "Context", count: int) -> None:
        """Copy the first `count` cache rows of another context of the same engine over its own.

        Called between runs of both. Raises `EngineFailed` when the backend reports an error, or when the rows of
        `source` are undefined; its own cache is undefined then.
        """
        ...

    def cache(self) -> dict[str, NDArray[np.generic]]:
        """Return the KV cache by input name, each [B, kv_heads, capacity, head_dim]; a view on the host backends."""
        ...

    def zero(self) -> None:
        """Zero every cache row."""
        ...

    def close(self) -> None:
        """Free the buffers; further calls raise `WrongState`. Idempotent."""
        ...


class BatchContext(Protocol):
    """KV caches of several sequences, `rows` of them, and staging buffers for launches of neighbouring ones.

    Not thread-safe. A launch of n sequences runs on the caches first .. first + n - 1, and its window has n batch rows.
    """

    spec: GraphSpec
    rows: int
    replays: dict[str, int]  # launches of captured device graphs by profile; empty where the backend has none

    def window(self, profile: str, size: int) -> Window:
        """Return the staging buffers of launches of `size` sequences, one of `spec.sizes_of` the profile.

        Windows of one profile share their memory: row i of each is the same row.
        """
        ...

    def run(self, window: Window, first: int) -> None:
        """Run a window of `window(...)` on the caches from `first` on. Raises as `Context.run`; of the rows launched
        the caches are undefined then."""
        ...

    def logits(self, window: Window) -> NDArray[np.float32]:
        """[n, R, padded_vocab] of the last run of this profile; valid until the next. Raises as `Context.logits`."""
        ...

    def keep(self, row: int, start: int, rows: NDArray[np.int64]) -> None:
        """`Context.keep` in the caches of sequence `row`."""
        ...

    def copy_rows(self, row: int, source: "BatchContext", source_row: int, count: int) -> None:
        """`Context.copy_rows` into the caches of sequence `row`, from `source_row` of this or another batch context."""
        ...

    def cache(self, row: int) -> dict[str, NDArray[np.generic]]:
        """`Context.cache` of sequence `row`, each [1, kv_heads, capacity, head_dim]."""
        ...

    def zero(self, row: int) -> None:
        """Zero every cache row of sequence `row`."""
        ...

    def close(self) -> None:
        """Free the buffers. Idempotent."""
        ...


class OneSequence:
    """The `Context` of a session that decodes alone: sequence 0 of a batch of one."""

    __slots__ = ("batch", "replays", "spec")

    def __init__(self, batch: BatchContext) -> None:
        """Take ownership of `batch`, which has one sequence."""
        self.batch = batch
        self.spec = batch.spec
        self.replays = batch.replays

    def window(self, profile: str) -> Window:
        return self.batch.window(profile, 1)

    def run(self, window: Window) -> None:
        self.batch.run(window, 0)

    def logits(self, window: Window) -> NDArray[np.float32]:
        return self.batch.logits(window)

    def keep(self, start: int, rows: NDArray[np.int64]) -> None:
        self.batch.keep(0, start, rows)

    def copy_rows(self, source: Context, count: int) -> None:
        assert isinstance(source, OneSequence), "contexts of one engine are of one kind"
        self.batch.copy_rows(0, source.batch, 0, count)

    def cache(self) -> dict[str, NDArray[np.generic]]:
        return self.batch.cache(0)

    def zero(self) -> None:
        self.batch.zero(0)

    def close(self) -> None:
        self.batch.close()


class Engine(Protocol):
    """A loaded graph: weights and compiled code, shared by its contexts. `run` of different contexts may overlap."""

    spec: GraphSpec

    def new_context(self) -> Context:
        """Allocate one session's buffers; the first time also run the largest profiles, so that later runs take no
        more memory.

        Raises `OutOfMemory` when a buffer does not fit.
        """
        ...

    def new_batch(self, rows: int) -> BatchContext:
        """`new_context` for `rows` sequences, one of `spec.batch_sizes`.

        Raises `OutOfMemory` when a buffer does not fit.
        """
        ...

    def close(self) -> None:
        """Free the weights. Contexts must be closed first. Idempotent."""
        ...
