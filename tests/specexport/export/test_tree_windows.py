"""Tree windows on the canonical graph: each node sees its ancestors and nothing of its siblings."""

import numpy as np
import pytest

from tests.specexport.export.comparison import (
    POISON,
    Array,
    Step,
    fill_cache,
    random_ids,
    relative,
    run_eager,
)
from tests.specexport.export.exported import CANONICAL, Exported, ExportedArchitectures

PARENTS = (-1, 0, 0, 1, 1, 2, 3, 5)
"""Node 0 is the last committed token; 1 and 2 are siblings, 3 and 4 too, and 6 and 7 lie at depth 3 on two branches."""


def paths() -> list[list[int]]:
    """Per node, its ancestors from the root down and itself."""
    found: list[list[int]] = []
    for node, parent in enumerate(PARENTS):
        found.append([*(found[parent] if parent >= 0 else []), node])
    return found


def tree_step(node_ids: Array, fill: int) -> Step:
    width = len(PARENTS)
    mask = np.zeros((1, width, width), dtype=bool)
    for node, path in enumerate(paths()):
        mask[0, node, path] = True
    depths = np.array([len(path) - 1 for path in paths()])
    return Step(
        ids=node_ids[None],
        positions=(fill + depths)[None],
        lengths=np.array([fill]),
        valid=np.array([width]),
        mask=mask,
        logits_rows=np.arange(width)[None],
    )


def difference_from_paths(found: Exported, fill: int, step_mask_flip: tuple[int, int] | None = None) -> float:
    """Worst relative difference, over nodes, between the tree's logits and KV rows and eager runs of each path."""
    prefix, node_ids = random_ids(11, fill), random_ids(12, len(PARENTS))
    step = tree_step(node_ids, fill)
    if step_mask_flip is not None:
        step.mask[0][step_mask_flip] ^= True
    graph = found.graph(CANONICAL)
    cache = graph.empty_cache(1, POISON)
    if fill:
        fill_cache(cache, [run_eager(found.model, prefix)], [fill])
    logits, _ = graph.run(step, cache)
    worst = 0.0
    for node, path in enumerate(paths()):
        reference = run_eager(found.model, np.concatenate([prefix, node_ids[path]]))
        worst = max(worst, relative(logits[0, node], reference.logits[-1]))
        for buffer, rows in zip(cache, reference.rows, strict=True):
            worst = max(worst, relative(buffer[0, :, fill + node], rows[:, -1]))
    return worst


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma3_text", "gpt2", "opt", "gpt_oss"])
@pytest.mark.parametrize("fill", [2, 6, 30])
def test_each_node_equals_eager_on_its_own_path(
    exported: ExportedArchitectures, model_type: str, fill: int
) -> None:
    """The sliding windows (7 rows) count positions, not rows: a deep node must not lose ancestors to its siblings."""
    assert difference_from_paths(exported[model_type], fill) < 1e-4


@pytest.mark.parametrize("flip", [(2, 1), (6, 1)], ids=["sees its sibling", "misses an ancestor"])
def test_a_wrong_mask_is_seen_by_the_comparison(
    exported: ExportedArchitectures, flip: tuple[int, int]
) -> None:
    assert difference_from_paths(exported["llama"], 6, flip) > 1e-2
