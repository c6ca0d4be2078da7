"""Each architecture's canonical graph and its ONNX Runtime variant compute what eager PyTorch computes."""

import pytest

from tests.specexport.export.architectures import EXPORTED
from tests.specexport.export.comparison import VOCAB_SIZE, Shape, compare_chain
from tests.specexport.export.exported import CANONICAL, ONNXRUNTIME, ExportedArchitectures

TOLERANCE = 1e-4
SHAPES = (
    Shape(fills=(0,), valid=(1,), width=1),
    Shape(fills=(9,), valid=(1,), width=1),
    Shape(fills=(47,), valid=(1,), width=1),
    Shape(fills=(0,), valid=(5,), width=5),
    Shape(fills=(17,), valid=(6,), width=6),
    Shape(fills=(3,), valid=(4,), width=6),
    Shape(fills=(30,), valid=(11,), width=16, judge_all=False),
    Shape(fills=(0, 20, 7), valid=(3, 4, 1), width=4),
    Shape(fills=(40, 1), valid=(2, 8), width=8),
    Shape(fills=(5, 0, 33), valid=(9, 12, 2), width=12, judge_all=False),
)
MODEL_TYPES = [
    pytest.param(a.model_type, marks=() if a.asked_for else pytest.mark.slow, id=a.model_type)
    for a in EXPORTED
]


@pytest.mark.parametrize("variant", [CANONICAL, ONNXRUNTIME])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_logits_and_cache_rows_equal_eager_at_every_shape(
    exported: ExportedArchitectures, model_type: str, variant: str
) -> None:
    """Unused rows hold +-1e4 throughout, so this also shows at each shape that unused rows are ignored."""
    found = exported[model_type]
    graph = found.graph(variant)
    differences = {shape: compare_chain(graph, found.references, shape) for shape in SHAPES}
    assert {s: d for s, d in differences.items() if d.worst > TOLERANCE} == {}
    assert sum(d.wrong_top for d in differences.values()) == 0


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_padded_tokens_often_win_the_logits_they_must_not_win_top_ids_by(
    exported: ExportedArchitectures, model_type: str
) -> None:
    """The control that makes `wrong_top == 0` above a statement."""
    logits = exported[model_type].references[0].logits
    assert (logits.argmax(-1) >= VOCAB_SIZE).any()
