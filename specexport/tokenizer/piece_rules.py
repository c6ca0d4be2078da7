"""SentencePiece's two rules, in the plainest form, to hold faster tokenizers to.

Sources: `src/bpe_model.cc` and `src/unigram_model.cc` of google/sentencepiece.
"""

import heapq
import math
from collections.abc import Mapping

Pieces = Mapping[str, tuple[int, float]]  # id and score by text
_UNKNOWN_PENALTY = 10.0


def best_merges(text: str, pieces: Pieces) -> list[str]:
    """Byte pairs: of all neighbours that join to a piece, the best score is joined first, the leftmost of equals."""
    parts: list[str | None] = list(text)
    after, before = [*range(1, len(text)), -1], list(range(-1, len(text) - 1))
    waiting: list[tuple[float, int, int, str]] = []

    def offer(left: int, right: int) -> None:
        if left < 0 or right < 0:
            return
        joined = f"{parts[left]}{parts[right]}"
        if joined in pieces:
            heapq.heappush(waiting, (-pieces[joined][1], left, right, joined))

    for index in range(1, len(text)):
        offer(index - 1, index)
    while waiting:
        _, left, right, joined = heapq.heappop(waiting)
        if parts[left] is None or parts[right] is None or f"{parts[left]}{parts[right]}" != joined:
            continue
        parts[left], parts[right], after[left] = joined, None, after[right]
        if after[right] >= 0:
            before[after[right]] = left
        offer(before[left], left)
        offer(left, after[left])
    return [part for part in parts if part is not None]


def best_sum(text: str, pieces: Pieces) -> list[str]:
    """Unigram: the split with the highest sum of scores; a character that is no piece costs ten below the worst."""
    longest = max(map(len, pieces), default=1)
    unknown = min((score for _, score in pieces.values()), default=0.0) - _UNKNOWN_PENALTY
    best: list[tuple[float, int]] = [(0.0, 0)] + [(-math.inf, 0)] * len(text)
    for start in range(len(text)):
        for end in range(start + 1, min(len(text), start + longest) + 1):
            piece = text[start:end]
            if piece in pieces:
                score = best[start][0] + pieces[piece][1]
            elif end == start + 1:
                score = best[start][0] + unknown
            else:
                continue
            if score > best[end][0]:
                best[end] = (score, start)
    parts, end = [], len(text)
    while end:
        parts.append(text[best[end][1] : end])
        end = best[end][1]
    return parts[::-1]
