"""No row depends on a later row of its window or on another row of the batch, to the last bit."""

from dataclasses import replace

import numpy as np
import pytest

from tests.specexport.export.comparison import VOCAB_SIZE, Array, Graph, Shape, Step, chain_step, fill_cache
from tests.specexport.export.exported import CANONICAL, ONNXRUNTIME, Exported, ExportedArchitectures

SHAPE = Shape(fills=(5, 20), valid=(6, 6), width=6)
CHANGED_ROW = 3


def logits_of(found: Exported, graph: Graph, step: Step) -> Array:
    cache = graph.empty_cache(len(SHAPE.fills), 0.0)
    fill_cache(cache, found.references, SHAPE.fills)
    return graph.run(step, cache)[0]


def with_ids(step: Step, ids: Array) -> Step:
    return replace(step, ids=ids)


@pytest.mark.parametrize("variant", [CANONICAL, ONNXRUNTIME])
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt_oss"])
def test_a_changed_token_moves_only_itself_and_later_rows(
    exported: ExportedArchitectures, model_type: str, variant: str
) -> None:
    found = exported[model_type]
    graph = found.graph(variant)
    step = chain_step(found.references, SHAPE)
    before = logits_of(found, graph, step)
    ids = step.ids.copy()
    ids[0, CHANGED_ROW] = (ids[0, CHANGED_ROW] + 1) % VOCAB_SIZE
    after = logits_of(found, graph, with_ids(step, ids))
    np.testing.assert_array_equal(after[0, :CHANGED_ROW], before[0, :CHANGED_ROW])
    np.testing.assert_array_equal(after[1], before[1])
    assert (after[0, CHANGED_ROW:] != before[0, CHANGED_ROW:]).any(axis=-1).all()
