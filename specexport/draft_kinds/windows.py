"""The windows that the graph of an EAGLE layer is run at: which profiles it needs, and what each computes."""

from collections.abc import Sequence

from specexport.trees import Tree
from specruntime.drafts.eagle_windows import LEVEL, LOGITS_SUFFIX, STEP
from specruntime.manifest.schema import Profile

LOGITS = "logits"


def eagle_profiles(
    outputs: Sequence[str],
    prefill: tuple[Profile, ...],
    *,
    k: int,
    tree: Tree | None = None,
    branch: int = 0,
    selective: bool,
) -> tuple[Profile, ...]:
    """Windows of an EAGLE draft of depth `k`: a chain, the static `tree`, or a dynamic one of `branch` nodes per level.

    `outputs` are those of the graph. `selective`: the backend computes only what a profile lists, so each window but
    the prefill's has a counterpart that computes the logits over the target's vocabulary too, which sampling needs.
    """
    extend = tuple(Profile(name=f"extend_{width}", width=width, rows=1) for width in _ladder(k + 1))
    levels = tuple(
        Profile(name=f"{LEVEL}{depth}", width=width, rows=rows)
        for depth, (width, rows) in enumerate(_levels(k, tree, branch), start=1)
    )
    windows = (Profile(name=STEP, width=1, rows=1), *extend, *levels)
    if not selective:
        return (*windows, *prefill)
    plain = tuple(name for name in outputs if name != LOGITS)
    return (
        *(window.model_copy(update={"outputs": plain}) for window in (*windows, *prefill)),
        *(window.model_copy(update={"name": window.name + LOGITS_SUFFIX}) for window in windows),
    )


def _ladder(widest: int) -> list[int]:
    """2, 3, 5, 9, ... and `widest`: windows of what one round can commit, none more than half padding."""
    widths, width = {widest}, 2
    while width < widest:
        widths.add(width)
        width = 2 * width - 1
    return sorted(widths - {1})


def _levels(k: int, tree: Tree | None, branch: int) -> list[tuple[int, int]]:
    """(width, rows) of the window that asks the nodes of each depth for their children; all nodes asked so far fit."""
    if tree is None:
        return [(branch * depth, branch) for depth in range(1, k)] if branch else []
    inner = {parent for parent in tree.parents if parent}
    rows = [sum(tree.depths[row - 1] == depth for row in inner) for depth in range(1, k)]
    return [(sum(rows[: depth + 1]), count) for depth, count in enumerate(rows)]
