"""Tree windows, on the canonical graph and on ONNX Runtime's variant for trees: each node sees its ancestors only."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import pytest

from tests.specexport.export.comparison import (
    POISON,
    Array,
    Shape,
    Step,
    compare_chain,
    fill_cache,
    random_ids,
    relative,
    run_eager,
)
from tests.specexport.export.exported import (
    CANONICAL,
    ONNXRUNTIME,
    TREES,
    Exported,
    ExportedArchitectures,
)

PARENTS = (-1, 0, 0, 1, 1, 2, 3, 5)
"""Node 0 is the last committed token; 1 and 2 are siblings, 3 and 4 too, and 6 and 7 lie at depth 3 on two branches."""


def paths(parents: Sequence[int]) -> list[list[int]]:
    """Per node, its ancestors from the root down and itself."""
    found: list[list[int]] = []
    for node, parent in enumerate(parents):
        found.append([*(found[parent] if parent >= 0 else []), node])
    return found


def random_parents(seed: int, count: int) -> tuple[int, ...]:
    """A tree of `count` nodes, each under any earlier one."""
    draws = np.random.default_rng(seed)
    return (-1, *(int(draws.integers(0, node)) for node in range(1, count)))


def tree_step(node_ids: Array, fill: int, parents: Sequence[int], padding: int = 0) -> Step:
    """The window of one tree, and rows behind it that see themselves only."""
    width = len(parents) + padding
    mask = np.eye(width, dtype=bool)[None]
    depths = np.zeros(width, np.int64)
    for node, path in enumerate(paths(parents)):
        mask[0, node, path] = True
        depths[node] = len(path) - 1
    return Step(
        ids=np.concatenate([node_ids, np.zeros(padding, np.int64)])[None],
        positions=(fill + depths)[None],
        lengths=np.array([fill]),
        valid=np.array([len(parents)]),
        mask=mask,
        logits_rows=np.arange(width)[None],
    )


def difference_from_paths(
    found: Exported,
    variant: str,
    fill: int,
    parents: Sequence[int] = PARENTS,
    *,
    flip: tuple[int, int] | None = None,
    unused: float = POISON,
    padding: int = 0,
) -> float:
    """Worst relative difference, over nodes, between the tree's logits and KV rows and eager runs of each path.

    `flip`: an entry of the mask to get wrong.
    """
    prefix, node_ids = random_ids(11, fill), random_ids(12, len(parents))
    step = tree_step(node_ids, fill, parents, padding)
    if flip is not None:
        step.mask[0][flip] ^= True
    graph = found.graph(variant)
    cache = graph.empty_cache(1, unused)
    if fill:
        fill_cache(cache, [run_eager(found.model, prefix)], [fill])
    logits, _ = graph.run(step, cache)
    worst = 0.0
    for node, path in enumerate(paths(parents)):
        reference = run_eager(found.model, np.concatenate([prefix, node_ids[path]]))
        worst = max(worst, relative(logits[0, node], reference.logits[-1]))
        for buffer, rows in zip(cache, reference.rows, strict=True):
            worst = max(worst, relative(buffer[0, :, fill + node], rows[:, -1]))
    return worst


@pytest.mark.parametrize("variant", [CANONICAL, TREES])
@pytest.mark.parametrize(
    "model_type", ["llama", "mistral", "gemma2", "gemma3_text", "gpt2", "opt", "gpt_oss"]
)
@pytest.mark.parametrize("fill", [0, 2, 6, 30])
def test_each_node_equals_eager_on_its_own_path(
    exported: ExportedArchitectures, model_type: str, fill: int, variant: str
) -> None:
    """The sliding windows (7 rows) count positions, not rows: a deep node must not lose ancestors to its siblings."""
    assert difference_from_paths(exported[model_type], variant, fill) < 1e-4


@pytest.mark.parametrize("model_type", ["llama", "mistral"])
@pytest.mark.parametrize("seed", range(6))
def test_random_trees_with_padding_behind_them(
    exported: ExportedArchitectures, model_type: str, seed: int
) -> None:
    parents = random_parents(seed, 4 + 2 * seed)
    found = exported[model_type]
    assert difference_from_paths(found, TREES, 3 * seed, parents, padding=seed % 3) < 1e-4


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma2"])
def test_the_fused_kernel_reads_no_row_behind_the_tree(
    exported: ExportedArchitectures, model_type: str
) -> None:
    assert difference_from_paths(exported[model_type], TREES, 9, unused=np.nan) < 1e-4


@pytest.mark.parametrize("variant", [CANONICAL, TREES])
@pytest.mark.parametrize("flip", [(2, 1), (6, 1)], ids=["sees its sibling", "misses an ancestor"])
def test_a_wrong_mask_is_seen_by_the_comparison(
    exported: ExportedArchitectures, flip: tuple[int, int], variant: str
) -> None:
    assert difference_from_paths(exported["llama"], variant, 6, flip=flip) > 1e-2


def test_chains_in_the_variant_for_trees_equal_eager(exported: ExportedArchitectures) -> None:
    found = exported["mistral"]
    for shape in (
        Shape(fills=(9,), valid=(1,), width=1),
        Shape(fills=(0, 20, 7), valid=(3, 4, 1), width=4),
        Shape(fills=(30,), valid=(11,), width=16, judge_all=False),
    ):
        assert compare_chain(found.graph(TREES), found.references, shape).worst < 1e-4


def test_trees_cost_no_operator_per_layer(exported: ExportedArchitectures) -> None:
    """The bias is computed once a run; rotary positions stay inside the kernel."""
    plain, trees = (
        Counter(node.op_type for node in ir.load(exported["llama"].path(variant)).graph)
        for variant in (ONNXRUNTIME, TREES)
    )
    for operator in ("MatMul", "GroupQueryAttention", "SkipSimplifiedLayerNormalization", "RotaryEmbedding"):
        assert plain[operator] == trees[operator]
