"""What a draft is told of the target's windows: which rows stay, and their features.

Knows the layout of a window's features, and nothing of how tokens are accepted.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts import Draft, Verdict
from specruntime.engine import Window


def kept_features(window: Window, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """[n, F] features of the window rows [n], ascending from 0; None where the graph has none."""
    if window.features is None:
        return None
    count = len(rows)
    return window.features[0, :count] if rows[-1] == count - 1 else window.features[0, rows]


class PromptTelling:
    """Tells a draft of each window of a prompt as it is fed. `seconds`: what the draft took to listen."""

    def __init__(self, draft: Draft, clock: Callable[[], float]) -> None:
        self.seconds = 0.0
        self._draft = draft
        self._clock = clock
        self._last = clock()

    def __call__(self, window: Window, start: int, count: int) -> None:
        """The window held `count` ids at cache offset `start`."""
        ran = self._clock()
        self._draft.observe(
            Verdict(
                start=start,
                features=kept_features(window, np.arange(count)),
                kept=count,
                proposal=None,
                path=(),
                width=window.profile.width,
                draft_seconds=0.0,
                verify_seconds=ran - self._last,
            )
        )
        self._last = self._clock()
        self.seconds += self._last - ran
