"""The content of unused cache rows changes nothing."""

import numpy as np
import pytest

from tests.specexport.export.comparison import Shape, chain_step, compare_chain, fill_cache
from tests.specexport.export.exported import CANONICAL, ONNXRUNTIME, ExportedArchitectures

RAGGED = Shape(fills=(5, 20), valid=(2, 4), width=4)


@pytest.mark.parametrize("variant", [CANONICAL, ONNXRUNTIME])
@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma2"])
def test_rows_of_any_size_leave_logits_bitwise_unchanged(
    exported: ExportedArchitectures, model_type: str, variant: str
) -> None:
    found = exported[model_type]
    graph = found.graph(variant)
    step = chain_step(found.references, RAGGED)
    seen = []
    for fill in (0.0, 1e4, -1e4):
        cache = graph.empty_cache(2, fill)
        fill_cache(cache, found.references, RAGGED.fills)
        logits, _ = graph.run(step, cache)
        seen.append([logits[row, :valid] for row, valid in enumerate(RAGGED.valid)])
    for other in seen[1:]:
        for found_rows, expected in zip(other, seen[0], strict=True):
            np.testing.assert_array_equal(found_rows, expected)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "gemma2"])
def test_the_fused_kernel_does_not_read_unused_rows(exported: ExportedArchitectures, model_type: str) -> None:
    found = exported[model_type]
    assert compare_chain(found.graph(ONNXRUNTIME), found.references, RAGGED, unused=np.nan).worst < 1e-4


def test_the_masked_kernel_reads_them(exported: ExportedArchitectures) -> None:
    """Why buffers are zeroed at open: a masked NaN is still a NaN in the canonical graph."""
    found = exported["llama"]
    assert compare_chain(found.graph(CANONICAL), found.references, RAGGED, unused=np.nan).worst == float(
        "inf"
    )
