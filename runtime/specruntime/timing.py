"""The clock of one answer: what the caller of `generate` waited for, prefill and text included.

Owns seconds as the caller sees them; seconds inside rounds are in `Statistics`.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from specruntime import clock
from specruntime.generation import Codec, Delta, generate
from specruntime.sampling import SamplingParams
from specruntime.session import Session


class TimedAnswer:
    """An answer that `generate` streams, timed. Iterate over it once, then read the figures.

    What the consumer does between deltas is not counted. Raises as `generate`.
    """

    def __init__(
        self,
        session: Session,
        prompt_ids: Sequence[int] | NDArray[np.integer],
        params: SamplingParams,
        text: Codec | None = None,
    ) -> None:
        started = clock.now()
        self._session = session
        self._deltas = generate(session, prompt_ids, params, text)
        self.new_tokens = 0
        self.first_seconds = 0.0  # from the prompt's ids to the first delta
        self.seconds = clock.now() - started  # from the prompt's ids to the last delta

    def __iter__(self) -> Iterator[Delta]:
        while True:
            started = clock.now()
            delta = next(self._deltas, None)
            self.seconds += clock.now() - started
            if delta is None:
                return
            if self.new_tokens == 0:
                self.first_seconds = self.seconds
            self.new_tokens += len(delta.tokens)
            yield delta

    @property
    def tokens_per_second(self) -> float:
        """New tokens over the whole answer's time, prefill included."""
        return self.new_tokens / self.seconds if self.seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens after the first over the time after the first; 0 for an answer of one token."""
        after = self.seconds - self.first_seconds
        return (self.new_tokens - 1) / after if self.new_tokens > 1 and after > 0 else 0.0

    @property
    def engine_seconds(self) -> float:
        """Inside engine calls of target and draft."""
        return self._session.stats.target.seconds + self._session.stats.draft.seconds

    @property
    def host_percent(self) -> float:
        """Share of the answer's time outside engine calls: drafting, accepting, sampling, text, bookkeeping."""
        return 100 * (self.seconds - self.engine_seconds) / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, object]:
        """JSON-ready: these figures, then the session's counters (`Statistics.as_dict`)."""
        return {
            "ttft_ms": 1e3 * self.first_seconds,
            "total_ms": 1e3 * self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "decode_tokens_per_second": self.decode_tokens_per_second,
            "host_percent": self.host_percent,
            **self._session.stats.as_dict(),
        }
