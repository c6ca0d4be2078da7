"""What drafts with a KV cache of their own have in common: which rows count, and what a failed call does to them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts.draft import Draft
from specruntime.engines.protocol import Context
from specruntime.errors import InvalidArgument
from specruntime.statistics import EngineCounters


class Feeding(Protocol):
    """What runs a draft's graph."""

    context: Context
    counters: EngineCounters


_F = TypeVar("_F", bound=Feeding)


class CachingDraft(Draft, Generic[_F]):
    """The first `cache_length` rows of the cache are those of committed tokens; what lies behind them is scratch."""

    def __init__(self, feeder: _F, *, k: int) -> None:
        self._feeder = feeder
        super().__init__(k)
        self.cache_length = 0
        self._failed = False

    @property
    def counters(self) -> EngineCounters:
        return self._feeder.counters

    @counters.setter
    def counters(self, counters: EngineCounters) -> None:
        self._feeder.counters = counters

    def start_from(self, source: Draft, length: int) -> None:
        assert isinstance(source, CachingDraft), "the drafts of a bundle are of one kind"
        count = min(source.cache_length, length)
        with self._engine_calls():
            self._feeder.context.copy_rows(source._feeder.context, count)
        self.cache_length = count

    def rewind(self, length: int) -> None:
        self.cache_length = min(self.cache_length, length)

    def reset(self) -> None:
        self.rewind(0)
        if self._failed:
            self._feeder.context.zero()
            self._failed = False

    def close(self) -> None:
        self._feeder.context.close()

    @contextmanager
    def _engine_calls(self) -> Iterator[None]:
        """Around the calls of one proposal: after a failure `reset` zeroes the cache."""
        self._failed = True
        try:
            yield
        except InvalidArgument:  # of the sampler; the rows fed so far lie behind those that count
            self._failed = False
            raise
        self._failed = False


class SpeculatingDraft(CachingDraft[_F]):
    """Behind the counted rows are those of `_speculated`: ids fed while drafting, valid only if they turn out to be
    what was committed.
    """

    def __init__(self, feeder: _F, *, k: int) -> None:
        super().__init__(feeder, k=k)
        self._speculated: list[int] = []

    def rewind(self, length: int) -> None:
        super().rewind(length)
        self._speculated = []

    def _keep_confirmed(self, tokens: NDArray[np.int64]) -> None:
        """Count speculated rows while they equal the committed `tokens`, and no row behind these."""
        for row in self._speculated:
            if self.cache_length >= len(tokens) or row != tokens[self.cache_length]:
                break
            self.cache_length += 1
        self.rewind(len(tokens))
