"""Finds how much of a prompt is in a slot's cache already: these rows are copied or left in place, not computed.

A cache row says what led to it, so rows of equal beginnings are equal. How equal depends on the precision: in fp32 a
row differs by rounding between windows of different widths, which changes no token; below that it may. There, unless
`all` is asked for, only those rows are reused that whole pieces of a prompt left behind, since a session of its own
would compute them in the same windows: its tokens are the same to the last bit.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specruntime.errors import InvalidArgument
from specruntime.manifest.messages import one_of
from specruntime.manifest.schema import Manifest
from specruntime.serving.stepper import Work

PrefixCaching = Literal["exact", "all", "off"]
PREFIX_CACHING: tuple[PrefixCaching, ...] = ("exact", "all", "off")


class Prefixes:
    """What one bundle may reuse."""

    def __init__(self, manifest: Manifest, mode: PrefixCaching) -> None:
        """Raise `InvalidArgument` for another mode than those listed."""
        if mode not in PREFIX_CACHING:
            raise InvalidArgument(f"prefix_caching is {mode!r}, {one_of(str(mode), PREFIX_CACHING)}")
        self.on = mode != "off"
        self._by_pieces = mode != "all" and manifest.precision != "fp32"
        self._piece = max(profile.width for profile in manifest.target.profiles)

    def usable(self, work: Work, tokens: NDArray[np.int64], pieces: int, *, of_group: bool = False) -> int:
        """How many of `tokens` [n], held by some session, the work can start from; 0: none.

        The first `pieces` of them were fed in whole pieces from the beginning of a prompt. At least one token of the
        prompt is left to be fed. `of_group`: the session answers the same prompt for the same request, which is
        shared in the mode "off" too.
        """
        if not (self.on or of_group):
            return 0
        length = _common(work.prompt[:-1], tokens)
        if self._by_pieces:
            # Drafts that are drawn follow the draft's rows, and those are not fed in pieces.
            length = 0 if work.params.draws_drafts else self._whole(min(length, pieces))
        return length if length > 1 else 0  # the last one is fed again: one alone saves nothing

    def _whole(self, length: int) -> int:
        """Return the last end of a piece within `length` tokens; each after the first begins with the token
        before it.
        """
        if length < self._piece:
            return 0
        step = max(self._piece - 1, 1)
        return self._piece + (length - self._piece) // step * step


def _common(prompt: NDArray[np.int64], tokens: NDArray[np.int64]) -> int:
    """Tokens that both begin with."""
    count = min(len(prompt), len(tokens))
    differing = np.flatnonzero(prompt[:count] != tokens[:count])
    return int(differing[0]) if differing.size else count
